package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;
import static org.assertj.core.api.Assertions.within;

import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.gguf.ConvertedCheckpoint;
import baton.kv.DType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Surveys of the config.json files of published models, of damaged ones, and of checkpoints with and without weights. */
class CheckpointSurveyTest {
    private static final Path PUBLISHED = Path.of("src/test/resources/baton/engine/model/published");
    private static final JsonMapper JSON = JsonMapper.builder().build();

    @TempDir
    private Path directory;

    static List<String> published() throws IOException {
        try (Stream<Path> files = Files.list(PUBLISHED)) {
            return files.map(file -> file.getFileName().toString().replace(".json", ""))
                    .sorted()
                    .toList();
        }
    }

    private static ObjectNode config(String name) throws IOException {
        return (ObjectNode) JSON.readTree(Files.readString(PUBLISHED.resolve(name + ".json")));
    }

    private CheckpointSurvey survey(JsonNode config) throws IOException {
        Files.writeString(directory.resolve("config.json"), config.toString());
        return CheckpointSurvey.of(directory);
    }

    /** A model may be refused or not: more families become supported. */
    @ParameterizedTest
    @MethodSource("published")
    void everyPublishedModelIsSupportedOrHasFieldsThatAreRefused(String name) throws IOException {
        ObjectNode config = config(name);
        CheckpointSurvey survey = survey(config);
        assertThat(survey.architecture().orElseThrow())
                .startsWith(config.path("architectures").path(0).asString().split("For")[0]);
        assertThat(survey.missing().isPresent()).as("weights are missing").isEqualTo(survey.isSupported());
        if (survey.isSupported()) {
            assertThat(survey.missing().orElseThrow()).contains("model.safetensors");
            assertThat(survey.config()).isPresent();
        }
        for (String refusal : survey.refusals()) {
            assertThat(refusal).startsWith("config.json.");
            assertThat(config.propertyNames()).contains(refusal.split("[.:\\[]")[2]);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "llama-3.1-8b, 8030, 128",
        "qwen2.5-7b, 7616, 56",
        "qwen3-8b, 8191, 144",
        "qwen3-30b-a3b, 30532, 96",
        "gemma-3-1b, 1000, 26",
        "gemma-3-4b, 3880, 136",
        "phi-3-mini-4k, 3821, 384",
        "mistral-7b-v0.1, 7242, 128",
        "mixtral-8x7b, 46703, 128",
    })
    void supportedModelsHaveTheirPublishedSizes(String name, long millions, long cacheKib) throws IOException {
        CheckpointSurvey survey = survey(config(name));
        ModelConfig model = survey.config().orElseThrow();
        assertThat(survey.refusals()).isEmpty();
        assertThat(Math.round(model.parameters() / 1e6)).isEqualTo(millions);
        assertThat(new CpuBackend().blockBytes(model, 1, DType.BF16, 1, 1, false))
                .isEqualTo(cacheKib << 10);
    }

    @ParameterizedTest
    @CsvSource({
        "mamba-130m, architectures, ''",
        "falcon-7b, architectures, ''",
        "gpt2, architectures, ''",
        "qwen2-vl-7b, architectures, LlamaForCausalLM",
        "qwen2.5-7b-awq, quantization_config, Qwen2ForCausalLM",
        "qwen2.5-7b-gptq-int4, quantization_config, Qwen2ForCausalLM",
    })
    void refusedModelsAreRefusedByThatField(String name, String field, String likeIt) throws IOException {
        CheckpointSurvey survey = survey(config(name));
        assertThat(survey.refusals()).singleElement().asString().startsWith("config.json." + field + ": ");
        assertThat(survey.config().map(model -> model.recipe().architecture()).orElse(""))
                .isEqualTo(likeIt);
    }

    @Test
    void expertsInMxfp4TakeAThird() throws IOException {
        CheckpointSurvey packed = survey(config("gpt-oss-20b"));
        ModelConfig model = packed.config().orElseThrow();
        assertThat(packed.packing()).contains("experts in mxfp4");
        boolean kept = KernelChoice.here(model, DType.BF16, Quantization.NONE).multipliesPairs();
        assertThat(packed.savedBytes() / new CpuBackend().weightBytes(model, DType.BF16, Quantization.NONE))
                .isCloseTo(kept ? 0.63 : 0, within(0.01));
        ObjectNode unpacked = config("gpt-oss-20b");
        unpacked.remove("quantization_config");
        assertThat(survey(unpacked).savedBytes()).isZero();
    }

