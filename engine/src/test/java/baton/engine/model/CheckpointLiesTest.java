package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.SafetensorsWriter;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;
import tools.jackson.databind.util.RawValue;

/** Checkpoints with contradictory files, or for an unsupported computation: the error names the field or file. */
class CheckpointLiesTest {
    private static final ModelConfig CONFIG =
            new ModelConfig("small", 50, 16, 24, 2, 4, 2, 4, 128, 1e-5, 10000, Optional.empty(), true, DType.BF16);

    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    @TempDir
    Path directory;

    @BeforeEach
    void write() throws IOException {
        RandomCheckpoint.write(directory, CONFIG, 1);
        set("config.json", "use_sliding_window", "null");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '\'',
            value = {
                "rope_theta | 0 | config.json.rope_theta: is 0.0, must be positive",
                "rope_theta | -1 | config.json.rope_theta: is -1.0, must be positive",
                "rope_theta | 1e400 | config.json.rope_theta: must be a number, is",
                "rope_scaling | {`type`: `linear`, `factor`: 5e-324} | config.json.rope_theta: is 10000.0, which with LinearRopeScaling[factor=4.9E-324] makes a frequency of Infinity",
                "rms_norm_eps | 0 | config.json.rms_norm_eps: is 0.0, must be positive",
                "rms_norm_eps | -1e-5 | config.json.rms_norm_eps: is -1.0E-5, must be positive",
                "rope_parameters | {`rope_theta`: 2e4} | config.json.rope_parameters.rope_theta: is 20000.0, but config.json.rope_theta is 10000.0; both must be the same",
                "rope_scaling | {`type`: `linear`, `rope_type`: `yarn`, `factor`: 2} | config.json.rope_scaling.type: is 'linear', but rope_type is 'yarn'; leave type out",
                "rope_scaling | {`type`: `linear`, `factor`: 2, `alpha`: 3} | config.json.rope_scaling.alpha: is 3, but rope_type 'linear' has no such field; it has factor, finetuned",
                "rope_scaling | {`factor`: 2} | config.json.rope_scaling.factor: is 2, but rope_type 'default' has no such field",
                "rope_scaling | {`type`: `linear`, `factor`: -2} | config.json.rope_scaling.factor: is -2.0, must be positive",
                "rope_scaling | {`type`: `linear`, `factor`: 2, `partial_rotary_factor`: 0.5} | config.json.rope_scaling.partial_rotary_factor: unsupported value '0.5'; allowed: 1",
                "rope_scaling | {`type`: `mrope`, `factor`: 2} | config.json.rope_scaling.type: unsupported value 'mrope'; allowed: default, linear, dynamic, llama3, yarn, longrope",
                "rope_scaling | {`type`: `yarn`, `factor`: 2, `attention_factor`: 0} | config.json.rope_scaling.attention_factor: is 0.0, must be positive",
                "rope_scaling | {`type`: `yarn`, `factor`: 9, `mscale`: -9, `mscale_all_dim`: 1} | config.json.rope_scaling.mscale: makes an attention_factor of -",
                "rope_scaling | {`type`: `yarn`, `factor`: 2, `attention_factor`: 1e39} | config.json.rope_scaling.attention_factor: makes an attention_factor of 1.0E39, which must be positive and finite",
                "rope_scaling | {`type`: `longrope`, `factor`: 2, `original_max_position_embeddings`: 1, `short_factor`: [1, 1], `long_factor`: [1, 1]} | config.json.rope_scaling.original_max_position_embeddings: makes an attention_factor of Infinity, which must be positive and finite",
                "rope_scaling | {`type`: `yarn`, `factor`: 2, `beta_fast`: 1} | config.json.rope_scaling.beta_fast: is 1.0, must exceed beta_slow 1.0",
                "rope_scaling | {`type`: `llama3`, `factor`: 2, `low_freq_factor`: 0, `high_freq_factor`: 4} | config.json.rope_scaling.low_freq_factor: is 0.0, must be positive",
                "rope_scaling | {`type`: `yarn`, `factor`: 2, `original_max_position_embeddings`: 0} | config.json.rope_scaling.original_max_position_embeddings: is 0, must be at least 1",
                "model_type | `mistral` | config.json.model_type: is 'mistral', must be 'llama' where architectures is LlamaForCausalLM",
                "hidden_act | `gelu` | config.json.hidden_act: unsupported value 'gelu'; allowed: silu",
                "sliding_window | 64 | config.json.sliding_window: is 64, must be null",
                "layer_types | [`sliding_attention`, `full_attention`] | config.json.layer_types[0]: is sliding_attention, but no sliding window is set",
                "logit_scale | 0.5 | config.json.logit_scale: unsupported value '0.5'; allowed: 1",
                "logits_scaling | 8 | config.json.logits_scaling: unsupported value '8'; allowed: 1",
                "embedding_multiplier | 12 | config.json.embedding_multiplier: unsupported value '12'; allowed: 1",
                "residual_multiplier | 0.2 | config.json.residual_multiplier: unsupported value '0.2'; allowed: 1",
                "attention_multiplier | 0.1 | config.json.attention_multiplier: is 0.1, but LlamaForCausalLM has no such part; it must be left out",
                "final_logit_softcapping | 30 | config.json.final_logit_softcapping: is 30, but LlamaForCausalLM has no such part",
                "num_local_experts | 8 | config.json.num_local_experts: is 8, but LlamaForCausalLM has no such part",
                "rope_interleaved | true | config.json.rope_interleaved: is true, but LlamaForCausalLM has no such part",
                "per_layer_config | {`0`: {`head_dim`: 8}} | config.json.per_layer_config: is {\"0\":{\"head_dim\":8}}, but LlamaForCausalLM has no such part",
                "qkv_bias | true | config.json.qkv_bias: is true, must be false for LlamaForCausalLM",
                "is_causal | false | config.json.is_causal: unsupported value 'false'; allowed: true",
                "quantization_config | {`quant_method`: `gptq`} | config.json.quantization_config: is of quant_method 'gptq', must be absent, or of quant_method fp8 or compressed-tensors: only weights in bf16, fp16, fp32 and fp8 are supported",
                "quantization_config | {`bits`: 8} | config.json.quantization_config: is {\"bits\":8}, must be absent, or of quant_method fp8",
                "quantization_config | {`quant_method`: `fp8`, `fmt`: `e5m2`} | config.json.quantization_config.fmt: unsupported value 'e5m2'; allowed: e4m3",
                "quantization_config | {`quant_method`: `fp8`, `weight_block_size`: [128, 0]} | config.json.quantization_config.weight_block_size: is [128,0], must be [rows, columns] of a block",
                "quantization_config | {`quant_method`: `compressed-tensors`, `format`: `pack-quantized`} | config.json.quantization_config.format: unsupported value 'pack-quantized'; allowed: float-quantized",
                "quantization_config | {`quant_method`: `compressed-tensors`, `kv_cache_scheme`: {`num_bits`: 8}} | config.json.quantization_config.kv_cache_scheme: is {\"num_bits\":8}, must be null",
                "quantization_config | {`quant_method`: `compressed-tensors`, `config_groups`: {`a`: {}, `b`: {}}} | config.json.quantization_config.config_groups: has 2 groups, must have one",
                "quantization_config | {`quant_method`: `compressed-tensors`, `config_groups`: {`a`: {}}} | config.json.quantization_config.config_groups.a.weights: is missing",
                "quantization_config | {`quant_method`: `compressed-tensors`, `config_groups`: {`a`: {`weights`: {`num_bits`: 4}}}} | config.json.quantization_config.config_groups.a.weights.num_bits: unsupported value '4'; allowed: 8",
                "quantization_config | {`quant_method`: `compressed-tensors`, `config_groups`: {`a`: {`weights`: {`strategy`: `group`}}}} | config.json.quantization_config.config_groups.a.weights.strategy: unsupported value 'group'; allowed: tensor, channel, block",
                "compression_config | {`bits`: 4} | config.json.compression_config: is {\"bits\":4}, but LlamaForCausalLM has no such part",
                "eos_token_id | 50 | config.json.eos_token_id: is 50, must be below config.json.vocab_size, which is 50",
                "eos_token_id | [1, 99] | config.json.eos_token_id: is [1,99], must be below config.json.vocab_size, which is 50",
                "eos_token_id | -1 | config.json.eos_token_id: must be a token id or a list of them, is -1",
                "head_dim | 2147483646 | weight 'model.layers.0.self_attn.k_proj.weight' has shape [8, 16], config.json wants [4294967292, 16]",
                "num_hidden_layers | 1 | weight 'model.layers.1.input_layernorm.weight' is of a layer beyond config.json.num_hidden_layers, which is 1",
                "num_hidden_layers | 3 | weight 'model.layers.2.input_layernorm.weight' is missing",
                "num_hidden_layers | 2147483647 | config.json.num_hidden_layers is 2147483647, but the files have only 20 weights",
                "num_hidden_layers | 0 | config.json.num_hidden_layers: is 0, must be at least 1",
                "vocab_size | 49 | weight 'model.embed_tokens.weight' has shape [50, 16], config.json wants [49, 16]",
                "tie_word_embeddings | false | weight 'lm_head.weight' is missing",
                "attention_bias | true | weight 'model.layers.0.self_attn.k_proj.bias' is missing",
            })
    void config(String field, String value, String message) throws IOException {
        set("config.json", field, value.replace('`', '"'));
        assertRefused(message);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '\'',
            value = {
                "{`type`: `linear`, `factor`: 2} | {`rope_type`: `linear`, `factor`: 4} | config.json.rope_scaling: is {\"type\":\"linear\",\"factor\":2}, but rope_parameters is {\"rope_type\":\"linear\",\"factor\":4}; both must say the same",
                "{`type`: `linear`, `factor`: 2} | {`rope_theta`: 10000} | config.json.rope_scaling: is",
            })
    void rotationsThatContradict(String scaling, String parameters, String message) throws IOException {
        set("config.json", "rope_scaling", scaling.replace('`', '"'));
        set("config.json", "rope_parameters", parameters.replace('`', '"'));
        assertRefused(message);
    }

