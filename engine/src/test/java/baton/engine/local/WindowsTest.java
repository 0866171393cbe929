package baton.engine.local;

import static baton.engine.local.HandOverRequests.PREFILL;
import static baton.engine.local.HandOverRequests.ask;
import static baton.engine.local.HandOverRequests.askBoth;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

/** A model with layers that keep only the blocks within their window answers as one with layers that keep all. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class WindowsTest {
    private static final int WINDOW = 100;

    /** Answers of models that keep all blocks, with the window in all layers or not. */
    private final Map<Boolean, List<List<Integer>>> expected = new HashMap<>();

    /** The tiny model with a window in all layers, and in four of six. */
    private static Path model(Path directory, boolean inAll) throws IOException {
        for (String file : List.of("model.safetensors", "tokenizer.json", "tokenizer_config.json")) {
            Files.copy(LLMTest.MODEL.resolve(file), directory.resolve(file));
        }
        String fields = inAll ? "\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\"," : """
                  "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "use_sliding_window": true,
                  "no_rope_layers": [1, 1, 1, 0, 1, 0],
                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                      "sliding_attention", "full_attention"],
                  """;
        String config = Files.readString(LLMTest.MODEL.resolve("config.json"))
                .replace("\"architectures\": [\"LlamaForCausalLM\"],", fields + "\"sliding_window\": " + WINDOW + ",")
                .replace("\"model_type\": \"llama\",", "");
        Files.writeString(directory.resolve("config.json"), config);
        return directory;
    }

    private static LLM llm(Path model, UnaryOperator<EngineConfigBuilder> settings) {
        return new LLM(settings.apply(EngineConfig.of(model).dtype(DType.F32).threads(1))
                .build());
    }

    private static List<List<Integer>> answers(LLM llm, List<int[]> prompts) {
        return llm.generateTokens(prompts, greedy()).stream()
                .map(output -> Arrays.stream(output.tokens()).boxed().toList())
                .toList();
    }

    private List<List<Integer>> expected(Path model, boolean inAll) {
        return expected.computeIfAbsent(inAll, _ -> {
            try (LLM llm = llm(model, config -> config.disableHybridKvCacheManager(true))) {
                return answers(llm, prompts());
            }
        });
    }

    private static SamplingParams greedy() {
        return SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(24)
                .build();
    }

    /** Shorter and longer than the window, some with the beginnings of others. */
    private static List<int[]> prompts() {
        List<int[]> prompts = new ArrayList<>();
        for (int length : new int[] {1, 99, 100, 101, 300, 1200}) {
            prompts.add(LLMTest.prompt(length, length));
        }
        prompts.add(Arrays.copyOf(LLMTest.prompt(1200, 1200), 1100));
        prompts.add(Arrays.copyOf(LLMTest.prompt(300, 300), 200));
        return prompts;
    }

    @ParameterizedTest(name = "in all layers: {0}, tensor ranks {1}, stages {2}")
    @CsvSource({"true, 1, 1", "false, 2, 1"})
    void groupsChangeNoToken(boolean inAll, int tensor, int stages, @TempDir Path directory) throws IOException {
        Path model = model(directory, inAll);
        List<List<Integer>> answers = expected(model, inAll);
        ParallelConfig parallel = new ParallelConfig(tensor, stages, CpuBinding.NONE);
        // One request of 1,224 tokens is all that fits: others lose their blocks and begin again.
        int blocks = inAll ? 14 : 112;
        try (LLM llm = llm(
                model,
                config -> config.parallel(parallel)
                        .threads(tensor * stages)
                        .maxModelLen(1300)
                        .maxNumSeqs(8)
                        .maxNumBatchedTokens(64)
                        .numBlocks(blocks))) {
            assertThat(answers(llm, prompts())).isEqualTo(answers);
            assertThat(answers(llm, prompts())).as("with prefix hits").isEqualTo(answers);
        }
    }

    @Tag("thorough")
    @ParameterizedTest(name = "in all layers: {0}, tensor ranks {1}, stages {2}")
    @CsvSource({"false, 1, 1", "false, 1, 2", "false, 2, 3"})
    void groupsOfStagesChangeNoToken(boolean inAll, int tensor, int stages, @TempDir Path directory)
            throws IOException {
        groupsChangeNoToken(inAll, tensor, stages, directory);
    }

    @Test
    void theSameMemoryHoldsLongerSequences(@TempDir Path directory) throws IOException {
        Path model = model(directory, false);
        UnaryOperator<EngineConfigBuilder> small =
                config -> config.kvCacheBytes(6L << 20).maxModelLen(2000).maxNumBatchedTokens(128);
        assertThatThrownBy(() -> llm(model, config -> small.apply(config).disableHybridKvCacheManager(true)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("one request of max_model_len=2000 needs 125");
        try (LLM llm = llm(model, small)) {
            assertThat(llm.generateTokens(List.of(LLMTest.prompt(1, 1900)), SamplingParams.greedy(1)))
                    .hasSize(1);
        }
    }

    /** Prompts with beginnings cached by the decode instance, too; ranks that share heads and layers. */
    @ParameterizedTest(name = "{0}, at once: {1}, in all layers: {2}, tensor ranks {3} to {4}, stages {5}")
    @CsvSource({
        "NixlConnector, false, true, 1, 1, 1",
        "NixlConnector, false, false, 1, 1, 2",
        "NixlPushConnector, false, false, 2, 1, 1",
        "NixlConnector, true, false, 1, 2, 1"
    })
    void nixlHandsOverTheBlocksThatWindowsReach(
            String connector,
            boolean atOnce,
            boolean inAll,
            int prefillRanks,
            int decodeRanks,
            int stages,
            @TempDir Path directory)
            throws Exception {
        Path model = model(directory, inAll);
        List<List<Integer>> answers = expected(model, inAll);
        try (LocalEngine prefill = nixl(connector, model, prefillRanks, stages);
                LocalEngine decode = nixl(connector, model, decodeRanks, stages)) {
            for (int i = 0; i < answers.size(); i++) {
                int[] prompt = prompts().get(i);
                List<RequestOutput> both = atOnce ? askBoth(prefill, decode, "r" + i, prompt, 24) : List.of();
                RequestOutput first = atOnce ? both.getFirst() : ask(prefill, "r" + i, prompt, 1, PREFILL);
                JsonFields params = first.kvTransferParams().orElseThrow();
                RequestOutput second = atOnce ? both.getLast() : ask(decode, "r" + i, prompt, 24, params);
                assertThat(Arrays.stream(second.tokens()).boxed().toList()).isEqualTo(answers.get(i));
                assertThat(prompt.length - second.cachedTokens())
                        .as("computed of %d", prompt.length)
                        .isLessThanOrEqualTo(1);
                if (prompt.length == 1200) {
                    JsonNode named = params.toJson().get("remote_block_ids");
                    // 99 positions before the last one begin in the block of position 1,100.
                    assertThat(named.get(0).size()).isEqualTo(75 - 1100 / 16);
                    assertThat(named.size()).isEqualTo(inAll ? 1 : 3);
                    assertThat(inAll || named.get(2).size() == 75).isTrue();
                }
            }
            LLMTest.await(
                    () -> prefill.status().usedBlocks() == 0 && decode.status().usedBlocks() == 0);
        }
    }

    @Tag("thorough")
    @ParameterizedTest(name = "{0}, at once: {1}, in all layers: {2}, tensor ranks {3} to {4}, stages {5}")
    @CsvSource({
        "NixlConnector, false, false, 1, 1, 1",
        "NixlConnector, false, false, 2, 1, 1",
        "NixlConnector, false, false, 1, 2, 1",
        "NixlPushConnector, false, true, 1, 1, 1",
        "NixlPushConnector, false, false, 1, 1, 1",
        "NixlConnector, true, true, 1, 1, 1",
        "NixlConnector, true, false, 1, 1, 1",
        "NixlPushConnector, true, false, 1, 1, 2"
    })
    void nixlHandsThemOverInFurtherWays(
            String connector,
            boolean atOnce,
            boolean inAll,
            int prefillRanks,
            int decodeRanks,
            int stages,
            @TempDir Path directory)
            throws Exception {
        nixlHandsOverTheBlocksThatWindowsReach(connector, atOnce, inAll, prefillRanks, decodeRanks, stages, directory);
    }

    /** The decode instance keeps all positions of all layers: it cannot take the blocks, and computes the prompt. */
    @Test
    void groupsAreNotHandedOverToOneGroup(@TempDir Path directory) throws Exception {
        Path model = model(directory, false);
        int[] prompt = LLMTest.prompt(300, 300);
        // The decode instance cannot connect and says nothing, so the blocks are held until the lease expires.
        try (LocalEngine prefill =
                        LocalEngine.start(nixl("NixlConnector", model, 1).build(), EngineListener.NONE);
                LocalEngine decode = LocalEngine.start(
                        nixl("NixlConnector", model, 1)
                                .disableHybridKvCacheManager(true)
                                .build(),
                        EngineListener.NONE);
                LLM alone = llm(model, config -> config)) {
            RequestOutput first = ask(prefill, "r", prompt, 1, PREFILL);
            RequestOutput second =
                    ask(decode, "r", prompt, 24, first.kvTransferParams().orElseThrow());
            int[] other = LLMTest.prompt(301, 301);
            RequestOutput pushed = askBoth(prefill, decode, "s", other, 24).getLast();
            assertThat(List.of(
                            Arrays.stream(second.tokens()).boxed().toList(),
                            Arrays.stream(pushed.tokens()).boxed().toList()))
                    .isEqualTo(answers(alone, List.of(prompt, other)));
            assertThat(second.cachedTokens()).isZero();
            assertThat(pushed.cachedTokens()).isZero();
            LLMTest.await(() -> prefill.status().usedBlocks() == 0);
        }
    }

    /** A prefill instance that decodes on leaves blocks of the prompt behind; the next request is handed over. */
    @Test
    void aPromptWithBlocksBehindTheWindowIsNotHandedOver(@TempDir Path directory) throws Exception {
        try (LocalEngine prefill = nixl("NixlConnector", model(directory, false), 1, 1)) {
            int[] prompt = LLMTest.prompt(300, 300);
            assertThat(ask(prefill, "long", prompt, 24, PREFILL).kvTransferParams())
                    .isEmpty();
            LLMTest.await(() -> prefill.status().usedBlocks() == 0);
            assertThat(ask(prefill, "short", prompt, 1, PREFILL).kvTransferParams())
                    .isPresent();
        }
    }

    private static EngineConfigBuilder nixl(String connector, Path model, int leaseSeconds) {
        return EngineConfig.of(model)
                .dtype(DType.F32)
                .maxModelLen(1300)
                .maxNumSeqs(8)
                .maxNumBatchedTokens(64)
                .numBlocks(130)
                .threads(1)
                .kvTransfer(KvTransferConfig.builder(connector, KvRole.BOTH)
                        .extra("side_channel_port", 0)
                        .extra("transfer_agent", "embedded")
                        .extra("kv_lease_duration", leaseSeconds)
                        .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                        .build());
    }

    private static LocalEngine nixl(String connector, Path model, int ranks, int stages) throws IOException {
        return LocalEngine.start(
                nixl(connector, model, 8)
                        .parallel(new ParallelConfig(ranks, stages, CpuBinding.NONE))
                        .build(),
                EngineListener.NONE);
    }

    /** A prefill instance with an offloading store, too, hands prompts over to an instance without one. */
    @Test
    void connectorsInOneTakeGroupsIfAllOfThemDo(@TempDir Path directory) throws Exception {
        Path model = model(directory, false);
        List<List<Integer>> answers = expected(model, false);
        KvTransferConfig both = KvTransferConfig.builder("MultiConnector", KvRole.BOTH)
                .extra(
                        "connectors",
                        List.of(
                                Map.of(
                                        "kv_connector",
                                        "NixlConnector",
                                        "kv_connector_extra_config",
                                        Map.of("side_channel_port", 0, "transfer_agent", "embedded")),
                                Map.of(
                                        "kv_connector",
                                        "OffloadingConnector",
                                        "kv_connector_extra_config",
                                        Map.of("cpu_bytes_to_use", 64 << 20))))
                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                .build();
        // So few that blocks are used again, and come from memory.
        EngineConfig small =
                nixl("NixlConnector", model, 8).numBlocks(112).kvTransfer(both).build();
        try (LocalEngine prefill = LocalEngine.start(small, EngineListener.NONE);
                LocalEngine decode = nixl("NixlConnector", model, 1, 1)) {
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < answers.size(); i++) {
                    int[] prompt = prompts().get(i);
                    String id = "r" + round + "-" + i;
                    RequestOutput first = ask(prefill, id, prompt, 1, PREFILL);
                    JsonFields params = first.kvTransferParams().orElseThrow();
                    RequestOutput second = ask(decode, id, prompt, 24, params);
                    assertThat(Arrays.stream(second.tokens()).boxed().toList()).isEqualTo(answers.get(i));
                    assertThat(prompt.length - second.cachedTokens())
                            .as("computed of %d", prompt.length)
                            .isLessThanOrEqualTo(1);
                }
            }
        }
    }

    /** A second instance finds the first one's blocks in files. */
    @ParameterizedTest(name = "in all layers: {0}, tensor ranks {1}, stages {2}, blocks of a chunk {3}")
    @CsvSource({"true, 1, 1, 1", "false, 1, 1, 2"})
    void offloadedBlocksThatWindowsReachAreLoaded(
            boolean inAll, int tensor, int stages, int chunk, @TempDir Path directory, @TempDir Path files)
            throws IOException {
        Path model = model(directory, inAll);
        List<List<Integer>> answers = expected(model, inAll);
        UnaryOperator<EngineConfigBuilder> offloading =
                config -> config.parallel(new ParallelConfig(tensor, stages, CpuBinding.NONE))
                        .threads(tensor * stages)
                        .maxModelLen(1300)
                        .maxNumSeqs(8)
                        .maxNumBatchedTokens(64)
                        .numBlocks(130)
                        .kvTransfer(KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                                .extra("cpu_bytes_to_use", 64 << 20)
                                .extra("blocks_per_chunk", chunk)
                                .extra("load_timeout_seconds", 20)
                                .extra("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", files.toString())))
                                .build());
        try (LLM llm = llm(model, offloading)) {
            assertThat(answers(llm, prompts())).isEqualTo(answers);
        }
        try (LLM llm = llm(model, offloading)) {
            for (int i = 0; i < answers.size(); i++) {
                int[] prompt = prompts().get(i);
                RequestOutput output =
                        llm.generateTokens(List.of(prompt), greedy()).getFirst();
                assertThat(Arrays.stream(output.tokens()).boxed().toList()).isEqualTo(answers.get(i));
                assertThat(output.cachedTokens())
                        .as("of %d", prompt.length)
                        .isGreaterThanOrEqualTo(prompt.length / (16 * chunk) * 16 * chunk - 1);
            }
        }
    }

    @Tag("thorough")
    @ParameterizedTest(name = "in all layers: {0}, tensor ranks {1}, stages {2}, blocks of a chunk {3}")
    @CsvSource({"false, 1, 1, 1", "false, 2, 2, 1"})
    void offloadedBlocksOfRanksAreLoaded(
            boolean inAll, int tensor, int stages, int chunk, @TempDir Path directory, @TempDir Path files)
            throws IOException {
        offloadedBlocksThatWindowsReachAreLoaded(inAll, tensor, stages, chunk, directory, files);
    }

    @Test
    void aConnectorThatTakesBlocksOfAllLayersGetsThem(@TempDir Path directory, @TempDir Path storage)
            throws IOException {
        Path model = model(directory, false);
        UnaryOperator<EngineConfigBuilder> stored = config -> config.maxModelLen(400)
                .numBlocks(40)
                .kvTransfer(KvTransferConfig.builder("SharedStorageConnector", KvRole.BOTH)
                        .extra("shared_storage_path", storage.toString())
                        .build());
        try (LLM llm = llm(model, stored);
                LLM alone = llm(model, config -> config)) {
            List<int[]> prompt = List.of(LLMTest.prompt(300, 300));
            assertThat(answers(llm, prompt)).isEqualTo(answers(alone, prompt));
        }
        assertThatThrownBy(() -> llm(model, config -> stored.apply(config).disableHybridKvCacheManager(false)))
                .isInstanceOf(ConfigException.class)
                .hasMessage("disable_hybrid_kv_cache_manager: is false, but with its settings kv_connector"
                        + " SharedStorageConnector takes blocks of all layers only; leave it out");
    }
}
