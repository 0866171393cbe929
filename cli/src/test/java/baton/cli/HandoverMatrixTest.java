package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.WatchedPool.Loaded;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.backend.ModelBackends;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.engine.model.Device;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.Measurement;
import baton.testkit.Await;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.node.ObjectNode;

/**
 * Two engines with the real tiny model, and every way in which blocks get from one to the other: greedy tokens are those of one
 * engine alone, and the decode pool holds the prefill pool's bytes. {@code -Dtests.prompts=N} asks N prompts in each way.
 */
class HandoverMatrixTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 12);
    private static final long SEED = Long.getLong("tests.seed", 4);
    private static final int MOST_AT_ONCE = 16;
    private static final int BLOCK = 16;
    private static final int LONGEST = 500;
    /** Lengths of the first prompts, whatever the seed. */
    private static final int[] BORDERS = {1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1};

    private static final SamplingParams ANSWER =
            SamplingParams.builder().temperature(0).maxTokens(6).ignoreEos(true).build();
    private static final String KEEP = "{\"do_remote_decode\": true}";

    /** Prompts that are asked at once, with the answers of an engine alone. */
    private static final List<List<Asked>> WAVES = new ArrayList<>();

    private static final AtomicInteger HANDED_OVER = new AtomicInteger();
    private static final AtomicInteger TOKENS_COMPARED = new AtomicInteger();

    private record Asked(int[] prompt, int[] answer) {}

    /** How bytes move. */
    enum Way {
        SHARED_MEMORY,
        TCP,
        NIXL,
        MOONCAKE;

        Map<String, String> settings() {
            return switch (this) {
                case SHARED_MEMORY -> Map.of("transfer_agent", "embedded");
                case TCP -> Map.of("transfer_agent", "embedded", "transport", "tcp");
                case NIXL -> Map.of("transfer_agent", "nixl");
                case MOONCAKE -> Map.of("transfer_agent", "mooncake");
            };
        }
    }

    /** Where the pools are: of the host, or a device's. */
    enum Pools {
        HOST,
        DEVICE_TO_HOST,
        DEVICE
    }

    record Cell(Way way, Pools pools, boolean push, int prefillRanks, int decodeRanks, int decodeBlockSize) {
        @Override
        public String toString() {
            return "%s %s %s, TP %d to %d, blocks of %d to %d"
                    .formatted(
                            way,
                            pools,
                            push ? "NixlPushConnector" : "NixlConnector",
                            prefillRanks,
                            decodeRanks,
                            BLOCK,
                            decodeBlockSize);
        }
    }

    static List<Cell> cells() {
        List<Cell> cells = new ArrayList<>();
        for (Way way : List.of(Way.SHARED_MEMORY, Way.TCP, Way.NIXL)) {
            for (boolean push : new boolean[] {false, true}) {
                for (int[] ranks : new int[][] {{1, 1}, {2, 1}, {1, 2}}) {
                    for (int blockSize : new int[] {BLOCK, 2 * BLOCK}) {
                        cells.add(new Cell(way, Pools.HOST, push, ranks[0], ranks[1], blockSize));
                    }
                }
            }
        }
        // It differs from TCP in nothing that ranks and block sizes depend on.
        cells.add(new Cell(Way.MOONCAKE, Pools.HOST, false, 1, 1, BLOCK));
        cells.add(new Cell(Way.MOONCAKE, Pools.HOST, true, 2, 1, 2 * BLOCK));
        // Staging pools are host memory, whatever moves their bytes.
        for (boolean push : new boolean[] {false, true}) {
            cells.add(new Cell(Way.SHARED_MEMORY, Pools.DEVICE, push, 1, 1, BLOCK));
            cells.add(new Cell(Way.TCP, Pools.DEVICE, push, 2, 1, 2 * BLOCK));
            cells.add(new Cell(Way.SHARED_MEMORY, Pools.DEVICE_TO_HOST, push, 1, 2, BLOCK));
            cells.add(new Cell(Way.NIXL, Pools.DEVICE, push, 1, 1, 2 * BLOCK));
        }
        cells.add(new Cell(Way.MOONCAKE, Pools.DEVICE, true, 1, 1, BLOCK));
        return cells;
    }

    private static EngineConfigBuilder config(int blockSize, int ranks) {
        // Sums in another order differ too much in bf16 where ranks share a model.
        return EngineConfig.of(Instances.MODEL)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(1024)
                .blockSize(blockSize)
                .numBlocks(600 * BLOCK / blockSize)
                .parallel(
                        ranks == 1
                                ? ParallelConfig.SINGLE
                                : new ParallelConfig(ranks, 1, ParallelConfig.SINGLE.cpuBinding()));
    }

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        Random random = new Random(SEED);
        int[] shared = Ledgers.prompt(6 * BLOCK, 77);
        List<Asked> earlier = new ArrayList<>();
        EngineConfig alone = config(BLOCK, 1).enablePrefixCaching(false).build();
        try (LocalEngine engine = LocalEngine.start(alone, EngineListener.NONE)) {
            for (int prompts = 0; prompts < PROMPTS; ) {
                List<int[]> wave = new ArrayList<>();
                // The answer to the first request has the prefill instance's connection parameters.
                int size = prompts == 0 ? 1 : Math.min(PROMPTS - prompts, 1 + random.nextInt(MOST_AT_ONCE));
                for (int i = 0; i < size; i++) {
                    int index = prompts + i;
                    wave.add(
                            index < BORDERS.length
                                    ? Ledgers.prompt(BORDERS[index], index)
                                    : prompt(random, shared, earlier));
                }
                List<Future<RequestOutput>> answers = new ArrayList<>();
                for (int[] prompt : wave) {
                    answers.add(submit(engine, "alone-" + prompts++, prompt, ANSWER, Optional.empty()));
                }
                List<Asked> asked = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    asked.add(new Asked(wave.get(i), tokens(answers.get(i).get(60, TimeUnit.SECONDS))));
                }
                WAVES.add(asked);
                earlier.addAll(asked);
            }
        }
    }

    /** A prompt that ends near a block's border, one with a shared prefix, or an earlier one continued after its answer. */
    private static int[] prompt(Random random, int[] shared, List<Asked> earlier) {
        int[] own = Ledgers.prompt(
                Math.max(1, BLOCK * random.nextInt(10) + random.nextInt(3) - 1), random.nextInt(1_000_000));
        return switch (random.nextInt(3)) {
            case 0 -> own;
            case 1 -> concat(Arrays.copyOf(shared, 1 + random.nextInt(shared.length)), own);
            default -> {
                if (earlier.isEmpty()) {
                    yield own;
                }
                Asked turn = earlier.get(random.nextInt(earlier.size()));
                int[] next = concat(concat(turn.prompt, turn.answer), Arrays.copyOf(own, 1 + own.length / 4));
                yield next.length > LONGEST ? own : next;
            }
        };
    }

    private static int[] concat(int[] first, int[] second) {
        return IntStream.concat(Arrays.stream(first), Arrays.stream(second)).toArray();
    }

    @AfterAll
    static void tellHowMany() {
        System.out.printf(
                "HandoverMatrixTest: %d prompts handed over, KV of %d tokens compared (-Dtests.seed=%d)%n",
                HANDED_OVER.get(), TOKENS_COMPARED.get(), SEED);
        WAVES.clear();
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAndBytesAreEqualOnBothSides(Cell cell) throws Exception {
        if (cell.way == Way.NIXL) {
            Nixl.assumeInstalled();
        }
        try (Side prefill = new Side(cell, "prefill", cell.prefillRanks, BLOCK, cell.pools != Pools.HOST);
                Side decode =
                        new Side(cell, "decode", cell.decodeRanks, cell.decodeBlockSize, cell.pools == Pools.DEVICE);
                ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            Optional<JsonFields> address = Optional.empty();
            int compared = 0;
            int number = 0;
            for (List<Asked> wave : WAVES) {
                List<Future<Integer>> done = new ArrayList<>();
                for (Asked asked : wave) {
                    Handover handover = new Handover(prefill, decode, "request-" + number++, asked);
                    // With connection parameters of the prefill instance both legs can be sent at once.
                    Optional<JsonFields> known = number % 2 == 0 ? address : Optional.empty();
                    done.add(clients.submit(
                            () -> known.isPresent() ? handover.atOnce(known.get()) : handover.oneAfterTheOther()));
                }
                for (Future<Integer> each : done) {
                    compared += each.get(60, TimeUnit.SECONDS);
                }
                HANDED_OVER.addAndGet(wave.size());
                address = prefill.address;
            }
            prefill.awaitRest();
            decode.awaitRest();
            assertThat(compared).as("tokens compared").isPositive();
            TOKENS_COMPARED.addAndGet(compared);
            // The side that moves bytes counts them: prefill for requests with both legs at once, else decode.
            assertThat(prefill.sum("vllm:nixl_bytes_transferred")).isPositive();
            if (cell.push) {
                assertThat(decode.sum("vllm:nixl_bytes_transferred")).isZero();
            } else {
                assertThat(decode.sum("vllm:nixl_bytes_transferred")).isPositive();
            }
            for (Side side : List.of(prefill, decode)) {
                for (String trouble : List.of(
                        "baton:kv_handoff_rejected",
                        "vllm:nixl_num_failed_transfers",
                        "vllm:nixl_num_failed_notifications",
                        "vllm:nixl_num_kv_expired_reqs",
                        "baton:kv_orphaned_leases")) {
                    assertThat(side.sum(trouble))
                            .as("%s of %s", trouble, side.id)
                            .isZero();
                }
            }
        }
    }

    private record Handover(Side prefill, Side decode, String id, Asked asked) {
        int oneAfterTheOther() throws Exception {
            RequestOutput first = prefill.ask(id, asked.prompt, SamplingParams.greedy(1), parse(KEEP))
                    .get(60, TimeUnit.SECONDS);
            JsonFields params = first.kvTransferParams().orElseThrow();
            prefill.address = Optional.of(address(params));
            return check(decode.ask(id, asked.prompt, ANSWER, params).get(60, TimeUnit.SECONDS));
        }

        int atOnce(JsonFields address) throws Exception {
            Future<RequestOutput> second = decode.ask(id, asked.prompt, ANSWER, address);
            prefill.ask(id, asked.prompt, SamplingParams.greedy(1), parse(KEEP)).get(60, TimeUnit.SECONDS);
            return check(second.get(60, TimeUnit.SECONDS));
        }

        /** What a client knows of an instance before it is asked. */
        private static JsonFields address(JsonFields params) {
            ObjectNode known = Instances.JSON.createObjectNode().put("do_remote_prefill", true);
            for (String name : List.of("remote_engine_id", "remote_host", "remote_port", "tp_size")) {
                known.set(name, params.value(name).orElseThrow());
            }
            return JsonFields.of("kv_transfer_params", known);
        }

        private static JsonFields parse(String params) {
            return JsonFields.parse("kv_transfer_params", params);
        }

        /** @return tokens whose bytes were compared */
        private int check(RequestOutput output) {
            String what = "%s of %d tokens, -Dtests.seed=%d".formatted(id, asked.prompt.length, SEED);
            assertThat(tokens(output)).as(what).isEqualTo(asked.answer);
            assertThat(asked.prompt.length - output.cachedTokens())
                    .as("computed for %s", what)
                    .isLessThanOrEqualTo(1);
            Optional<Loaded> loaded = decode.pool.loaded(id);
            if (loaded.isEmpty()) {
                return 0;
            }
            // The last token is computed once more where it decodes.
            int from = loaded.get().from();
            int to = Math.min(loaded.get().to(), asked.prompt.length - 1);
            assertThat(Arrays.copyOfRange(decode.pool.digests(id).orElseThrow(), from, to))
                    .as("KV of tokens from %d of %s", from, what)
                    .isEqualTo(Arrays.copyOfRange(prefill.pool.digests(id).orElseThrow(), from, to));
            return to - from;
        }
    }

    private static Future<RequestOutput> submit(
            LocalEngine engine, String id, int[] prompt, SamplingParams sampling, Optional<JsonFields> params) {
        GenerationRequest request = new GenerationRequest(id, prompt, sampling, params, Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }

    private static int[] tokens(RequestOutput output) {
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output.tokens();
    }

    /** One engine. */
    private static final class Side implements AutoCloseable {
        private final String id;
        private final WatchedPool pool;
        private final LocalEngine engine;
        private volatile Optional<JsonFields> address = Optional.empty();
        private final Queue<Measurement> measured = new ConcurrentLinkedQueue<>();

        Side(Cell cell, String name, int ranks, int blockSize, boolean device) throws IOException {
            id = name + " of " + cell;
            pool = WatchedPool.of(id);
            KvTransferConfig.Builder transfer = KvTransferConfig.builder(
                            cell.push ? "WatchedPool$Push" : "WatchedPool$Pull", KvRole.BOTH)
                    .modulePath(WatchedPool.class.getPackageName())
                    .engineId(id)
                    .loadFailurePolicy(LoadFailurePolicy.FAIL)
                    .extra("side_channel_host", "127.0.0.1")
                    .extra("side_channel_port", 0);
            cell.way.settings().forEach(transfer::extra);
            engine = LocalEngine.start(
                    config(blockSize, ranks).kvTransfer(transfer.build()).build(),
                    new EngineListener() {
                        @Override
                        public void onMeasurements(List<Measurement> measurements) {
                            measured.addAll(measurements);
                        }
                    },
                    () -> device ? new RefusingBackend() : ModelBackends.on(Device.CPU));
        }

        Future<RequestOutput> ask(String requestId, int[] prompt, SamplingParams sampling, JsonFields params) {
            return submit(engine, requestId, prompt, sampling, Optional.of(params));
        }

        double sum(String name) {
            return measured.stream()
                    .filter(each -> each.name().equals(name))
                    .mapToDouble(Measurement::value)
                    .sum();
        }

        void awaitRest() throws Exception {
            Await.until(
                    Duration.ofSeconds(15),
                    () -> id + " still has blocks: " + engine.status(),
                    () -> engine.status().usedBlocks() == 0);
        }

        @Override
        public void close() {
            engine.close();
            WatchedPool.forget(id);
        }
    }
}
