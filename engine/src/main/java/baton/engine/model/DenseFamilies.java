package baton.engine.model;

import static baton.engine.model.FamilyFields.attendingToAll;
import static baton.engine.model.FamilyFields.attention;
import static baton.engine.model.FamilyFields.attentionBiases;
import static baton.engine.model.FamilyFields.slidingLayers;
import static baton.engine.model.FamilyFields.windowPositions;

import baton.engine.model.DecoderFamily.Defaults;
import baton.engine.model.DecoderFamily.Shape;
import baton.engine.model.Recipe.Caps;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Plain;
import baton.engine.model.Recipe.Scales;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/** Families without experts that have a shape of their own. */
final class DenseFamilies {
    private static final Map<Part, String> ONE_TENSOR_OF_GATE_AND_UP =
            Map.of(Part.GATE, "mlp.gate_up_proj", Part.UP, "mlp.gate_up_proj");

    private DenseFamilies() {}

    static List<DecoderFamily> all() {
        return List.of(olmo2(), olmo3(), glm(), glm4(), graniteHybrid(), ministral(), starCoder2(), nemotron());
    }

    /** OLMo 2: norms of results in place of inputs, and of the queries and keys of all heads together. */
    private static DecoderFamily olmo2() {
        return new DecoderFamily(
                "Olmo2ForCausalLM",
                "olmo2",
                heads -> heads,
                Optional.empty(),
                new Defaults(10000, false, 1e-5),
                Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", false),
                Set.of(),
                (json, shape) -> olmo(json, shape, attendingToAll(shape)));
    }

    /** OLMo 3: by default every fourth layer attends to all positions, and only these stretch their rotation. */
    private static DecoderFamily olmo3() {
        return new DecoderFamily(
                "Olmo3ForCausalLM",
                "olmo3",
                heads -> heads,
                Optional.empty(),
                new Defaults(500000, false, 1e-5),
                Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", false),
                Set.of(RopeConfig.OF_SLIDING),
                (json, shape) -> {
                    Optional<Integer> window = windowPositions(json);
                    return olmo(
                            json,
                            shape,
                            attention(
                                    shape,
                                    window,
                                    slidingLayers(json, shape.layers(), window, layer -> (layer + 1) % 4 != 0),
                                    shape.ofSliding()));
                });
    }

    private static Recipe olmo(JsonFields json, Shape shape, List<LayerAttention> attention) {
        return Recipe.usual(
                shape.architecture(),
                attention,
                Recipe.with(
                        Recipe.USUAL_PRODUCTS,
                        Map.of(
                                Part.QUERIES_NORM, "self_attn.q_norm",
                                Part.KEYS_NORM, "self_attn.k_norm",
                                Part.AFTER_ATTENTION_NORM, "post_attention_layernorm",
                                Part.AFTER_FEED_FORWARD_NORM, "post_feedforward_layernorm")),
                attentionBiases(json));
    }

    private static DecoderFamily glm() {
        return glm("GlmForCausalLM", "glm", Recipe.USUAL_TENSORS);
    }

    private static DecoderFamily glm4() {
        return glm(
                "Glm4ForCausalLM",
                "glm4",
                Recipe.with(
                        Recipe.USUAL_TENSORS,
                        Map.of(
                                Part.AFTER_ATTENTION_NORM, "post_self_attn_layernorm",
                                Part.AFTER_FEED_FORWARD_NORM, "post_mlp_layernorm")));
    }

    /** GLM 4 without experts: half of each head is rotated, by interleaved pairs (GPT-J style). */
    private static DecoderFamily glm(String architecture, String modelType, Map<Part, String> tensors) {
        return new DecoderFamily(
                architecture,
                modelType,
                _ -> 2,
                Optional.of(128),
                new Defaults(10000, false, 1.5625e-7, 0.5, true),
                Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", false),
                Set.of("partial_rotary_factor"),
                (json, shape) -> Recipe.usual(
                        shape.architecture(),
                        attendingToAll(shape),
                        Recipe.with(tensors, ONE_TENSOR_OF_GATE_AND_UP),
                        json.bool("attention_bias").orElse(true) ? Part.PROJECTIONS : Set.of()));
    }

    /** Granite 4 with attention in all layers and without experts. */
    private static DecoderFamily graniteHybrid() {
        return new DecoderFamily(
                "GraniteMoeHybridForCausalLM",
                "granitemoehybrid",
                heads -> heads,
                Optional.empty(),
                new Defaults(10000, false, 1e-6),
                Map.of("hidden_act", "silu", "mlp_bias", false, "normalization_function", "rmsnorm", "qkv_bias", false),
                FamilyFields.union(
                        DecoderFamily.FACTORS,
                        Set.of(
                                "init_method",
                                "mamba_chunk_size",
                                "mamba_conv_bias",
                                "mamba_d_conv",
                                "mamba_d_head",
                                "mamba_d_state",
                                "mamba_expand",
                                "mamba_n_groups",
                                "mamba_n_heads",
                                "mamba_proj_bias",
                                "num_experts_per_tok",
                                "num_local_experts",
                                "position_embedding_type",
                                "time_step_limit")),
                Map.of("intermediate_size", "shared_intermediate_size"),
                DenseFamilies::graniteHybrid);
    }

