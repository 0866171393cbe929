package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.ParallelConfig;
import baton.engine.SamplingParams;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A model with sliding windows whose layers keep only the blocks that these reach answers as one whose layers keep all. */
class WindowsTest {
    private static final int WINDOW = 100;

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
        SamplingParams greedy = SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(24)
                .build();
        return llm.generateTokens(prompts, greedy).stream()
                .map(output -> Arrays.stream(output.tokens()).boxed().toList())
                .toList();
    }

    /** Shorter and longer than the window, some with the beginnings of others. */
    private static List<int[]> prompts() {
        List<int[]> prompts = new ArrayList<>();
        for (int length : new int[] {1, 60, 99, 100, 101, 300, 700, 1200}) {
            prompts.add(LLMTest.prompt(length, length));
        }
        prompts.add(Arrays.copyOf(LLMTest.prompt(1200, 1200), 1100));
        prompts.add(Arrays.copyOf(LLMTest.prompt(700, 700), 400));
        return prompts;
    }

    @ParameterizedTest(name = "in all layers: {0}, tensor ranks {1}, stages {2}")
    @CsvSource({"true, 1, 1", "false, 1, 1", "false, 2, 1", "false, 1, 2", "false, 2, 3"})
    void groupsChangeNoToken(boolean inAll, int tensor, int stages, @TempDir Path directory) throws IOException {
        Path model = model(directory, inAll);
        List<List<Integer>> expected;
        try (LLM llm = llm(model, config -> config.disableHybridKvCacheManager(true))) {
            expected = answers(llm, prompts());
        }
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
            assertThat(answers(llm, prompts())).isEqualTo(expected);
            assertThat(answers(llm, prompts())).as("with prefix hits").isEqualTo(expected);
        }
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

    @Test
    void aConnectorTakesBlocksOfAllLayers(@TempDir Path directory) {
        EngineConfigBuilder config = LLMTest.config()
                .kvTransfer(KvTransferConfig.builder("SharedStorageConnector", KvRole.BOTH)
                        .extra("shared_storage_path", directory.toString())
                        .build());
        assertThat(config.build().hybrid()).isFalse();
        assertThat(LLMTest.config().build().hybrid()).isTrue();
        assertThatThrownBy(() -> config.disableHybridKvCacheManager(false).build())
                .isInstanceOf(ConfigException.class)
                .hasMessage("disable_hybrid_kv_cache_manager: is false, but connectors take blocks of all layers:"
                        + " leave it out, or kv_connector, which is SharedStorageConnector");
    }
}
