package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.nixl.MemoryNet.MemoryRuntime;
import baton.connectors.nixl.NixlHandshake.Metadata;
import baton.connectors.nixl.NixlHandshake.Regions;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.TransferMode;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.PoolMemory;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.RefusingMemory;
import baton.testkit.VirtualTicker;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.Parameter;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Blocks of a vLLM instance: their description in its handshake, and reading them. The owner is memory in vLLM's layouts, filled with
 * the keys and values of a prompt, beside a decode instance.
 */
@Timeout(300)
@ParameterizedClass(name = "pools in memory of the {0}")
@EnumSource
class VllmOwnerTest {
    /** Where the owner's blocks and the decode instance's pools are. */
    @Parameter
    private PoolMemory pools = PoolMemory.HOST;

    private static final int LAYERS = 3;
    private static final int HEADS = 4;
    private static final int DIMS = 32;
    private static final int BLOCKS = 24;
    private static final int LENGTH = 75;

    private final VirtualTicker ticker = new VirtualTicker();
    private final MemoryNet net = new MemoryNet(ticker);
    private final MemoryRuntime runtime = net.runtime();
    private final Arena arena = Arena.ofShared();
    private final List<Measurement> measured = new ArrayList<>();
    private final List<TransferAgent> agents = new ArrayList<>();
    private final List<Metadata> ranks = new ArrayList<>();
    private final List<Rank> asked = new ArrayList<>();
    private String hash = "hash";

    /**
     * @param layout {@code kv_cache_layout}
     * @param backend {@code attn_backend_name}
     * @param isa of CPU_ATTN's packing, or none
     * @param kernelBlock tokens of a kernel's block
     * @param pages kernel's blocks in one that requests name
     */
    record Owner(String layout, String backend, String isa, int kernelBlock, int pages, int tensorParallelSize) {}

    @AfterEach
    void stop() {
        agents.forEach(TransferAgent::close);
        arena.close();
    }

    private static KvLayout layout(int tensorParallelSize, int blockSize) {
        return new KvLayout(LAYERS, Math.max(1, HEADS / tensorParallelSize), DIMS, blockSize, DType.BF16);
    }

