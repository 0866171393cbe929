package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.EngineSide.Asked;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Prefill and decode instances with the real tiny model and {@code P2pNcclConnector} between them: greedy tokens are those of one engine
 * alone. {@code -Dtests.prompts=N} asks N prompts in each constellation.
 */
@Timeout(600)
class P2pHandoverTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 16);
    private static final long SEED = Long.getLong("tests.seed", 5);
    private static final int MOST_AT_ONCE = 16;
    private static final int BLOCK = EngineSide.BLOCK;

    private static final List<List<Asked>> WAVES = new ArrayList<>();

    /** @param budget tokens computed in a step: below a prompt's length it is computed in chunks */
    record Cell(String sendType, int prefills, int decodes, int ranks, int decodeBlockSize, int budget) {
        @Override
        public String toString() {
            return "%s, %dP%dD, TP %d, blocks of %d to %d, %d tokens a step"
                    .formatted(sendType, prefills, decodes, ranks, BLOCK, decodeBlockSize, budget);
        }
    }

    static List<Cell> cells() {
        return List.of(
                new Cell("PUT_ASYNC", 1, 1, 1, BLOCK, 2048),
                new Cell("PUT_ASYNC", 2, 1, 1, 2 * BLOCK, 100),
                new Cell("PUT_ASYNC", 1, 3, 1, BLOCK, 2048),
                new Cell("PUT_ASYNC", 1, 1, 2, BLOCK, 100),
                new Cell("PUT", 1, 1, 1, BLOCK, 2048),
                new Cell("GET", 2, 1, 1, BLOCK, 2048),
                new Cell("GET", 1, 1, 2, 2 * BLOCK, 2048));
    }

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        WAVES.addAll(EngineSide.askOneAlone(PROMPTS, SEED, MOST_AT_ONCE / 2, MOST_AT_ONCE, EngineSide::anyOrAlike));
    }

    @AfterAll
    static void forget() {
        WAVES.clear();
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAreThoseOfOneEngineAlone(Cell cell) throws Exception {
        Random random = new Random(SEED);
        List<Side> sides = new ArrayList<>();
        try {
            List<Side> prefills = new ArrayList<>();
            List<Side> decodes = new ArrayList<>();
            for (int i = 0; i < cell.prefills; i++) {
                prefills.add(Side.of(cell, KvRole.PRODUCER, BLOCK));
                sides.add(prefills.getLast());
            }
            for (int i = 0; i < cell.decodes; i++) {
                decodes.add(Side.of(cell, KvRole.CONSUMER, cell.decodeBlockSize));
                sides.add(decodes.getLast());
            }
            for (List<Asked> wave : WAVES) {
                List<Leg> legs = new ArrayList<>();
                for (Asked asked : wave) {
                    legs.add(new Leg(
                            prefills.get(random.nextInt(prefills.size())),
                            decodes.get(random.nextInt(decodes.size())),
                            asked,
                            random));
                }
                handOver(legs, random);
            }
            for (Side side : sides) {
                // Sends may fail: a decode instance refuses tokens that it has in its cache after all.
                side.engine.assertNone(
                        "baton:kv_load_failures",
                        "baton:kv_save_failures",
                        "baton:p2p_malformed",
                        "baton:p2p_broken",
                        "baton:p2p_out_of_memory");
            }
            assertThat(decodes.stream()
                            .mapToDouble(side -> side.engine.sum("baton:kv_load_bytes"))
                            .sum())
                    .isPositive();
        } finally {
            sides.forEach(Side::close);
        }
    }

    /** A prefill instance that dies costs its own requests a recomputation at most; one that comes back is used again. */
    @Test
    void instancesAreRestarted() throws Exception {
        Cell cell = new Cell("PUT_ASYNC", 1, 1, 1, BLOCK, 2048);
        Random random = new Random(SEED);
        List<Asked> all = WAVES.stream().flatMap(List::stream).limit(8).toList();
        try (Side decode = Side.of(cell, KvRole.CONSUMER, BLOCK)) {
            Side steady = Side.of(cell, KvRole.PRODUCER, BLOCK);
            try (steady) {
                Side first = Side.of(cell, KvRole.PRODUCER, BLOCK);
                int port = first.address.port();
                List<Leg> before = new ArrayList<>();
                all.forEach(asked -> before.add(new Leg(first, decode, asked, random)));
                handOver(before, random);
                List<Leg> orphans = new ArrayList<>();
                all.forEach(asked -> orphans.add(new Leg(first, decode, other(asked), random)));
                first.close();

                // Prompts that no instance has computed: their prefill instance has ended, while requests of another
                // one run.
                List<Future<RequestOutput>> lost = new ArrayList<>();
                for (Leg leg : orphans) {
                    lost.add(leg.decode());
                }
                List<Leg> meanwhile = new ArrayList<>();
                all.forEach(asked -> meanwhile.add(new Leg(steady, decode, asked, random)));
                handOver(meanwhile, random);
                for (Future<RequestOutput> each : lost) {
                    assertThat(EngineSide.tokens(each)).hasSize(EngineSide.ANSWER_TOKENS);
                }
                assertThat(decode.engine.sum("baton:kv_load_failures")).isPositive();

                try (Side again = Side.of(cell, KvRole.PRODUCER, BLOCK, port)) {
                    double loaded = decode.engine.sum("baton:kv_load_bytes");
                    List<Leg> after = new ArrayList<>();
                    all.forEach(asked -> after.add(new Leg(again, decode, other(asked), random)));
                    for (Leg leg : after) {
                        assertThat(EngineSide.tokens(leg.prefill())).hasSize(1);
                        assertThat(EngineSide.tokens(leg.decode())).hasSize(EngineSide.ANSWER_TOKENS);
                    }
                    assertThat(decode.engine.sum("baton:kv_load_bytes")).isGreaterThan(loaded);
                }
            }
        }
    }

    /** A new prompt, which no cache has. */
    private static Asked other(Asked asked) {
        int[] prompt = asked.prompt().clone();
        prompt[0] = prompt[0] == 5 ? 6 : 5;
        return new Asked(prompt, new int[0]);
    }

    /** All prefill legs at once, then all decode legs at once, in another order. */
    private static void handOver(List<Leg> legs, Random random) throws Exception {
        List<Future<RequestOutput>> prefilled = new ArrayList<>();
        for (Leg leg : legs) {
            prefilled.add(leg.prefill());
        }
        for (Future<RequestOutput> each : prefilled) {
            assertThat(EngineSide.tokens(each)).hasSize(1);
        }
        List<Leg> shuffled = new ArrayList<>(legs);
        Collections.shuffle(shuffled, random);
        List<Future<RequestOutput>> decoded = new ArrayList<>();
        for (Leg leg : shuffled) {
            decoded.add(leg.decode());
        }
        for (int i = 0; i < decoded.size(); i++) {
            Asked asked = shuffled.get(i).asked;
            EngineSide.check(
                    decoded.get(i), asked, "%d tokens, -Dtests.seed=%d".formatted(asked.prompt().length, SEED));
        }
    }

    /** A request's way through two instances, which give it ids as servers do. */
    private record Leg(Side from, Side to, Asked asked, String shared, String suffix) {
        private Leg(Side from, Side to, Asked asked, Random random) {
            this(from, to, asked, shared(from, to, random), "-%08x".formatted(random.nextInt()));
        }

        private static String shared(Side from, Side to, Random random) {
            String unique = "%016x%016x".formatted(random.nextLong(), random.nextLong());
            return "cmpl-" + new P2pRequestId(from.address, to.address, unique).format() + "-0";
        }

        private Future<RequestOutput> prefill() {
            return from.engine.ask(shared + suffix, asked.prompt(), SamplingParams.greedy(1), Optional.empty());
        }

        private Future<RequestOutput> decode() {
            return to.engine.ask(shared + "-0badcafe", asked.prompt(), EngineSide.ANSWER, Optional.empty());
        }
    }

    /** An engine, and where peers find it. */
    private record Side(PeerAddress address, EngineSide engine) implements AutoCloseable {
        static Side of(Cell cell, KvRole role, int blockSize) throws Exception {
            return of(cell, role, blockSize, FreePorts.inARow(cell.ranks));
        }

        static Side of(Cell cell, KvRole role, int blockSize, int port) throws Exception {
            KvTransferConfig transfer = KvTransferConfig.builder("P2pNcclConnector", role)
                    .port(port)
                    .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                    .extra("send_type", cell.sendType)
                    .extra("mem_pool_size_gb", 1)
                    .extra("exchange_timeout", 120)
                    .extra("transfer_timeout", 300)
                    .extra("load_timeout", 300)
                    .extra("tensor_ttl", 600)
                    .build();
            return new Side(
                    new PeerAddress("127.0.0.1", port),
                    new EngineSide(EngineSide.config(blockSize, cell.ranks, 1)
                            .maxNumSeqs(32)
                            .maxNumBatchedTokens(cell.budget)
                            .kvTransfer(transfer)
                            .build()));
        }

        @Override
        public void close() {
            engine.close();
        }
    }
}