    @Test
    void expertsInMxfp4OfAGgufFileTakeAThirdToo() throws Exception {
        CheckpointSurvey packed = ofGguf("gpt-oss");
        assertThat(packed.packing()).contains("experts in mxfp4");
        assertThat(packed.savedBytes())
                .isEqualTo(
                        CheckpointSurvey.of(FamiliesTest.checkpoint("gpt-oss")).savedBytes());
        CheckpointSurvey unpacked = ofGguf("gpt-oss-bf16");
        assertThat(unpacked.packing()).isEmpty();
        assertThat(unpacked.savedBytes()).isZero();
    }

    private CheckpointSurvey ofGguf(String golden) throws Exception {
        return CheckpointSurvey.of(
                ConvertedCheckpoint.write(FamiliesTest.checkpoint(golden), directory.resolve("model.gguf")));
    }

    @Test
    void aTextModelOfAnotherTypeIsRefusedByThatField() throws IOException {
        ObjectNode whole = JSON.createObjectNode();
        whole.putArray("architectures").add("Mistral3ForConditionalGeneration");
        whole.set("text_config", config("mistral-7b-v0.1").put("model_type", "ministral3"));
        CheckpointSurvey survey = survey(whole);
        assertThat(survey.refusals())
                .containsExactly(
                        "config.json.text_config.model_type: unsupported value 'ministral3'; allowed: mistral");
        assertThat(survey.config().orElseThrow().recipe().architecture()).isEqualTo("LlamaForCausalLM");
    }

    @Test
    void noExpertsMakeNoMixtral() throws IOException {
        ObjectNode config = config("llama-3.1-8b").put("num_experts", 0);
        config.putArray("architectures").add("SomeForCausalLM");
        assertThat(survey(config).config().orElseThrow().recipe().architecture())
                .isEqualTo("LlamaForCausalLM");
    }

    @Test
    void allRefusedFieldsAreNamed() throws IOException {
        ObjectNode config = config("llama-3.1-8b");
        config.put("hidden_act", "relu")
                .put("logit_scale", 0.5)
                .put("head_dim", 127)
                .put("clip_qkv", 8);
        config.putObject("quantization_config").put("quant_method", "awq");
        config.putObject("rope_scaling").put("rope_type", "unheard-of");
        CheckpointSurvey survey = survey(config);
        assertThat(survey.refusals().stream().map(each -> each.split(":")[0]))
                .containsExactlyInAnyOrder(
                        "config.json.hidden_act",
                        "config.json.logit_scale",
                        "config.json.head_dim",
                        "config.json.clip_qkv",
                        "config.json.quantization_config",
                        "config.json.rope_scaling.rope_type");
        assertThat(survey.config().orElseThrow().headDim()).isEqualTo(128);
        assertThat(catchThrowable(() -> Checkpoint.open(directory)))
                .hasMessage(survey.refusals().getFirst());
    }

    @Test
    void aFieldThatIsNeededIsNamedOnce() throws IOException {
        ObjectNode config = config("llama-3.1-8b");
        config.put("hidden_size", "wide");
        CheckpointSurvey survey = survey(config);
        assertThat(survey.refusals()).singleElement().asString().contains("hidden_size", "wide");
        assertThat(survey.config()).isEmpty();
    }

