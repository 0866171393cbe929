package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.EngineSide.Asked;
import baton.cli.WatchedPool.Loaded;
import baton.cuda.driver.Driver;
import baton.cuda.driver.NativeDriver;
import baton.cuda.model.CudaBackend;
import baton.cuda.sim.SimulatedDriver;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Device;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
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
    /** The prompts of the second wave, with a simulated GPU, where a prompt takes seconds. */
    private static final int GPU_PROMPTS = 6;

    private static final int BLOCK = EngineSide.BLOCK;
    private static final int LONGEST = 500;
    private static final int SECONDS = 300;
    private static final String KEEP = "{\"do_remote_decode\": true}";

    /** The driver of both sides. */
    private static final Driver GPU = new SimulatedDriver();

    /** Prompts that are asked at once, with the answers of an engine alone. */
    private static final List<List<Asked>> WAVES = new ArrayList<>();

    private static final AtomicInteger HANDED_OVER = new AtomicInteger();
    private static final AtomicInteger TOKENS_COMPARED = new AtomicInteger();

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
        DEVICE,
        GPU_TO_HOST,
        HOST_TO_GPU,
        GPU;

        boolean isDevice(boolean prefill) {
            return this == DEVICE || prefill && this == DEVICE_TO_HOST;
        }

        boolean isGpu(boolean prefill) {
            return this == GPU || this == (prefill ? GPU_TO_HOST : HOST_TO_GPU);
        }
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

    /** The cells with a simulated GPU; {@code HandoverOnDeviceTest} hands over without host memory in between. */
    static List<Cell> gpuCells() {
        return List.of(
                new Cell(Way.SHARED_MEMORY, Pools.GPU_TO_HOST, false, 1, 1, BLOCK),
                new Cell(Way.SHARED_MEMORY, Pools.HOST_TO_GPU, true, 1, 1, BLOCK),
                new Cell(Way.SHARED_MEMORY, Pools.GPU, false, 1, 1, 2 * BLOCK),
                new Cell(Way.TCP, Pools.HOST_TO_GPU, false, 2, 1, BLOCK));
    }

    @BeforeAll
    static void askOneEngineAlone() throws Exception {
        int[] shared = Ledgers.prompt(6 * BLOCK, 77);
        // The answer to the first request has the prefill instance's connection parameters.
        WAVES.addAll(EngineSide.askOneAlone(
                PROMPTS, SEED, 1, MOST_AT_ONCE, (random, earlier) -> prompt(random, shared, earlier)));
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
                int[] next = concat(concat(turn.prompt(), turn.answer()), Arrays.copyOf(own, 1 + own.length / 4));
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

    @Tag("thorough")
    @ParameterizedTest(name = "{0}")
    @MethodSource("gpuCells")
    void tokensAndBytesAreEqualOnAGpu(Cell cell) throws Exception {
        List<Asked> second = WAVES.get(1);
        tokensAndBytesAreEqualOnBothSides(
                cell, List.of(WAVES.getFirst(), second.subList(0, Math.min(GPU_PROMPTS, second.size()))));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAndBytesAreEqualOnBothSides(Cell cell) throws Exception {
        tokensAndBytesAreEqualOnBothSides(cell, WAVES);
    }

    private static void tokensAndBytesAreEqualOnBothSides(Cell cell, List<List<Asked>> waves) throws Exception {
        if (cell.way == Way.NIXL) {
            Nixl.assumeInstalled();
        }
        try (Side prefill = new Side(cell, "prefill", cell.prefillRanks, BLOCK, true);
                Side decode = new Side(cell, "decode", cell.decodeRanks, cell.decodeBlockSize, false);
                ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            Optional<JsonFields> address = Optional.empty();
            int compared = 0;
            int number = 0;
            for (List<Asked> wave : waves) {
                List<Future<Integer>> done = new ArrayList<>();
                for (Asked asked : wave) {
                    Handover handover = new Handover(prefill, decode, "request-" + number++, asked);
                    // With connection parameters of the prefill instance both legs can be sent at once.
                    Optional<JsonFields> known = number % 2 == 0 ? address : Optional.empty();
                    done.add(clients.submit(
                            () -> known.isPresent() ? handover.atOnce(known.get()) : handover.oneAfterTheOther()));
                }
                for (Future<Integer> each : done) {
                    compared += each.get(SECONDS, TimeUnit.SECONDS);
                }
                HANDED_OVER.addAndGet(wave.size());
                address = prefill.address;
            }
            prefill.engine.awaitRest();
            decode.engine.awaitRest();
            assertThat(compared).as("tokens compared").isPositive();
            TOKENS_COMPARED.addAndGet(compared);
            // The side that moves bytes counts them: prefill for requests with both legs at once, else decode.
            assertThat(prefill.engine.sum("vllm:nixl_bytes_transferred")).isPositive();
            if (cell.push) {
                assertThat(decode.engine.sum("vllm:nixl_bytes_transferred")).isZero();
            } else {
                assertThat(decode.engine.sum("vllm:nixl_bytes_transferred")).isPositive();
            }
            for (Side side : List.of(prefill, decode)) {
                side.engine.assertNone(
                        "baton:kv_handoff_rejected",
                        "vllm:nixl_num_failed_transfers",
                        "vllm:nixl_num_failed_notifications",
                        "vllm:nixl_num_kv_expired_reqs",
                        "baton:kv_orphaned_leases");
            }
        }
    }

    private record Handover(Side prefill, Side decode, String id, Asked asked) {
        int oneAfterTheOther() throws Exception {
            RequestOutput first = prefillLeg().get(SECONDS, TimeUnit.SECONDS);
            JsonFields params = first.kvTransferParams().orElseThrow();
            prefill.address = Optional.of(address(params));
            return check(decodeLeg(params));
        }

        int atOnce(JsonFields address) throws Exception {
            Future<RequestOutput> second = decodeLeg(address);
            var _ = prefillLeg().get(SECONDS, TimeUnit.SECONDS);
            return check(second);
        }

        private Future<RequestOutput> prefillLeg() {
            return prefill.engine.ask(
                    id,
                    asked.prompt(),
                    SamplingParams.greedy(1),
                    Optional.of(JsonFields.parse("kv_transfer_params", KEEP)));
        }

        private Future<RequestOutput> decodeLeg(JsonFields params) {
            return decode.engine.ask(id, asked.prompt(), EngineSide.ANSWER, Optional.of(params));
        }

        /** The parameters that a client has of an instance before it asks. */
        private static JsonFields address(JsonFields params) {
            ObjectNode known = Instances.JSON.createObjectNode().put("do_remote_prefill", true);
            for (String name : List.of("remote_engine_id", "remote_host", "remote_port", "tp_size")) {
                known.set(name, params.value(name).orElseThrow());
            }
            return JsonFields.of("kv_transfer_params", known);
        }

        /** @return tokens with compared bytes */
        private int check(Future<RequestOutput> answer) throws Exception {
            String what = "%s of %d tokens, -Dtests.seed=%d".formatted(id, asked.prompt().length, SEED);
            EngineSide.check(answer, asked, what);
            Optional<Loaded> loaded = decode.pool.loaded(id);
            if (loaded.isEmpty()) {
                return 0;
            }
            // The last token is computed once more where it decodes.
            int from = loaded.get().from();
            int to = Math.min(loaded.get().to(), asked.prompt().length - 1);
            assertThat(Arrays.copyOfRange(decode.pool.digests(id).orElseThrow(), from, to))
                    .as("KV of tokens from %d of %s", from, what)
                    .isEqualTo(Arrays.copyOfRange(prefill.pool.digests(id).orElseThrow(), from, to));
            return to - from;
        }
    }

    /** An engine, and its pool's content. */
    private static final class Side implements AutoCloseable {
        private final String id;
        private final WatchedPool pool;
        private final EngineSide engine;
        private volatile Optional<JsonFields> address = Optional.empty();

        Side(Cell cell, String name, int ranks, int blockSize, boolean prefill) throws Exception {
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
            engine = new EngineSide(
                    EngineSide.config(blockSize, ranks, 1)
                            .kvTransfer(transfer.build())
                            .build(),
                    backend(cell.pools, prefill));
        }

        private static ModelBackend backend(Pools pools, boolean prefill) {
            if (pools.isGpu(prefill)) {
                return new CudaBackend(() -> new NativeDriver.Search.Found(GPU));
            }
            return pools.isDevice(prefill) ? RefusingBackend.create() : ModelBackends.on(Device.CPU);
        }

        @Override
        public void close() {
            engine.close();
            WatchedPool.forget(id);
        }
    }
}