    private static Recipe graniteHybrid(JsonFields json, Shape shape) {
        JsonNode types = json.value("layer_types")
                .orElseThrow(() -> new ConfigException(
                        json.field("layer_types"),
                        "is missing; must be 'attention' for each layer, as Mamba layers are not supported"));
        FamilyFields.checkLayerTypes(json, types, shape.layers(), List.of("attention", "full_attention"), false);
        int experts = json.integerAtLeast("num_local_experts", 0).orElse(8);
        if (experts > 0) {
            throw new ConfigException(
                    json.field("num_local_experts"),
                    "is " + experts + ", must be 0: Granite 4 with experts is not supported");
        }
        boolean rotates = json.string("position_embedding_type").orElse("").equals("rope");
        return DecoderFamily.granite(
                json,
                shape,
                Collections.nCopies(
                        shape.layers(),
                        new LayerAttention(
                                FamilyFields.EVERYTHING,
                                Optional.of(shape.rotation()).filter(_ -> rotates))),
                Recipe.with(
                        Recipe.USUAL_TENSORS,
                        Map.of(
                                Part.GATE, "shared_mlp.input_linear",
                                Part.UP, "shared_mlp.input_linear",
                                Part.DOWN, "shared_mlp.output_linear")),
                attentionBiases(json));
    }

    /** Ministral: as Mistral, with the window in some of its layers. */
    private static DecoderFamily ministral() {
        return new DecoderFamily(
                "MinistralForCausalLM",
                "ministral",
                _ -> 8,
                Optional.empty(),
                new Defaults(10000, false, 1e-6),
                Map.of("hidden_act", "silu", "attention_bias", false, "mlp_bias", false, "qkv_bias", false),
                Set.of(),
                (json, shape) -> {
                    Optional<Integer> window = windowPositions(json);
                    return Recipe.usual(
                            shape.architecture(),
                            attention(
                                    shape,
                                    window,
                                    slidingLayers(json, shape.layers(), window, _ -> true),
                                    shape.rotation()),
                            Recipe.USUAL_TENSORS,
                            Set.of());
                });
    }

    /** StarCoder 2. */
    private static DecoderFamily starCoder2() {
        return new DecoderFamily(
                "Starcoder2ForCausalLM",
                "starcoder2",
                _ -> 2,
                Optional.empty(),
                new Defaults(10000, true, 1e-5),
                Map.of("hidden_act", "gelu_pytorch_tanh", "mlp_type", "default", "norm_type", "layer_norm"),
                Set.of(
                        "attention_softmax_in_fp32",
                        "embedding_dropout",
                        "layer_norm_epsilon",
                        "residual_dropout",
                        "scale_attention_softmax_in_fp32",
                        "scale_attn_weights",
                        "use_bias"),
                Map.of("rms_norm_eps", "norm_epsilon"),
                (json, shape) -> ungated(
                        shape,
                        attention(shape, FamilyFields.window(json), _ -> true, shape.rotation()),
                        Map.of(Part.UP, "mlp.c_fc", Part.DOWN, "mlp.c_proj"),
                        json.bool("use_bias").orElse(true)
                                ? EnumSet.of(Part.QUERIES, Part.KEYS, Part.VALUES, Part.OUTPUT, Part.UP, Part.DOWN)
                                : Set.of(),
                        Plain.Function.GELU_TANH,
                        false));
    }

    /** Nemotron 4 and Minitron without Llama's shape: half of each head is rotated. */
    private static DecoderFamily nemotron() {
        return new DecoderFamily(
                "NemotronForCausalLM",
                "nemotron",
                heads -> heads,
                Optional.empty(),
                new Defaults(10000, false, 1e-5, 0.5, false),
                Map.of("hidden_act", "relu2", "qkv_bias", false),
                Set.of("partial_rotary_factor"),
                Map.of("rms_norm_eps", "norm_eps"),
                (json, shape) -> ungated(
                        shape,
                        attendingToAll(shape),
                        Map.of(),
                        FamilyFields.biases(json),
                        Plain.Function.RELU_SQUARED,
                        true));
    }

    /** A recipe with a feed-forward layer without gate, and norms with biases. */
    private static Recipe ungated(
            Shape shape,
            List<LayerAttention> attention,
            Map<Part, String> tensors,
            Set<Part> biased,
            Plain.Function function,
            boolean onePlusNorms) {
        Set<Part> all = EnumSet.of(Part.ATTENTION_NORM, Part.FEED_FORWARD_NORM);
        all.addAll(biased);
        return new Recipe(
                shape.architecture(),
                attention,
                Recipe.with(Recipe.USUAL_TENSORS, tensors),
                all,
                Collections.nCopies(attention.size(), new Plain(function)),
                Scales.NONE,
                onePlusNorms,
                Caps.NONE);
    }
}
