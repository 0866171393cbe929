package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.Measurement;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
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
    private static final int BLOCK = 16;
    private static final int[] BORDERS = {1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1};
    private static final SamplingParams ANSWER =
            SamplingParams.builder().temperature(0).maxTokens(6).ignoreEos(true).build();

    private static final List<List<Asked>> WAVES = new ArrayList<>();

    private record Asked(int[] prompt, int[] answer) {}

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

    private static EngineConfigBuilder config(int blockSize, int ranks, int budget) {
        // Sums in another order differ too much in bf16 where ranks share a model.
        return EngineConfig.of(Instances.MODEL)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(1024)
                .blockSize(blockSize)
                .numBlocks(600 * BLOCK / blockSize)
                .maxNumSeqs(32)
                .maxNumBatchedTokens(budget)
                .parallel(
                        ranks == 1
                                ? ParallelConfig.SINGLE
                                : new ParallelConfig(ranks, 1, ParallelConfig.SINGLE.cpuBinding()));
    }

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        Random random = new Random(SEED);
        EngineConfig alone = config(BLOCK, 1, 2048).enablePrefixCaching(false).build();
        try (LocalEngine engine = LocalEngine.start(alone, EngineListener.NONE)) {
            for (int prompts = 0; prompts < PROMPTS; ) {
                int size = Math.min(PROMPTS - prompts, 1 + random.nextInt(MOST_AT_ONCE));
                List<int[]> wave = new ArrayList<>();
                List<Future<RequestOutput>> answers = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    int length = prompts < BORDERS.length ? BORDERS[prompts] : 1 + random.nextInt(300);
                    // Some begin alike, so that a part is in the prefix cache.
                    int[] prompt = Ledgers.prompt(length, random.nextBoolean() ? 7 : random.nextInt(1_000_000));
                    wave.add(prompt);
                    answers.add(submit(engine, "alone-" + prompts++, prompt, ANSWER));
                }
                List<Asked> asked = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    asked.add(new Asked(wave.get(i), tokens(answers.get(i).get(300, TimeUnit.SECONDS))));
                }
                WAVES.add(asked);
            }
        }
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
                prefills.add(new Side(cell, KvRole.PRODUCER, BLOCK));
                sides.add(prefills.getLast());
            }
            for (int i = 0; i < cell.decodes; i++) {
                decodes.add(new Side(cell, KvRole.CONSUMER, cell.decodeBlockSize));
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
                // Sends may fail: a decode instance does not want what it turned out to have in its cache.
                for (String trouble : List.of(
                        "baton:kv_load_failures",
                        "baton:kv_save_failures",
                        "baton:p2p_malformed",
                        "baton:p2p_broken",
                        "baton:p2p_out_of_memory")) {
                    assertThat(side.sum(trouble)).as("%s of %s", trouble, cell).isZero();
                }
            }
            assertThat(decodes.stream()
                            .mapToDouble(side -> side.sum("baton:kv_load_bytes"))
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
        try (Side decode = new Side(cell, KvRole.CONSUMER, BLOCK)) {
            Side steady = new Side(cell, KvRole.PRODUCER, BLOCK);
            try (steady) {
                Side first = new Side(cell, KvRole.PRODUCER, BLOCK);
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
                    lost.add(submit(decode.engine, leg.decodeId(), leg.asked.prompt, ANSWER));
                }
                List<Leg> meanwhile = new ArrayList<>();
                all.forEach(asked -> meanwhile.add(new Leg(steady, decode, asked, random)));
                handOver(meanwhile, random);
                for (Future<RequestOutput> each : lost) {
                    assertThat(tokens(each.get(300, TimeUnit.SECONDS))).hasSize(6);
                }
                assertThat(decode.sum("baton:kv_load_failures")).isPositive();

                try (Side again = new Side(cell, KvRole.PRODUCER, BLOCK, port)) {
                    double loaded = decode.sum("baton:kv_load_bytes");
                    List<Leg> after = new ArrayList<>();
                    all.forEach(asked -> after.add(new Leg(again, decode, other(asked), random)));
                    for (Leg leg : after) {
                        leg.prefill().get(300, TimeUnit.SECONDS);
                        assertThat(tokens(leg.decode().get(300, TimeUnit.SECONDS)))
                                .hasSize(6);
                    }
                    assertThat(decode.sum("baton:kv_load_bytes")).isGreaterThan(loaded);
                }
            }
        }
    }

    /** A new prompt, which no cache has. */
    private static Asked other(Asked asked) {
        int[] prompt = asked.prompt.clone();
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
            assertThat(tokens(each.get(300, TimeUnit.SECONDS))).hasSize(1);
        }
        List<Leg> shuffled = new ArrayList<>(legs);
        Collections.shuffle(shuffled, random);
        List<Future<RequestOutput>> decoded = new ArrayList<>();
        for (Leg leg : shuffled) {
            decoded.add(leg.decode());
        }
        for (int i = 0; i < decoded.size(); i++) {
            RequestOutput output = decoded.get(i).get(300, TimeUnit.SECONDS);
            Asked asked = shuffled.get(i).asked;
            String what = "%d tokens, -Dtests.seed=%d".formatted(asked.prompt.length, SEED);
            assertThat(tokens(output)).as(what).isEqualTo(asked.answer);
            assertThat(asked.prompt.length - output.cachedTokens())
                    .as("computed of " + what)
                    .isLessThanOrEqualTo(1);
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
            return submit(from.engine, shared + suffix, asked.prompt, SamplingParams.greedy(1));
        }

        private String decodeId() {
            return shared + "-0badcafe";
        }

        private Future<RequestOutput> decode() {
            return submit(to.engine, decodeId(), asked.prompt, ANSWER);
        }
    }

    private static Future<RequestOutput> submit(LocalEngine engine, String id, int[] prompt, SamplingParams sampling) {
        GenerationRequest request = new GenerationRequest(id, prompt, sampling, Optional.empty(), Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }

    private static int[] tokens(RequestOutput output) {
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output.tokens();
    }

    private static final class Side implements AutoCloseable {
        private final PeerAddress address;
        private final LocalEngine engine;
        private final Queue<Measurement> measured = new ConcurrentLinkedQueue<>();

        Side(Cell cell, KvRole role, int blockSize) throws IOException {
            this(cell, role, blockSize, FreePorts.inARow(cell.ranks));
        }

        Side(Cell cell, KvRole role, int blockSize, int port) throws IOException {
            address = new PeerAddress("127.0.0.1", port);
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
            engine = LocalEngine.start(
                    config(blockSize, cell.ranks, cell.budget)
                            .kvTransfer(transfer)
                            .build(),
                    new EngineListener() {
                        @Override
                        public void onMeasurements(List<Measurement> measurements) {
                            measured.addAll(measurements);
                        }
                    });
        }

        double sum(String name) {
            return measured.stream()
                    .filter(each -> each.name().equals(name))
                    .mapToDouble(Measurement::value)
                    .sum();
        }

        @Override
        public void close() {
            engine.close();
        }
    }
}