    /** Whatever a field is, a survey ends with an answer, and sizes can be computed of the shape that it has. */
    @ParameterizedTest
    @MethodSource("published")
    void oddValuesOfFieldsGetAnAnswer(String name) throws IOException {
        List<JsonNode> odd = Stream.of(
                        "null",
                        "true",
                        "0",
                        "-1",
                        "7",
                        "2147483646",
                        "2147483647",
                        "1e300",
                        "\"x\"",
                        "[]",
                        "[{}]",
                        "{}")
                .map(JSON::readTree)
                .toList();
        ModelBackend backend = new CpuBackend();
        ObjectNode published = config(name);
        for (String experts : List.of("num_experts", "n_routed_experts", "num_local_experts")) {
            if (published.has(experts)) {
                // Soon computed.
                published.put(experts, 8);
            }
        }
        ObjectNode shallow = published.deepCopy().put("num_hidden_layers", 4);
        if (published.has("num_hidden_layers") && survey(shallow).isSupported()) {
            published = shallow;
        }
        for (String field : List.copyOf(published.propertyNames())) {
            for (JsonNode value : odd) {
                ObjectNode config = published.deepCopy();
                config.set(field, value);
                CheckpointSurvey survey = survey(config);
                assertThat(survey.isSupported() || !survey.refusals().isEmpty())
                        .as("%s=%s", field, value)
                        .isTrue();
                survey.config().ifPresent(model -> {
                    DType dtype = backend.dtype(Optional.empty(), model, Quantization.NONE)
                            .dtype();
                    assertThat(backend.weightBytes(model, dtype, Quantization.NONE))
                            .as("%s=%s", field, value)
                            .isPositive();
                    assertThat(backend.blockBytes(model, 16, dtype, 1, 1, false))
                            .as("%s=%s", field, value)
                            .isPositive();
                    assertThat(model.parameters()).as("%s=%s", field, value).isPositive();
                });
            }
        }
    }

    @Test
    void weightsThatTheIndexNamesAreMissing() throws IOException {
        Files.writeString(
                directory.resolve("model.safetensors.index.json"),
                "{\"weight_map\": {\"model.norm.weight\": \"model-00001-of-00002.safetensors\"}}");
        CheckpointSurvey survey = survey(config("llama-3.1-8b"));
        assertThat(survey.isSupported()).isTrue();
        assertThat(survey.missing().orElseThrow()).contains("model-00001-of-00002.safetensors");
    }

    @Test
    void weightsOfAnotherShapeAreRefused() throws IOException {
        RandomCheckpoint.write(
                directory,
                new ModelConfig("small", 64, 32, 48, 2, 4, 2, 8, 128, 1e-5, 10000, Optional.empty(), true, DType.F32),
                1);
        assertThat(CheckpointSurvey.of(directory).refusals()).isEmpty();
        ObjectNode config = (ObjectNode) JSON.readTree(Files.readString(directory.resolve("config.json")));
        config.put("vocab_size", 7);
        CheckpointSurvey survey = survey(config);
        assertThat(survey.refusals()).singleElement().asString().contains("model.embed_tokens.weight", "shape");
        assertThat(survey.fileBytes()).isPositive();
    }

    @ParameterizedTest
    @EnumSource
    void weightsTakeAboutAsMuchMemoryAsTheSurveysShapeSays(Quantization quantization) throws IOException {
        Path model = Path.of(System.getProperty("baton.root"), "models/tiny-ledger");
        ModelConfig config = CheckpointSurvey.of(model).config().orElseThrow();
        KernelChoice choice = KernelChoice.here(config, DType.F32, quantization);
        ModelOptions options = ModelOptions.oneRank(DType.F32, quantization, 16, 1, OptionalInt.of(1), 16);
        try (Checkpoint checkpoint = Checkpoint.open(model);
                ModelRanks ranks = CpuModels.load(checkpoint, choice, options)) {
            double loaded = ((DecoderRunner) ranks.first()).weightBytes();
            assertThat(CpuModels.weightBytes(config, DType.F32, quantization) / loaded)
                    .isBetween(0.95, 1.05);
        }
    }

    @Test
    void noCheckpointIsRefused() throws IOException {
        assertThat(CheckpointSurvey.of(directory.resolve("nowhere")).refusals())
                .singleElement()
                .asString()
                .contains("nowhere");
        assertThat(CheckpointSurvey.of(directory).refusals())
                .singleElement()
                .asString()
                .contains("config.json is missing");
        Path damaged = Files.writeString(directory.resolve("model.gguf"), "GGUF but no more");
        assertThat(CheckpointSurvey.of(damaged).refusals())
                .singleElement()
                .asString()
                .contains("model.gguf");
    }
}
