package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.kernel.Activation;
import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Caps;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Latent;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Routing;
import baton.engine.model.Recipe.Scales;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.SafetensorsWriter;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Checkpoint directories: reading them, and the error of each kind of broken one. */
class CheckpointTest {
    private static final ModelConfig CONFIG =
            new ModelConfig("small", 50, 16, 24, 2, 4, 2, 4, 128, 1e-5, 10000, Optional.empty(), false, DType.BF16);

    private static final String LAYER_TYPES = "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]";

    @TempDir
    Path root;

    private Path directory = Path.of("");

    @BeforeEach
    void write() throws IOException {
        directory = root.resolve("small");
        RandomCheckpoint.write(directory, CONFIG, 1);
    }

    @Test
    void readsTinyLedger() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            assertThat(checkpoint.config())
                    .isEqualTo(new ModelConfig(
                            "tiny-ledger",
                            2048,
                            256,
                            704,
                            6,
                            8,
                            4,
                            32,
                            2048,
                            1e-5,
                            10000,
                            Optional.empty(),
                            true,
                            DType.BF16));
            assertThat(checkpoint.config().parameters()).isEqualTo(4_951_296);
            assertThat(checkpoint.eosTokenIds(Optional.empty())).containsExactly(1, 4);
            assertThat(checkpoint.generationDefaults().maxTokens()).hasValue(256);
        }
    }

    @Test
    void llama1bHasItsParameters() {
        assertThat(RandomCheckpoint.llama1b().parameters()).isEqualTo(1_235_814_400L);
    }

    @Test
    void fingerprintIsOfTheWeightsNotTheFiles() throws IOException {
        String digest = digest(directory);
        Path sharded = root.resolve("other-name");
        shard(directory, sharded);
        assertThat(digest(sharded)).isEqualTo(digest);
        RandomCheckpoint.write(root.resolve("tuned"), CONFIG, 2);
        assertThat(digest(root.resolve("tuned"))).isNotEqualTo(digest);
        editConfig("\"rope_theta\" : 10000.0", "\"rope_theta\" : 20000.0");
        assertThat(digest(directory)).isNotEqualTo(digest);
        editConfig("\"rope_theta\" : 20000.0", "\"rope_theta\" : 10000.0");
        editConfig("LlamaForCausalLM", "MistralForCausalLM");
        editConfig("\"llama\"", "\"mistral\"");
        assertThat(digest(directory)).as("computes the same").isEqualTo(digest);
        editConfig("\"use_sliding_window\" : false,", "");
        editConfig("\"sliding_window\" : null", "\"sliding_window\" : 64");
        assertThat(digest(directory)).isNotEqualTo(digest);
    }

    @Test
    void defaultsAreThoseOfTheFormat() throws IOException {
        editConfig("\"num_key_value_heads\" : 2,", "");
        editConfig("\"head_dim\" : 4,", "");
        editConfig("\"torch_dtype\"", "\"dtype\"");
        editConfig(
                "\"rope_theta\" : 10000.0,", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5},");
        // Four key/value heads make the tensors of two misshapen, which comes after parsing.
        assertThatThrownBy(() -> Checkpoint.open(directory))
                .isInstanceOf(SafetensorsException.class)
                .hasMessageContaining("k_proj.weight' has shape [8, 16], config.json wants [16, 16]");
    }

    @Test
    void recipesOfFamilies() {
        Recipe llama = recipe("LlamaForCausalLM", "\"attention_bias\": true, \"mlp_bias\": true");
        assertThat(llama.biased())
                .containsExactlyInAnyOrder(
                        Part.QUERIES, Part.KEYS, Part.VALUES, Part.OUTPUT, Part.GATE, Part.UP, Part.DOWN);
        assertThat(llama.tensors()).isEqualTo(Recipe.USUAL_TENSORS);
        Recipe mistral = recipe("MistralForCausalLM", "\"sliding_window\": 7");
        assertThat(mistral.architecture()).isEqualTo("MistralForCausalLM");
        assertThat(mistral.biased()).isEmpty();
        assertThat(windows(mistral)).containsExactly(7, 7, 7);
        assertThat(windows(recipe("MistralForCausalLM", "\"sliding_window\": null")))
                .containsExactly(0, 0, 0);
        assertThat(windows(recipe("MistralForCausalLM", "\"hidden_act\": \"silu\"")))
                .containsExactly(4096, 4096, 4096);
        for (String family : List.of("Llama", "Mistral", "Ministral", "Phi3", "Gemma2", "Starcoder2", "Mixtral")) {
            assertThat(windows(recipe(family + "ForCausalLM", "\"sliding_window\": 0")))
                    .as(family)
                    .containsExactly(0, 0, 0);
        }
        Recipe qwen2 = recipe("Qwen2ForCausalLM", "\"sliding_window\": 7");
        assertThat(qwen2.biased()).containsExactlyInAnyOrder(Part.QUERIES, Part.KEYS, Part.VALUES);
        assertThat(windows(qwen2)).containsExactly(0, 0, 0);
        String window = "\"use_sliding_window\": true, \"sliding_window\": 7";
        assertThat(windows(recipe("Qwen2ForCausalLM", window)))
                .as("the first 28 layers have none")
                .containsExactly(0, 0, 0);
        assertThat(windows(recipe("Qwen2ForCausalLM", window + ", \"max_window_layers\": 2")))
                .containsExactly(0, 0, 7);
        Recipe qwen3 =
                recipe("Qwen3ForCausalLM", window + ", \"attention_bias\": true, \"layer_types\": " + LAYER_TYPES);
        assertThat(qwen3.biased()).containsExactlyInAnyOrder(Part.QUERIES, Part.KEYS, Part.VALUES, Part.OUTPUT);
        assertThat(qwen3.tensors()).containsKeys(Part.QUERY_NORM, Part.KEY_NORM);
        assertThat(windows(qwen3)).containsExactly(7, 0, 7);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "Mistral | \"sliding_window\": 7, \"layer_types\": " + LAYER_TYPES
                        + " | config.json.layer_types: must be the same kind for all layers, as with sliding_window",
                "Mistral | \"sliding_window\": -1 | config.json.sliding_window: is -1, must be at least 0",
                "Qwen2 | \"layer_types\": " + LAYER_TYPES
                        + " | config.json.layer_types[0]: is sliding_attention, but no sliding window is set",
                "Qwen2 | \"layer_types\": [\"full_attention\"] | config.json.layer_types: must be an array of num_hidden_layers=3, is [\"full_attention\"]",
                "Qwen3 | \"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\"] | config.json.layer_types[1]: unsupported value '\"linear_attention\"'; allowed: full_attention, sliding_attention",
            })
    void windowsThatCannotBe(String family, String fields, String message) {
        assertThatThrownBy(() -> recipe(family + "ForCausalLM", fields))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    @Test
    void ropeScalingInTheFormsOfTransformers4And5() {
        ModelConfig linear = rope("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 5e5");
        assertThat(rotation(linear)).isEqualTo(new Rotation(5e5, Optional.of(new LinearRopeScaling(2))));
        assertThat(linear.maxPositions())
                .as("max_position_embeddings is of the model before it")
                .isEqualTo(256);
        ModelConfig yarn = rope(
                "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 1e6, \"original_max_position_embeddings\": 100}");
        assertThat(rotation(yarn).theta()).isEqualTo(1e6);
        assertThat(yarn.maxPositions())
                .as("max_position_embeddings is of the model after it")
                .isEqualTo(128);
        assertThat(rotation(yarn).scaling()).contains(new YarnRopeScaling(4, 100, 0.1 * Math.log(4) + 1, 32, 1, true));
        assertThat(rotation(
                                rope(
                                        "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 1, \"mscale_all_dim\": 0.5, \"beta_fast\": 16, \"beta_slow\": 2, \"truncate\": false}"))
                        .scaling())
                .contains(
                        new YarnRopeScaling(4, 128, (0.1 * Math.log(4) + 1) / (0.05 * Math.log(4) + 1), 16, 2, false));
    }

    /** As Google published it, and as transformers 5 writes it. */
    @Test
    void gemma3InTheFormsOfTransformers4And5() {
        Recipe published = recipe(
                "Gemma3ForCausalLM",
                "\"rope_theta\": 1e6, \"rope_local_base_freq\": 2e4, \"sliding_window\": 7,"
                        + " \"sliding_window_pattern\": 3, \"query_pre_attn_scalar\": 64,"
                        + " \"hidden_activation\": \"gelu_pytorch_tanh\"");
        assertThat(windows(published)).containsExactly(7, 7, 0);
        assertThat(published.layers().stream()
                        .map(layer -> layer.rotation().orElseThrow().theta()))
                .containsExactly(2e4, 2e4, 1e6);
        assertThat(published.scales().embedding()).isEqualTo(4);
        assertThat(published.scales().scores()).contains(0.125);
        Recipe written = recipe(
                "Gemma3ForCausalLM",
                "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6},"
                        + " \"sliding_attention\": {\"rope_theta\": 2e4}}, \"layer_types\": [\"sliding_attention\","
                        + " \"sliding_attention\", \"full_attention\"], \"sliding_window\": 7, \"query_pre_attn_scalar\": 64");
        assertThat(written).isEqualTo(published);
        ModelConfig withoutThetas = CheckpointConfig.parse("small", json("Gemma3ForCausalLM", """
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}, "sliding_attention": {}},
                "sliding_window_pattern": 2"""));
        assertThat(withoutThetas.recipe().rotations())
                .containsExactly(
                        new Rotation(10000, Optional.empty()),
                        new Rotation(1e6, Optional.of(new LinearRopeScaling(8))));
        assertThat(withoutThetas.maxPositions()).isEqualTo(128);
        assertThat(recipe("Gemma3ForCausalLM", """
                        "rope_theta": 3e4, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2,
                        "rope_parameters": {"full_attention": {}, "sliding_attention": {}}""").rotations())
                .containsExactly(new Rotation(2e4, Optional.empty()), new Rotation(3e4, Optional.empty()));
    }

    @Test
    void gemma2() {
        Recipe usual = recipe("Gemma2ForCausalLM", "\"hidden_act\": \"gelu_pytorch_tanh\"");
        assertThat(windows(usual)).containsExactly(4096, 0, 4096);
        assertThat(usual.caps()).isEqualTo(new Caps(Optional.of(50.0), Optional.of(30.0)));
        assertThat(usual.scales()).isEqualTo(new Scales(4, Optional.of(1.0 / 16), 1, 1));
        Recipe named = recipe(
                "Gemma2ForCausalLM",
                "\"attn_logit_softcapping\": null, \"final_logit_softcapping\": 5, \"sliding_window\": 7,"
                        + " \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"],"
                        + " \"query_pre_attn_scalar\": 144");
        assertThat(windows(named)).containsExactly(0, 7, 0);
        assertThat(named.caps()).isEqualTo(new Caps(Optional.empty(), Optional.of(5.0)));
        assertThat(named.scales().scores()).contains(1.0 / 12);
        assertThatThrownBy(() -> recipe("Gemma2ForCausalLM", "\"attn_logit_softcapping\": 0"))
                .hasMessage("config.json.attn_logit_softcapping: is 0.0, must be positive");
    }

    @Test
    void layersOfASmolLm3ThatDoNotRotate() {
        Recipe usual = recipe("SmolLM3ForCausalLM", "\"use_sliding_window\": true, \"no_rope_layer_interval\": 3");
        assertThat(rotates(usual)).containsExactly(true, true, false);
        assertThat(windows(usual)).containsExactly(0, 0, 0);
        String window = "\"use_sliding_window\": true, \"sliding_window\": 7";
        Recipe named = recipe("SmolLM3ForCausalLM", window + ", \"no_rope_layers\": [0, 1, 1, 0]");
        assertThat(rotates(named)).containsExactly(false, true, true);
        assertThat(windows(named)).containsExactly(7, 0, 0);
        assertThat(named.rotations()).containsExactly(new Rotation(2e6, Optional.empty()));
        for (String layers : List.of("[1, 0]", "[1, 1, 2]", "3")) {
            assertThatThrownBy(() -> recipe("SmolLM3ForCausalLM", "\"no_rope_layers\": " + layers))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith(
                            "config.json.no_rope_layers: must be an array of 0 or 1 for each of num_hidden_layers=3, is ");
        }
    }

    @Test
    void defaultsOfFamiliesDiffer() {
        for (String family : List.of("Llama", "Olmo2", "Phi3")) {
            ModelConfig config =
                    CheckpointConfig.parse("small", json(family + "ForCausalLM", "\"hidden_act\": \"silu\""));
            assertThat(config.rmsNormEps()).as(family).isEqualTo(family.equals("Llama") ? 1e-6 : 1e-5);
        }
        assertThatThrownBy(() -> recipe("Olmo2ForCausalLM", "\"mlp_bias\": true"))
                .hasMessageContaining("config.json.mlp_bias: is true, must be false");
    }

    @Test
    void expertsOfFamilies() {
        Dense dense = new Dense(Activation.SILU);
        Recipe qwen3 = recipe(
                "Qwen3MoeForCausalLM",
                "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8,"
                        + " \"norm_topk_prob\": true, \"decoder_sparse_step\": 2");
        assertThat(qwen3.feedForward()).containsExactly(dense, new Experts(6, 2, true, 8, 0, Activation.SILU), dense);
        assertThat(recipe("Qwen3MoeForCausalLM", "\"num_local_experts\": 9, \"mlp_only_layers\": [0, 2]")
                        .feedForward())
                .containsExactly(dense, new Experts(9, 8, false, 768, 0, Activation.SILU), dense);
        Recipe qwen2 = recipe("Qwen2MoeForCausalLM", "\"use_sliding_window\": false");
        assertThat(qwen2.feedForward()).hasSize(3).containsOnly(new Experts(60, 4, false, 1408, 5632, Activation.SILU));
        assertThat(qwen2.biased()).isEqualTo(Part.PROJECTIONS);
        assertThat(recipe("Qwen2MoeForCausalLM", "\"qkv_bias\": false").biased())
                .isEmpty();
        Recipe mixtral = recipe("MixtralForCausalLM", "\"num_local_experts\": 4, \"sliding_window\": 7");
        assertThat(mixtral.feedForward()).containsOnly(new Experts(4, 2, true, 24, 0, Activation.SILU));
        assertThat(windows(mixtral)).containsExactly(7, 7, 7);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "Qwen3Moe | \"num_experts\": 4, \"num_local_experts\": 8 | config.json.num_local_experts: is 8, but num_experts is 4; both must be the same",
                "Mixtral | \"num_experts_per_tok\": 9 | config.json.num_experts_per_tok: is 9, must be at most the number of experts, which is 8",
                "Qwen2Moe | \"num_experts\": 0 | config.json.num_experts: is 0, must be at least 1",
                "Qwen3Moe | \"mlp_only_layers\": [0.5] | config.json.mlp_only_layers: must be an array of numbers of layers, is [0.5]",
                "Qwen3Moe | \"decoder_sparse_step\": 0 | config.json.decoder_sparse_step: is 0, must be at least 1",
                "Qwen3Moe | \"shared_expert_intermediate_size\": 64 | config.json.shared_expert_intermediate_size: is 64, but Qwen3MoeForCausalLM has no such part; it must be left out",
                "Qwen2Moe | \"shared_expert_intermediate_size\": 0 | config.json.shared_expert_intermediate_size: is 0, must be at least 1",
                "Qwen2Moe | \"use_sliding_window\": true | config.json.use_sliding_window: is true, must be false for Qwen2MoeForCausalLM",
                "Qwen3Moe | \"use_qk_norm\": false | config.json.use_qk_norm: is false, must be true for Qwen3MoeForCausalLM",
                "Mixtral | \"norm_topk_prob\": false | config.json.norm_topk_prob: is false, must be true for MixtralForCausalLM",
                "Mixtral | \"moe_intermediate_size\": 64 | config.json.moe_intermediate_size: is 64, but MixtralForCausalLM has no such part; it must be left out",
                "GptOss | \"swiglu_limit\": 6 | config.json.swiglu_limit: unsupported value '6'; allowed: 7",
                "GptOss | \"swiglu_alpha\": 1 | config.json.swiglu_alpha: unsupported value '1'; allowed: 1.702",
                "GptOss | \"hidden_act\": \"silu\" | config.json.rope_scaling: is missing, must be of rope_type yarn",
                "GptOss | \"rope_scaling\": {\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 64}, \"initial_context_length\": 32 | config.json.initial_context_length: unsupported value '32'; allowed: 64",
                "GptOss | \"rope_scaling\": {\"rope_type\": \"default\"}, \"num_local_experts\": 8, \"experts_per_token\": 3 | config.json.experts_per_token: unsupported value '3'; allowed: 4",
                "GptOss | \"rope_scaling\": {\"rope_type\": \"default\"}, \"quantization_config\": {\"quant_method\": \"fp8\"} | config.json.quantization_config.quant_method: unsupported value 'fp8'; allowed: mxfp4",
                "Llama | \"num_experts_per_tok\": 2 | config.json.num_experts_per_tok: is 2, but LlamaForCausalLM has no such part; it must be left out",
            })
    void expertsThatCannotBe(String family, String fields, String message) {
        assertThatThrownBy(() -> recipe(family + "ForCausalLM", fields))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    /** As Qwen published Qwen3-Coder-30B-A3B. */
    @Test
    void everyFieldOfAPublishedModelWithExpertsIsKnown() {
        JsonFields published = JsonFields.parse("config.json", """
                {"architectures": ["Qwen3MoeForCausalLM"], "attention_dropout": 0.0, "decoder_sparse_step": 1, "eos_token_id": 151645,
                "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5472,
                "max_position_embeddings": 262144, "max_window_layers": 28, "mlp_only_layers": [], "model_type": "qwen3_moe",
                "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
                "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
                "qkv_bias": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
                "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
                "transformers_version": "4.52.3", "use_cache": true, "use_qk_norm": true, "use_sliding_window": false,
                "vocab_size": 151936}""");
        ModelConfig config = CheckpointConfig.parse("coder", published);
        assertThat(ConfigFields.unknown(published)).isEmpty();
        assertThat(config.recipe().experts()).contains(new Experts(128, 8, true, 768, 0, Activation.SILU));
        assertThat(config.parameters()).as("30.5 B").isEqualTo(30_532_122_624L);
    }

    @Test
    void latentAttentionOfFamilies() {
        ModelConfig v2 = CheckpointConfig.parse(
                "small", json("DeepseekV2ForCausalLM", "\"num_experts_per_tok\": 2, \"q_lora_rank\": null"));
        assertThat(v2.recipe().latent()).contains(new Latent(0, 512, 128, 64, 128));
        assertThat(v2.kvLayout(16, DType.F32)).isEqualTo(new KvLayout(3, 1, 576, 16, DType.F32, true));
        assertThat(v2.scoreScale()).isEqualTo(1 / Math.sqrt(192));
        assertThat(v2.recipe().feedForward())
                .hasSize(3)
                .containsOnly(new Experts(64, 2, false, 1407, 2814, Activation.SILU, new Routing(false, 1, 1, 1, 1)));
        ModelConfig v3 = CheckpointConfig.parse(
                "small",
                json(
                        "DeepseekV3ForCausalLM",
                        "\"first_k_dense_replace\": 2, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0,"
                                + " \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096}"));
        assertThat(v3.recipe().latent()).contains(new Latent(1536, 512, 128, 64, 128));
        assertThat(recipe(
                                "DeepseekV3ForCausalLM",
                                "\"first_k_dense_replace\": 2, \"n_shared_experts\": null, \"n_group\": null, \"topk_group\": null")
                        .experts())
                .contains(new Experts(256, 8, true, 2048, 0, Activation.SILU, new Routing(true, 1, 1, 2, 2.5)));
        double amplitude = 0.1 * Math.log(40) + 1;
        assertThat(v3.scoreScale()).isEqualTo(1 / Math.sqrt(192) * amplitude * amplitude);
        Dense dense = new Dense(Activation.SILU);
        assertThat(v3.recipe().feedForward())
                .containsExactly(
                        dense,
                        dense,
                        new Experts(256, 8, true, 2048, 2048, Activation.SILU, new Routing(true, 8, 4, 2, 2.5)));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "V2 | \"topk_method\": \"noaux_tc\" | config.json.topk_method: unsupported value 'noaux_tc'; allowed: greedy, group_limited_greedy",
                "V2 | \"topk_method\": \"group_limited_greedy\" | config.json.n_group: is missing",
                "V2 | \"kv_lora_rank\": 512 | config.json.num_experts_per_tok: is missing",
                "V2 | \"norm_topk_prob\": true | config.json.norm_topk_prob: is true, must be false for DeepseekV2ForCausalLM",
                "V3 | \"scoring_func\": \"softmax\" | config.json.scoring_func: unsupported value 'softmax'; allowed: sigmoid",
                "V3 | \"topk_method\": \"greedy\" | config.json.topk_method: unsupported value 'greedy'; allowed: noaux_tc",
                "V3 | \"n_group\": 7 | config.json.n_group: is 7, must divide n_routed_experts, which is 256, into groups of at least 2",
                "V3 | \"topk_group\": 9 | config.json.topk_group: is 9, must be at most n_group, which is 8",
                "V3 | \"n_group\": 128, \"topk_group\": 1 | config.json.num_experts_per_tok: is 8, must be at most the number of experts in the chosen groups, which is 2",
                "V3 | \"moe_layer_freq\": 2 | config.json.moe_layer_freq: unsupported value '2'; allowed: 1",
                "V3 | \"rope_interleave\": false | config.json.rope_interleave: is false, must be true for DeepseekV3ForCausalLM",
                "V3 | \"qk_rope_head_dim\": 24 | config.json.qk_rope_head_dim: is 24, must be a multiple of 16",
                "V3 | \"attention_bias\": true | config.json.attention_bias: is true, must be false for DeepseekV3ForCausalLM",
                "V3 | \"quantization_config\": {\"quant_method\": \"awq\"} | config.json.quantization_config: is of quant_method 'awq', must be absent, or of quant_method fp8 or compressed-tensors: only weights in bf16, fp16, fp32 and fp8 are supported",
                "Llama | \"kv_lora_rank\": 512 | config.json.kv_lora_rank: is 512, but LlamaForCausalLM has no such part; it must be left out",
            })
    void latentAttentionThatCannotBe(String family, String fields, String message) {
        String architecture = (family.equals("Llama") ? family : "Deepseek" + family) + "ForCausalLM";
        assertThatThrownBy(() -> recipe(architecture, fields))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    /** As DeepSeek published DeepSeek-V3, but for the form of its weights. */
    @Test
    void everyFieldOfAPublishedModelWithLatentsIsKnown() {
        JsonFields published = JsonFields.parse("config.json", """
                {"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "a"},
                "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
                "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
                "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
                "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
                "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
                "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
                "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
                "scoring_func": "sigmoid", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
                "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128,
                "vocab_size": 129280}""");
        ModelConfig config = CheckpointConfig.parse("v3", published);
        assertThat(ConfigFields.unknown(published)).isEmpty();
        assertThat(config.maxPositions()).isEqualTo(163840);
        assertThat(config.parameters()).as("671 B, the corrections included").isEqualTo(671_026_419_200L);
    }

    /** As OpenAI published gpt-oss-20b. */
    @Test
    void everyFieldOfAPublishedGptOssIsKnown() {
        JsonFields published = JsonFields.parse("config.json", """
                {"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200002,
                "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
                "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
                "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
                "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999, "quantization_config":
                {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
                "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
                "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
                "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088}""");
        ModelConfig config = CheckpointConfig.parse("gpt-oss-20b", published);
        assertThat(ConfigFields.unknown(published)).isEmpty();
        assertThat(config.recipe().experts()).contains(new Experts(32, 4, true, 2880, 0, Activation.CLAMPED_SWIGLU));
        assertThat(windows(config.recipe())).startsWith(128, 0, 128, 0).hasSize(24);
        assertThat(config.dtype()).isEqualTo(DType.BF16);
        assertThat(config.maxPositions()).isEqualTo(131072);
        assertThat(config.parameters()).as("20.9 B").isEqualTo(20_914_757_184L);
    }

    private static List<Boolean> rotates(Recipe recipe) {
        return recipe.layers().stream()
                .map(layer -> layer.rotation().isPresent())
                .toList();
    }

    /** The window of each layer, 0 for none. */
    private static List<Integer> windows(Recipe recipe) {
        return recipe.layers().stream()
                .map(layer -> layer.reach() instanceof Window window ? window.positions() : 0)
                .toList();
    }

    private static Rotation rotation(ModelConfig config) {
        return config.recipe().rotations().getFirst();
    }

    private static ModelConfig rope(String fields) {
        return CheckpointConfig.parse("small", json("LlamaForCausalLM", fields));
    }

    private static Recipe recipe(String architecture, String fields) {
        return CheckpointConfig.parse("small", json(architecture, fields)).recipe();
    }

    private static JsonFields json(String architecture, String fields) {
        return JsonFields.parse("config.json", """
                {"architectures": ["%s"], "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
                "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, %s}""".formatted(architecture, fields));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "LlamaForCausalLM | BloomForCausalLM | config.json.architectures: unsupported value '[\"BloomForCausalLM\"]'; allowed: one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, GraniteForCausalLM, Phi3ForCausalLM, SmolLM3ForCausalLM, Qwen3MoeForCausalLM, Qwen2MoeForCausalLM, MixtralForCausalLM, GptOssForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM, GlmForCausalLM, Glm4ForCausalLM, GraniteMoeHybridForCausalLM, MinistralForCausalLM, Starcoder2ForCausalLM, NemotronForCausalLM",
                "\"rope_scaling\" : null | \"rope_scaling\": {\"rope_type\": \"mrope\", \"factor\": 2} | config.json.rope_scaling.rope_type: unsupported value 'mrope'; allowed: default, linear, dynamic, llama3, yarn, longrope",
                "\"rope_scaling\" : null | \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 0.5], \"long_factor\": [1]} | config.json.rope_scaling.long_factor: must be an array of a positive number for each of the 2 pairs of a head that are turned, is [1]",
                "\"rope_scaling\" : null | \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 0.5], \"long_factor\": [1, 2]} | config.json.original_max_position_embeddings: is missing",
                "\"rope_scaling\" : null | \"rope_scaling\": {\"rope_type\": \"llama3\"} | config.json.rope_scaling.low_freq_factor: is missing",
                "\"rope_scaling\" : null | \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0} | config.json.rope_scaling.factor: is 0.0, must be positive",
                "\"rope_scaling\" : null | \"rope_parameters\": {\"full_attention\": {}} | config.json.rope_parameters.full_attention: rotations that differ by layer are not supported",
                "\"rope_scaling\" : null | \"partial_rotary_factor\": 0.5 | config.json.partial_rotary_factor: unsupported value '0.5'; allowed: 1",
                "\"hidden_size\" : 16 | \"hidden_size\" : 0 | config.json.hidden_size: is 0, must be at least 1",
                "\"hidden_size\" : 16, | `` | config.json.hidden_size: is missing",
                "\"num_key_value_heads\" : 2 | \"num_key_value_heads\" : 3 | config.json.num_key_value_heads: is 3, must divide num_attention_heads 4",
                "bfloat16 | int4 | config.json.torch_dtype: unsupported value 'int4'; allowed: bfloat16, float16, float32",
            })
    void refusesUnsupportedModels(String from, String to, String message) throws IOException {
        editConfig(from, to);
        assertThatThrownBy(() -> Checkpoint.open(directory))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    @Test
    void missingFilesAreNamed() throws IOException {
        Path nowhere = root.resolve("nowhere");
        assertThatThrownBy(() -> Checkpoint.open(nowhere))
                .isInstanceOf(ConfigException.class)
                .hasMessage("model: no directory '" + nowhere + "'");
        Files.delete(directory.resolve("model.safetensors"));
        assertThatThrownBy(() -> Checkpoint.open(directory))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("has neither model.safetensors nor model.safetensors.index.json");
        Files.delete(directory.resolve("config.json"));
        assertThatThrownBy(() -> Checkpoint.open(directory))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("config.json is missing");
    }

    @Test
    void missingShardAndMissingTensorAreNamed() throws IOException {
        Path sharded = root.resolve("sharded");
        shard(directory, sharded);
        Path index = sharded.resolve("model.safetensors.index.json");
        String map = Files.readString(index);
        Files.writeString(index, map.replace("\"lm_head.weight\": \"a.safetensors\", ", ""));
        assertThatThrownBy(() -> Checkpoint.open(sharded))
                .isInstanceOf(SafetensorsException.class)
                .hasMessage(
                        sharded.resolve("a.safetensors")
                                + ": weight 'lm_head.weight' is not in the weight_map of model.safetensors.index.json as this file's");
        Files.writeString(
                index, map.replace("\"lm_head.weight\": \"a.safetensors\"", "\"lm_head.weight\": \"b.safetensors\""));
        assertThatThrownBy(() -> Checkpoint.open(sharded))
                .isInstanceOf(SafetensorsException.class)
                .hasMessage(sharded.resolve("b.safetensors") + ": has no tensor 'lm_head.weight'");
        Files.writeString(index, map);
        Path single = Files.copy(directory.resolve("model.safetensors"), sharded.resolve("model.safetensors"));
        assertThatThrownBy(() -> Checkpoint.open(sharded))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("but there is a model.safetensors too");
        Files.delete(single);
        Files.delete(sharded.resolve("b.safetensors"));
        assertThatThrownBy(() -> Checkpoint.open(sharded))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("b.safetensors' is named by the index but missing");
    }

    @Test
    void truncatedWeightsAreNamed() throws IOException {
        Path weights = directory.resolve("model.safetensors");
        try (FileChannel channel = FileChannel.open(weights, StandardOpenOption.WRITE)) {
            channel.truncate(channel.size() - 100);
        }
        assertThatThrownBy(() -> Checkpoint.open(directory))
                .isInstanceOf(SafetensorsException.class)
                .hasMessageStartingWith(weights.toString())
                .hasMessageContaining("the file may be truncated");
    }

    private void editConfig(String from, String to) throws IOException {
        Path file = directory.resolve("config.json");
        String text = Files.readString(file);
        assertThat(text).contains(from);
        Files.writeString(file, text.replace(from, to));
    }

    private static String digest(Path directory) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            return checkpoint.fingerprint().digest();
        }
    }

    /** Writes the same checkpoint again in two files and an index. */
    private static void shard(Path from, Path to) throws IOException {
        Files.createDirectories(to);
        Files.copy(from.resolve("config.json"), to.resolve("config.json"));
        List<String> map = new ArrayList<>();
        try (SafetensorsFile file = SafetensorsFile.open(from.resolve("model.safetensors"))) {
            for (String shard : List.of("a", "b")) {
                List<SafetensorsWriter.Tensor> tensors = new ArrayList<>();
                for (String name : file.names()) {
                    if (name.contains("layers.1.") == shard.equals("b")) {
                        tensors.add(new SafetensorsWriter.Tensor(
                                name, file.info(name).dtype(), file.info(name).shape(), () -> file.data(name)));
                        map.add("\"%s\": \"%s.safetensors\"".formatted(name, shard));
                    }
                }
                SafetensorsWriter.write(to.resolve(shard + ".safetensors"), Map.of(), tensors);
            }
        }
        Files.writeString(
                to.resolve("model.safetensors.index.json"),
                "{\"metadata\": {}, \"weight_map\": {" + String.join(", ", map) + "}}");
    }
}