    @Test
    void rotationsThatSayTheSame() throws IOException {
        set("config.json", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2}");
        set("config.json", "rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 10000.0}");
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            assertThat(checkpoint.config().recipe().rotations().getFirst().scaling())
                    .contains(new ModelConfig.LinearRopeScaling(2));
        }
    }

    @Test
    void expertsThatTheFilesLack() throws IOException {
        set("config.json", "architectures", "[\"MixtralForCausalLM\"]");
        set("config.json", "model_type", "\"mixtral\"");
        set("config.json", "num_local_experts", "2147483647");
        assertRefused("config.json has 4294967294 experts in all layers, but the files have only 20 weights");
        set("config.json", "num_local_experts", "4");
        assertRefused("weight 'model.layers.0.block_sparse_moe.experts.0.w1.weight' is missing");
    }

    @Test
    void packedExpertsThatAreNot() throws Exception {
        copy("gpt-oss");
        Checkpoint.open(directory).close();
        set("config.json", "num_local_experts", "2147483647");
        assertRefused(
                "weight 'model.layers.0.mlp.experts.gate_up_proj_bias' has shape [6, 192], config.json wants [2147483647, 192]");
        set("config.json", "num_local_experts", "6");
        String scales = "model.layers.1.mlp.experts.down_proj_scales";
        ObjectNode header = header();
        ((ObjectNode) header.get(scales)).put("dtype", "I8");
        writeHeader(header);
        assertRefused("weight '" + scales + "' has dtype I8, supported: U8");
        ((ObjectNode) header.get(scales)).put("dtype", "U8");
        header.set(scales.replace("proj", "prj"), header.remove(scales));
        writeHeader(header);
        assertRefused("weight '" + scales + "' is missing");
        set("config.json", "intermediate_size", "80");
        assertRefused(
                "weight 'model.layers.0.mlp.experts.gate_up_proj_bias' has shape [6, 192], config.json wants [6, 160]");
    }

    @Test
    void scalesOfFp8ThatCannotBe() throws Exception {
        copy("qwen3-fp8");
        Checkpoint.open(directory).close();
        String scales = "model.layers.1.mlp.up_proj.weight_scale_inv";
        ObjectNode header = header();
        ObjectNode info = (ObjectNode) header.get(scales);
        info.put("dtype", "I32");
        writeHeader(header);
        assertRefused("weight '" + scales + "' has dtype I32, supported: BF16, F16, F32");
        info.put("dtype", "F32").putRawValue("shape", new RawValue("[4,1]"));
        writeHeader(header);
        assertRefused("weight '" + scales + "' has shape [4, 1]", "up_proj.weight' of shape [200, 160] wants [2, 2]");
        info.putRawValue("shape", new RawValue("[2,2]"));
        header.set(scales.replace("scale", "scal"), header.remove(scales));
        writeHeader(header);
        assertRefused("weight '" + scales + "' is missing, but 'model.layers.1.mlp.up_proj.weight' has dtype F8_E4M3");
        set("config.json", "quantization_config", "null");
        assertRefused("weight 'model.layers.0.mlp.down_proj.weight' has dtype F8_E4M3, supported: BF16, F16, F32");
        copy("qwen3-fp8");
        Path path = directory.resolve("model.safetensors");
        byte[] bytes = Files.readAllBytes(path);
        int third = 8 + headerBytes(bytes) + info.get("data_offsets").get(0).asInt() + 2 * Float.BYTES;
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).putFloat(third, Float.NaN);
        Files.write(path, bytes);
        assertRefused("weight '" + scales + "' has NaN as scale 2, must be a finite number");
    }

    /** Written by trainers and converters into configurations that compute the same as without. */
    @Test
    void fieldsThatChangeNothing() throws IOException {
        set("config.json", "attention_dropout", "0.1");
        set("config.json", "pretraining_tp", "2");
        set("config.json", "rope_interleaved", "false");
        set("config.json", "is_llama_config", "true");
        set("config.json", "quantization_config", "null");
        set("config.json", "logit_scale", "1.0");
        set("config.json", "num_experts", "0");
        set("config.json", "_name_or_path", "\"here\"");
        set("config.json", "some_tool", "{\"seed\": 3}");
        Checkpoint.open(directory).close();
        assertThat(ConfigFields.unknown(
                        JsonFields.parse("config.json", Files.readString(directory.resolve("config.json")))))
                .containsExactly("some_tool");
    }

    @Test
    void aFieldThatIsThereTwice() throws IOException {
        Path config = directory.resolve("config.json");
        Files.writeString(config, Files.readString(config).replaceFirst("\\{", "{\"rope_theta\": 5e5,"));
        assertRefused("config.json: not valid JSON: Duplicate Object property \"rope_theta\"");
        Files.write(config, "{\"a\": \"\u00e4\"}".getBytes(StandardCharsets.ISO_8859_1));
        assertRefused("config.json: is not UTF-8 text");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "model.layers.0.self_attn.q_proj.bias",
                "model.layers.0.self_attn.q_norm.weight",
                "model.layers.0.mlp.experts.0.gate_proj.weight",
                "model.layers.0.self_attn.k_scale",
                "model.embed_tokens.weight_packed",
                "score.weight",
                "__metadata",
            })
    void weightsOfNoPart(String name) throws IOException {
        write(tensor(name, "BF16", List.of(2L), new byte[4]));
        assertRefused("weight '" + name + "' is of no part of the LlamaForCausalLM that config.json describes");
    }

    @Test
    void weightsThatChangeNothing() throws IOException {
        byte[] embedding;
        try (SafetensorsFile file = SafetensorsFile.open(directory.resolve("model.safetensors"))) {
            embedding = file.data("model.embed_tokens.weight").toArray(ValueLayout.JAVA_BYTE);
        }
        SafetensorsWriter.Tensor buffer =
                tensor("model.layers.1.self_attn.rotary_emb.inv_freq", "F32", List.of(2L), new byte[8]);
        write(buffer, tensor("lm_head.weight", "BF16", List.of(50L, 16L), embedding));
        Checkpoint.open(directory).close();
        embedding[99] ^= 1;
        RandomCheckpoint.write(directory, CONFIG, 1);
        write(buffer, tensor("lm_head.weight", "BF16", List.of(50L, 16L), embedding));
        assertRefused("weight 'lm_head.weight' differs from 'model.embed_tokens.weight',"
                + " but config.json.tie_word_embeddings is true; it must be false");
    }

    /** By int arithmetic the shared experts would have 32 elements, as they do. */
    @Test
    void vectorsLongerThanAnInt() throws IOException, URISyntaxException {
        copy("deepseek-v3");
        set("config.json", "n_shared_experts", "134217729");
        assertRefused("config.json.n_shared_experts: makes a vector of 4294967328 elements, which must be at most");
        set("config.json", "n_shared_experts", "1");
        set("config.json", "kv_lora_rank", "2147483632");
        assertRefused("config.json.kv_lora_rank: makes a vector of 2147483664 elements, which must be at most");
        set("config.json", "kv_lora_rank", "64");
        set("config.json", "v_head_dim", "2147483647");
        assertRefused("config.json.v_head_dim: makes a vector of 2147483679 elements, which must be at most");
    }

    @Test
    void yarnWithoutItsFactorOrWithoutAScaleOfAllElements() throws IOException, URISyntaxException {
        copy("deepseek-v3");
        Recipe golden = recipe();
        String scaling =
                "{'mscale': 1, 'mscale_all_dim': %d, 'original_max_position_embeddings': 64, 'rope_type': 'yarn'}"
                        .replace('\'', '"');
        // Of 256 positions.
        set("config.json", "rope_parameters", scaling.formatted(1));
        assertThat(recipe()).isEqualTo(golden);
        set("config.json", "rope_parameters", scaling.formatted(0));
        assertThat(recipe().scales().scores()).contains(1 / Math.sqrt(64));
    }

    private Recipe recipe() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            return checkpoint.config().recipe();
        }
    }

    @Test
    void capsThatFloatsDoNotHold() throws IOException, URISyntaxException {
        copy("gemma2");
        for (String field : List.of("attn_logit_softcapping", "final_logit_softcapping")) {
            for (String value : List.of("1e-39", "1e39")) {
                set("config.json", field, value);
                assertRefused("config.json." + field + ": is", ", must be at least 1e-38 and at most 1e38");
            }
            set("config.json", field, "50");
        }
    }

    private void copy(String golden) throws IOException, URISyntaxException {
        for (String file : List.of("config.json", "model.safetensors")) {
            Files.copy(
                    FamiliesTest.checkpoint(golden).resolve(file),
                    directory.resolve(file),
                    StandardCopyOption.REPLACE_EXISTING);
        }
    }

    /** DeepSeek's models have layers behind their own, which predict further tokens. */
    @Test
    void layersOfFurtherPredictionsAreNotUsed() throws IOException, URISyntaxException {
        copy("deepseek-v3");
        write(tensor("model.layers.3.eh_proj.weight", "BF16", List.of(2L), new byte[4]));
        assertRefused("weight 'model.layers.3.eh_proj.weight' is of a layer beyond config.json.num_hidden_layers");
        set("config.json", "num_nextn_predict_layers", "1");
        Checkpoint.open(directory).close();
        write(tensor("model.layers.4.eh_proj.weight", "BF16", List.of(2L), new byte[4]));
        assertRefused("weight 'model.layers.4.eh_proj.weight' is of a layer beyond config.json.num_hidden_layers");
    }

    @Test
    void aBufferOfALayerThatIsNotThere() throws IOException {
        write(tensor("model.layers.9.self_attn.rotary_emb.inv_freq", "F32", List.of(2L), new byte[8]));
        assertRefused("weight 'model.layers.9.self_attn.rotary_emb.inv_freq' is of a layer beyond"
                + " config.json.num_hidden_layers, which is 2");
    }

    @Test
    void weightsOfAnotherType() throws IOException {
        JsonNode header = header();
        ObjectNode weight = (ObjectNode) header.get("model.norm.weight");
        weight.put("dtype", "I16");
        writeHeader(header);
        assertRefused("weight 'model.norm.weight' has dtype I16, supported: BF16, F16, F32");
    }

    @Test
    void weightsOfTheSameBytes() throws IOException {
        JsonNode header = header();
        JsonNode first = header.get("model.layers.0.mlp.gate_proj.weight").get("data_offsets");
        ((ObjectNode) header.get("model.layers.0.mlp.up_proj.weight")).set("data_offsets", first);
        writeHeader(header);
        assertRefused("data_offsets", "must begin where the tensor before ends");
    }

    private static SafetensorsWriter.Tensor tensor(String name, String dtype, List<Long> shape, byte[] bytes) {
        return new SafetensorsWriter.Tensor(name, dtype, shape, () -> MemorySegment.ofArray(bytes));
    }

    /** Adds tensors to the file. */
    private void write(SafetensorsWriter.Tensor... more) throws IOException {
        Path path = directory.resolve("model.safetensors");
        Path next = directory.resolve("next");
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            List<SafetensorsWriter.Tensor> all = new ArrayList<>();
            for (String name : file.names()) {
                all.add(new SafetensorsWriter.Tensor(
                        name, file.info(name).dtype(), file.info(name).shape(), () -> file.data(name)));
            }
            all.addAll(List.of(more));
            SafetensorsWriter.write(next, Map.of(), all);
        }
        Files.move(next, path, StandardCopyOption.REPLACE_EXISTING);
    }

    private ObjectNode header() throws IOException {
        byte[] bytes = Files.readAllBytes(directory.resolve("model.safetensors"));
        return (ObjectNode) MAPPER.readTree(bytes, 8, headerBytes(bytes));
    }

    /** Replaces the header and leaves the data. */
    private void writeHeader(JsonNode header) throws IOException {
        Path path = directory.resolve("model.safetensors");
        byte[] bytes = Files.readAllBytes(path);
        byte[] json = MAPPER.writeValueAsBytes(header);
        int old = headerBytes(bytes);
        assertThat(json.length).isLessThanOrEqualTo(old);
        Arrays.fill(bytes, 8, 8 + old, (byte) ' ');
        System.arraycopy(json, 0, bytes, 8, json.length);
        Files.write(path, bytes);
    }

    private static int headerBytes(byte[] file) {
        return (int) ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN).getLong(0);
    }

    private void set(String file, String field, String value) throws IOException {
        Path path = directory.resolve(file);
        ObjectNode json = (ObjectNode) MAPPER.readTree(Files.readString(path));
        json.putRawValue(field, new RawValue(value));
        Files.writeString(path, MAPPER.writeValueAsString(json));
    }

    private void assertRefused(String... parts) {
        assertThatThrownBy(() -> Checkpoint.open(directory).close())
                .isInstanceOfAny(ConfigException.class, SafetensorsException.class)
                .hasMessageContainingAll(parts)
                .hasMessageNotContaining("\n");
    }
}