    private static ConnectorContext context(
            VirtualTicker ticker, Map<String, Object> extra, int tensorParallelSize, int blockSize) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .engineId("d")
                .bufferDevice("cuda")
                .extra("side_channel_port", 0)
                .extra("enforce_handshake_compat", false);
        extra.forEach(config::extra);
        return new ConnectorContext(
                config.build(),
                new ModelFingerprint("fake", "00"),
                layout(tensorParallelSize, blockSize),
                layout(1, blockSize),
                tensorParallelSize,
                1,
                ticker);
    }

    /** Starts an owner that has a prompt's keys and values: its {@code remote_block_ids}. */
    private int[] own(Owner owner) {
        int size = owner.kernelBlock;
        int[] logical;
        try (FakeEngine shadow = new FakeEngine(
                new NixlConnector(net.runtime()), context(ticker, Map.of(), owner.tensorParallelSize, size), BLOCKS)) {
            Running running = shadow.admit(new FakeKvRequest("p-1", FakeKvRequest.counting(1, LENGTH), size), 0);
            shadow.step(new Share(running, LENGTH));
            int pages = running.blockTable().length;
            logical = new int[Math.ceilDiv(pages, owner.pages)];
            // Neither neighbours nor in order.
            Arrays.setAll(logical, i -> BLOCKS / owner.pages - 1 - 2 * i);
            for (KvCache cache : shadow.caches()) {
                boolean blocksFirst = owner.layout.startsWith("B");
                KvLayout layout = cache.layout();
                long page = layout.layerBytes();
                MemorySegment memory = arena.allocate(BLOCKS * layout.blockBytes(), 64);
                for (int i = 0; i < pages; i++) {
                    int block = logical[i / owner.pages] * owner.pages + i % owner.pages;
                    for (int layer = 0; layer < LAYERS; layer++) {
                        long at = blocksFirst
                                ? block * layout.blockBytes() + layer * page
                                : (layer * (long) BLOCKS + block) * page;
                        reorder(owner, layout, cache.layer(running.blockTable()[i], layer), memory.asSlice(at, page));
                    }
                }
                KvMemory where = pools == PoolMemory.HOST
                        ? new KvMemory.Host(memory, Optional.empty())
                        : new RefusingMemory(memory).memory();
                long[] addresses = new long[LAYERS];
                Arrays.setAll(addresses, layer -> where.address() + layer * (blocksFirst ? page : BLOCKS * page));
                long[] lengths = new long[LAYERS];
                Arrays.fill(lengths, page);
                long[] strides = new long[LAYERS];
                Arrays.fill(strides, blocksFirst ? layout.blockBytes() : page);
                TransferAgent agent = runtime.transferAgent(
                        JsonFields.empty(""),
                        "localhost",
                        NixlSettings.of(JsonFields.empty(""), Map.of()).access());
                register(agent, where);
                agents.add(agent);
                ranks.add(new Metadata(
                        "vllm-1",
                        agent.metadata(),
                        0,
                        BLOCKS,
                        owner.layout,
                        size,
                        owner.backend,
                        owner.pages,
                        new Regions(
                                addresses,
                                lengths,
                                strides,
                                Optional.of(IntStream.range(0, LAYERS)
                                        .mapToObj(layer -> "model.layers." + layer + ".self_attn.attn")
                                        .toList()),
                                Optional.of(Collections.nCopies(LAYERS, pools == PoolMemory.HOST ? "DRAM" : "VRAM")),
                                Optional.of(new int[LAYERS])),
                        Optional.empty()));
            }
            shadow.end(running, RequestEnd.LENGTH);
        }
        return logical;
    }

    private static void register(TransferAgent agent, KvMemory memory) {
        try {
            TransferAgent.Registration _ = agent.register(new Region(memory, false));
        } catch (TransferException e) {
            throw new AssertionError(e);
        }
    }

    /** Writes a page as the owner has it. */
    private static void reorder(Owner owner, KvLayout layout, MemorySegment from, MemorySegment to) {
        int size = layout.blockSize();
        for (int head = 0; head < layout.kvHeads(); head++) {
            for (int token = 0; token < size; token++) {
                for (int dim = 0; dim < DIMS; dim++) {
                    int area = head * 2 * size * DIMS;
                    int entry = owner.layout.endsWith("NHC")
                            ? (token * layout.kvHeads() + head) * 2 * DIMS
                            : area + token * 2 * DIMS;
                    int key = switch (owner.isa) {
                        case "vec" -> area + dim * size + token;
                        case "amx" -> area + token / 16 * 16 * DIMS + dim / 2 * 32 + token % 16 * 2 + dim % 2;
                        default -> entry + dim;
                    };
                    int value = switch (owner.isa) {
                        case "vec" -> area + size * DIMS + token * DIMS + dim;
                        case "amx" ->
                            area + size * DIMS + dim / 16 * 16 * size + token / 2 * 32 + dim % 16 * 2 + token % 2;
                        default -> entry + DIMS + dim;
                    };
                    int own = area + token * 2 * DIMS + dim;
                    to.setAtIndex(ValueLayout.JAVA_SHORT, key, from.getAtIndex(ValueLayout.JAVA_SHORT, own));
                    to.setAtIndex(ValueLayout.JAVA_SHORT, value, from.getAtIndex(ValueLayout.JAVA_SHORT, own + DIMS));
                }
            }
        }
    }

    private FakeEngine decode(Owner owner, Map<String, Object> extra, int tensorParallelSize, int blockSize) {
        Map<String, Object> all = new HashMap<>(extra);
        if (!owner.isa.equals("none")) {
            all.put("vllm_cpu_attn_isa", owner.isa);
        }
        if (owner.tensorParallelSize > HEADS) {
            all.put("vllm_tp_size", owner.tensorParallelSize);
        }
        ConnectorContext context = context(ticker, all, tensorParallelSize, blockSize);
        VllmRank reader = NixlSettings.of(context.config().extra(), Map.of()).vllmRank(context);
        PeerHandshake vllm = (_, rank, _) -> {
            asked.add(rank);
            // A side channel of vLLM's would end here.
            assertThat(rank.tensor()).isLessThan(ranks.size());
            return new PeerHandshake.Answer(reader.info(hash, ranks.get(rank.tensor()), rank), OptionalDouble.empty());
        };
        return new FakeEngine(new NixlConnector(runtime, _ -> vllm), context, BLOCKS, pools);
    }

    private static JsonFields reference(int[] blocks, int tensorParallelSize) {
        return JsonFields.parse(
                "kv_transfer_params", """
                {"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [%s],
                 "remote_engine_id": "vllm-1", "remote_request_id": "cmpl-x-0-0123abcd", "remote_host": "localhost",
                 "remote_port": 5600, "tp_size": %d, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": %d,
                 "remote_blocks_expiry_time": null, "transfer_mode": "pull"}
                """.formatted(Arrays.toString(blocks), tensorParallelSize, LENGTH));
    }

    private Running load(FakeEngine decode, JsonFields params) {
        int blockSize = decode.cache().layout().blockSize();
        Running running = decode.admit(
                new FakeKvRequest("d-1", FakeKvRequest.counting(1, LENGTH), blockSize).withKvTransferParams(params), 0);
        for (int i = 0; running.isLoading(); i++) {
            assertThat(i).as("steps").isLessThan(100);
            step(decode);
        }
        decode.resume(running);
        return running;
    }

    private void step(FakeEngine engine) {
        WorkerReport report = engine.idleStep();
        measured.addAll(report.measurements());
        measured.addAll(engine.scheduler().takeMeasurements());
    }

    private static List<String> notifications(TransferAgent agent) {
        return agent.takeNotifications().stream()
                .map(Notification::message)
                .map(message -> new String(message, StandardCharsets.UTF_8))
                .filter(text -> !text.startsWith("HB:"))
                .toList();
    }

    @ParameterizedTest
    @CsvSource({
        "LBHNC, FLASH_ATTN, none, 16, 1, 1, 1, 16",
        "BLHNC, FLASHINFER, none, 16, 1, 1, 1, 16",
        "LBNHC, FLASH_ATTN, none, 16, 1, 1, 1, 16",
        "LBNHC, TRITON_ATTN, none, 32, 1, 1, 1, 32",
        "LBHNC, CPU_ATTN, vec, 32, 1, 1, 1, 32",
        "LBHNC, CPU_ATTN, amx, 32, 1, 1, 1, 32",
        // Kernel's blocks are parts of those that the reference names.
        "LBHNC, FLASHINFER, none, 16, 4, 1, 1, 16",
        "LBHNC, CPU_ATTN, vec, 32, 2, 1, 1, 32",
        // Other block sizes.
        "LBHNC, FLASH_ATTN, none, 16, 1, 1, 1, 32",
        "LBHNC, FLASH_ATTN, none, 32, 1, 1, 1, 16",
        "LBNHC, FLASH_ATTN, none, 32, 1, 1, 1, 16",
        // Other parallel sizes.
        "LBHNC, FLASH_ATTN, none, 16, 1, 2, 1, 16",
        "LBHNC, FLASH_ATTN, none, 16, 1, 1, 2, 16",
        "LBNHC, FLASH_ATTN, none, 16, 1, 2, 1, 16",
        "LBNHC, FLASHINFER, none, 16, 1, 1, 2, 32",
        "LBHNC, CPU_ATTN, vec, 32, 1, 4, 2, 32",
        "LBHNC, FLASH_ATTN, none, 16, 1, 8, 1, 16",
        "LBHNC, FLASH_ATTN, none, 16, 1, 8, 2, 16",
        "LBHNC, CPU_ATTN, amx, 32, 1, 1, 2, 32"
    })
    void keysAndValuesAreThoseOfThePrompt(
            String layout, String backend, String isa, int kernelBlock, int pages, int ownRanks, int ranks, int size) {
        Owner owner = new Owner(layout, backend, isa, kernelBlock, pages, ownRanks);
        int[] blocks = own(owner);
        try (FakeEngine decode = decode(owner, Map.of(), ranks, size)) {
            Running running = load(decode, reference(blocks, ownRanks));
            assertThat(running.computedTokens()).isEqualTo(LENGTH - 1);
            assertThat(decode.holds(running, 0, LENGTH - 1)).isTrue();
            // Each rank waits for as many completions as ranks read from it.
            int readers = Math.max(1, ranks / ownRanks);
            for (TransferAgent agent : agents) {
                assertThat(notifications(agent)).hasSize(readers).containsOnly("cmpl-x-0-0123abcd:" + readers);
            }
            assertThat(Measured.count("baton:kv_unverified_loads", measured)).isEqualTo(1);
            decode.step(new Share(running, running.remainingTokens()));
            decode.end(running, RequestEnd.LENGTH);
        }
    }

    private void nothingIsLoaded(Owner owner, Map<String, Object> extra, int size, JsonFields params) {
        try (FakeEngine decode = decode(owner, extra, 1, size)) {
            Running running = load(decode, params);
            assertThat(running.computedTokens()).isZero();
            decode.step(new Share(running, running.remainingTokens()));
            decode.end(running, RequestEnd.LENGTH);
        }
        assertThat(Measured.count("baton:kv_unverified_loads", measured)).isZero();
    }

    private static JsonFields with(JsonFields params, String name, Object value) {
        return JsonFields.parse(
                "kv_transfer_params",
                params.toString().replaceFirst("\"%s\":[^,}]*".formatted(name), "\"%s\":%s".formatted(name, value)));
    }

    /** The prefill instance has computed another prompt: one of a token less, as without a first token, has as many blocks. */
    @ParameterizedTest
    @ValueSource(ints = {1, LENGTH - 33, LENGTH - 1, LENGTH + 1, LENGTH + 5, LENGTH + 100})
    void blocksOfAPromptOfAnotherLengthAreNotReadAndGivenBack(int tokens) {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        nothingIsLoaded(owner, Map.of(), 16, with(reference(own(owner), 1), "remote_num_tokens", tokens));
        assertThat(Measured.rejections(measured)).containsExactly("mismatch");
        assertThat(notifications(agents.getFirst())).containsExactly("cmpl-x-0-0123abcd:1");
    }

    @Test
    void aReferenceThatDoesNotSayItsLengthIsBelieved() {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        int[] blocks = own(owner);
        try (FakeEngine decode = decode(owner, Map.of(), 1, 16)) {
            Running running = load(decode, with(reference(blocks, 1), "remote_num_tokens", "null"));
            assertThat(decode.holds(running, 0, LENGTH - 1)).isTrue();
            decode.step(new Share(running, running.remainingTokens()));
            decode.end(running, RequestEnd.LENGTH);
        }
    }

    /** The blocks of an earlier turn are the beginning of the next turn's prompt. */
    @ParameterizedTest
    @CsvSource({"48, 48", "76, 0"})
    void blocksOfAnEarlierTurnAreReadUnlessTheyAreOfMoreTokensThanThePrompt(int tokens, int loaded) {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        JsonFields turn = with(
                with(with(reference(own(owner), 1), "do_remote_prefill", false), "do_remote_decode", true),
                "remote_num_tokens",
                tokens);
        Map<String, Object> extra = Map.of("bidirectional_kv_xfer", true, "kv_recompute_threshold", 8);
        try (FakeEngine prefill = decode(owner, extra, 1, 16)) {
            Running running = load(prefill, turn);
            assertThat(running.computedTokens()).isEqualTo(loaded);
            assertThat(prefill.holds(running, 0, loaded)).isTrue();
            prefill.step(new Share(running, running.remainingTokens()));
            prefill.end(running, RequestEnd.ABORTED);
        }
    }

    /** The prefill pool is being upgraded. */
    @ParameterizedTest
    @CsvSource({"0.32.0, true", "0.33.0, true", "0.34.0, false"})
    void anOwnerOfEachVersionThatIsExpectedIsRead(String version, boolean read) {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        JsonFields params = reference(own(owner), 1);
        hash = VllmCompatibility.of(JsonFields.parse(
                        "vllm_compat",
                        "{\"version\": \"" + version + "\", \"model\": \"m\", \"attn_backend_name\": \"FLASH_ATTN\"}"))
                .hashes(layout(1, 16), TransferMode.PULL)
                .getFirst();
        Map<String, Object> extra = Map.of(
                "enforce_handshake_compat",
                true,
                "vllm_compat",
                Map.of(
                        "version", List.of("0.32.0", "0.33.0"),
                        "model", "m",
                        "attn_backend_name", "FLASH_ATTN"));
        if (!read) {
            nothingIsLoaded(owner, extra, 16, params);
            return;
        }
        try (FakeEngine decode = decode(owner, extra, 1, 16)) {
            Running running = load(decode, params);
            assertThat(decode.holds(running, 0, LENGTH - 1)).isTrue();
            decode.step(new Share(running, running.remainingTokens()));
            decode.end(running, RequestEnd.LENGTH);
        }
    }

    /** After vLLM's sleep the same engine has its memory elsewhere. */
    @Test
    void anOwnerThatHasRegisteredItsMemoryAnewIsAskedAgain() {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        JsonFields params = reference(own(owner), 1);
        try (FakeEngine decode = decode(owner, Map.of(), 1, 16)) {
            for (int generation : new int[] {0, 1, 1, 2, 1}) {
                if (generation == 2) {
                    agents.getFirst().close();
                    ranks.clear();
                    own(owner);
                }
                JsonFields next = generation == 0
                        ? params
                        : with(params, "transfer_mode", "\"pull\", \"remote_registration_generation\": " + generation);
                ticker.advance(Duration.ofSeconds(1));
                Running running = load(decode, next);
                assertThat(decode.holds(running, 0, LENGTH - 1)).isTrue();
                decode.step(new Share(running, running.remainingTokens()));
                decode.end(running, RequestEnd.LENGTH);
            }
        }
        assertThat(asked).as("handshakes").hasSize(3);
    }

    @Test
    void packedBlocksOfAnUnknownOrderAreNotRead() {
        Owner owner = new Owner("LBHNC", "CPU_ATTN", "none", 32, 1, 1);
        nothingIsLoaded(owner, Map.of(), 32, reference(own(owner), 1));
        assertThat(Measured.count("vllm:nixl_num_failed_transfers", measured)).isEqualTo(1);
    }

    @Test
    void packedBlocksOfAnotherSizeAreNotRead() {
        Owner owner = new Owner("LBHNC", "CPU_ATTN", "vec", 32, 1, 1);
        nothingIsLoaded(owner, Map.of(), 16, reference(own(owner), 1));
        assertThat(Measured.count("vllm:nixl_num_failed_transfers", measured)).isEqualTo(1);
    }

    @Test
    void blocksThatCannotBeVerifiedAreGivenBackWhereTheyMustBe() {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        nothingIsLoaded(owner, Map.of("require_verified_kv", true), 16, reference(own(owner), 1));
        assertThat(Measured.rejections(measured)).containsExactly("unverified");
        assertThat(notifications(agents.getFirst())).containsExactly("cmpl-x-0-0123abcd:1");
    }

    /** vLLM's side channel ends for good when it is asked for a rank that does not exist. */
    @Test
    void aReferenceThatClaimsMoreRanksAsksForNoneThatDoesNotExist() {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        nothingIsLoaded(owner, Map.of(), 16, reference(own(owner), 4));
        assertThat(asked).isNotEmpty().containsOnly(Rank.FIRST);
    }

    @Test
    void blocksThatTheOwnerDoesNotHaveAreNotRead() {
        Owner owner = new Owner("LBHNC", "FLASH_ATTN", "none", 16, 1, 1);
        int[] blocks = own(owner);
        blocks[1] = BLOCKS;
        nothingIsLoaded(owner, Map.of(), 16, reference(blocks, 1));
        assertThat(Measured.rejections(measured)).containsExactly("invalid");
    }
}
