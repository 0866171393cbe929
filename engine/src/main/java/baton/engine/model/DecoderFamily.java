package baton.engine.model;

import static baton.engine.model.FamilyFields.EVERYTHING;
import static baton.engine.model.FamilyFields.attendingToAll;
import static baton.engine.model.FamilyFields.attention;
import static baton.engine.model.FamilyFields.attentionBiases;
import static baton.engine.model.FamilyFields.biases;
import static baton.engine.model.FamilyFields.byLayer;
import static baton.engine.model.FamilyFields.checkLayerTypes;
import static baton.engine.model.FamilyFields.denseLayers;
import static baton.engine.model.FamilyFields.experts;
import static baton.engine.model.FamilyFields.factor;
import static baton.engine.model.FamilyFields.rotatingLayers;
import static baton.engine.model.FamilyFields.slidingLayers;
import static baton.engine.model.FamilyFields.union;
import static baton.engine.model.FamilyFields.window;
import static baton.engine.model.FamilyFields.windowPositions;

import baton.engine.kernel.Activation;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Caps;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.FeedForward;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Reach;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Scales;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.math.BigDecimal;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;

/**
 * A family of decoders: how its config.json becomes a {@link Recipe}, with transformers' defaults. A new family is one more constant
 * here and its place in {@link #ALL}.
 *
 * @param architecture its name in config.json
 * @param modelType the name in {@code model_type}
 * @param defaultKvHeads {@code num_key_value_heads} of a config.json without that field, by the number of heads
 * @param defaultHeadDim {@code head_dim} of a config.json without that field; empty: the part of {@code hidden_size} of one head
 * @param defaults of other fields
 * @param fixed fields that the family does not let a model choose, and the value that they have in effect
 * @param ownFields fields that the family reads and most families do not
 * @param renamed the family's names of fields that other families have too, by those of other families
 * @param reader of the rest
 */
record DecoderFamily(
        String architecture,
        String modelType,
        IntUnaryOperator defaultKvHeads,
        Optional<Integer> defaultHeadDim,
        Defaults defaults,
        Map<String, Object> fixed,
        Set<String> ownFields,
        Map<String, String> renamed,
        Reader reader) {
    DecoderFamily(
            String architecture,
            String modelType,
            IntUnaryOperator defaultKvHeads,
            Optional<Integer> defaultHeadDim,
            Defaults defaults,
            Map<String, Object> fixed,
            Set<String> ownFields,
            Reader reader) {
        this(architecture, modelType, defaultKvHeads, defaultHeadDim, defaults, fixed, ownFields, Map.of(), reader);
    }

    /** The family's name of a field. */
    String field(String usual) {
        return renamed.getOrDefault(usual, usual);
    }

    private static final Defaults USUAL = new Defaults(10000, false, 1e-6);

    /** Tensors of a Qwen 3. */
    static final Map<Part, String> NORMED_HEADS = Recipe.with(
            Recipe.USUAL_TENSORS, Map.of(Part.QUERY_NORM, "self_attn.q_norm", Part.KEY_NORM, "self_attn.k_norm"));

    /** Tensors of experts of Qwen's families. */
    static final Map<Part, String> QWEN_EXPERTS = Map.of(
            Part.ROUTER, "mlp.gate",
            Part.EXPERT_GATE, "mlp.experts.*.gate_proj",
            Part.EXPERT_UP, "mlp.experts.*.up_proj",
            Part.EXPERT_DOWN, "mlp.experts.*.down_proj");

    /** Llama 2 and 3. */
    static final DecoderFamily LLAMA = new DecoderFamily(
            "LlamaForCausalLM",
            "llama",
            heads -> heads,
            Optional.empty(),
            USUAL,
            Map.of("hidden_act", "silu", "qkv_bias", false),
            Set.of(),
            DecoderFamily::llama);

    /** Mistral: all layers have the sliding window, unless it is null. */
    static final DecoderFamily MISTRAL = new DecoderFamily(
            "MistralForCausalLM",
            "mistral",
            _ -> 8,
            Optional.empty(),
            USUAL,
            Map.of("hidden_act", "silu", "attention_bias", false, "mlp_bias", false, "qkv_bias", false),
            Set.of(),
            DecoderFamily::mistral);

    /** Qwen 2 and 2.5. */
    static final DecoderFamily QWEN2 = new DecoderFamily(
            "Qwen2ForCausalLM",
            "qwen2",
            _ -> 32,
            Optional.empty(),
            USUAL,
            Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", true),
            Set.of(),
            (json, shape) -> Recipe.usual(
                    shape.architecture, qwenAttention(json, shape), Recipe.USUAL_TENSORS, Part.PROJECTIONS));

    /** Dense Qwen 3. */
    static final DecoderFamily QWEN3 = new DecoderFamily(
            "Qwen3ForCausalLM",
            "qwen3",
            _ -> 32,
            Optional.of(128),
            USUAL,
            Map.of("hidden_act", "silu", "mlp_bias", false, "qkv_bias", false),
            Set.of(),
            (json, shape) ->
                    Recipe.usual(shape.architecture, qwenAttention(json, shape), NORMED_HEADS, attentionBiases(json)));

    /** Gemma 2: every other layer attends to a window, and scores and logits have bounds. */
    static final DecoderFamily GEMMA2 = new DecoderFamily(
            "Gemma2ForCausalLM",
            "gemma2",
            _ -> 4,
            Optional.of(256),
            new Defaults(10000, true, 1e-6),
            Map.of("hidden_activation", "gelu_pytorch_tanh", "mlp_bias", false, "qkv_bias", false),
            Set.of("attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "query_pre_attn_scalar"),
            DecoderFamily::gemma2);

    /** The language models of Gemma 3: every sixth layer attends to all positions, the others to a window, by another rotation. */
    static final DecoderFamily GEMMA3 = new DecoderFamily(
            "Gemma3ForCausalLM",
            "gemma3_text",
            _ -> 4,
            Optional.of(256),
            new Defaults(1e6, true, 1e-6),
            Map.of("hidden_activation", "gelu_pytorch_tanh", "mlp_bias", false, "qkv_bias", false),
            Set.of(
                    "final_logit_softcapping",
                    "hidden_activation",
                    "query_pre_attn_scalar",
                    RopeConfig.LOCAL_THETA,
                    RopeConfig.OF_SLIDING,
                    "sliding_window_pattern"),
            DecoderFamily::gemma3);

    /** Fields of Granite's factors. */
    static final Set<String> FACTORS =
            Set.of("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier");

    /** Granite 3 without experts. */
    static final DecoderFamily GRANITE = new DecoderFamily(
            "GraniteForCausalLM",
            "granite",
            heads -> heads,
            Optional.empty(),
            USUAL,
            Map.of("hidden_act", "silu", "qkv_bias", false),
            FACTORS,
            DecoderFamily::granite);

    /** Phi 3 and 4, among them those that rotate a part of each head. */
    static final DecoderFamily PHI3 = new DecoderFamily(
            "Phi3ForCausalLM",
            "phi3",
            heads -> heads,
            Optional.empty(),
            new Defaults(10000, false, 1e-5),
            Map.of("hidden_act", "silu", "attention_bias", false, "mlp_bias", false, "qkv_bias", false),
            Set.of("partial_rotary_factor"),
            DecoderFamily::phi3);

    /** SmolLM 3: by default every fourth layer does not rotate, and has the sliding window if there is one. */
    static final DecoderFamily SMOLLM3 = new DecoderFamily(
            "SmolLM3ForCausalLM",
            "smollm3",
            _ -> 4,
            Optional.empty(),
            new Defaults(2e6, true, 1e-6),
            Map.of("hidden_act", "silu", "qkv_bias", false),
            Set.of("no_rope_layer_interval", "no_rope_layers"),
            DecoderFamily::smolLm3);

    private static final Set<String> QWEN_EXPERT_FIELDS = Set.of(
            "decoder_sparse_step",
            "mlp_only_layers",
            "moe_intermediate_size",
            "norm_topk_prob",
            "num_experts",
            "num_experts_per_tok",
            "num_local_experts");

    /** Qwen 3 with experts. */
    static final DecoderFamily QWEN3_MOE = new DecoderFamily(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            _ -> 4,
            Optional.empty(),
            USUAL,
            Map.of(
                    "hidden_act", "silu",
                    "mlp_bias", false,
                    "qkv_bias", false,
                    "use_qk_norm", true,
                    "use_sliding_window", false),
            union(QWEN_EXPERT_FIELDS, Set.of("use_qk_norm")),
            (json, shape) -> qwenWithExperts(
                    json,
                    shape,
                    NORMED_HEADS,
                    attentionBiases(json),
                    new Experts(128, 8, false, 768, 0, Activation.SILU)));

    /** Qwen 1.5 and 2 with experts, and a shared one that computes every token. */
    static final DecoderFamily QWEN2_MOE = new DecoderFamily(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            _ -> 16,
            Optional.empty(),
            USUAL,
            Map.of("hidden_act", "silu", "mlp_bias", false, "use_sliding_window", false),
            union(QWEN_EXPERT_FIELDS, Set.of("qkv_bias", "shared_expert_intermediate_size")),
            (json, shape) -> qwenWithExperts(
                    json,
                    shape,
                    Recipe.with(
                            Recipe.USUAL_TENSORS,
                            Map.of(
                                    Part.SHARED_ROUTER, "mlp.shared_expert_gate",
                                    Part.SHARED_GATE, "mlp.shared_expert.gate_proj",
                                    Part.SHARED_UP, "mlp.shared_expert.up_proj",
                                    Part.SHARED_DOWN, "mlp.shared_expert.down_proj")),
                    json.bool("qkv_bias").orElse(true) ? Part.PROJECTIONS : Set.of(),
                    new Experts(60, 4, false, 1408, 5632, Activation.SILU)));

    /** Mixtral: all layers have experts, and the sliding window if there is one. */
    static final DecoderFamily MIXTRAL = new DecoderFamily(
            "MixtralForCausalLM",
            "mixtral",
            _ -> 8,
            Optional.empty(),
            new Defaults(1e6, false, 1e-5),
            Map.of(
                    "hidden_act", "silu",
                    "attention_bias", false,
                    "mlp_bias", false,
                    "norm_topk_prob", true,
                    "qkv_bias", false),
            Set.of("num_experts", "num_experts_per_tok", "num_local_experts"),
            DecoderFamily::mixtral);

    /** gpt-oss: all layers have experts with biases, every other one a window, and each head of the queries has a sink. */
    static final DecoderFamily GPT_OSS = new DecoderFamily(
            "GptOssForCausalLM",
            "gpt_oss",
            _ -> 8,
            Optional.of(64),
            new Defaults(150000, false, 1e-5),
            Map.of("hidden_act", "silu", "mlp_bias", false, "norm_topk_prob", true, "qkv_bias", false),
            Set.of(
                    "experts_per_token",
                    "initial_context_length",
                    "num_experts",
                    "num_experts_per_tok",
                    "num_local_experts",
                    "quantization_config",
                    "swiglu_alpha",
                    "swiglu_limit"),
            DecoderFamily::gptOss);

    /** The supported families. */
    static final List<DecoderFamily> ALL = Stream.concat(
                    Stream.of(
                            LLAMA,
                            MISTRAL,
                            QWEN2,
                            QWEN3,
                            GEMMA2,
                            GEMMA3,
                            GRANITE,
                            PHI3,
                            SMOLLM3,
                            QWEN3_MOE,
                            QWEN2_MOE,
                            MIXTRAL,
                            GPT_OSS,
                            DeepSeekFamilies.V2,
                            DeepSeekFamilies.V3),
                    DenseFamilies.all().stream())
            .toList();

    /**
     * Values of fields that a config.json does not have.
     *
     * @param theta {@code rope_theta}
     * @param tied {@code tie_word_embeddings}
     * @param eps {@code rms_norm_eps}
     * @param share {@code partial_rotary_factor}
     * @param ofNeighbours whether rotations are of interleaved pairs (GPT-J style), which no field says
     */
    record Defaults(double theta, boolean tied, double eps, double share, boolean ofNeighbours) {
        Defaults(double theta, boolean tied, double eps) {
            this(theta, tied, eps, 1, false);
        }
    }

    /**
     * Values of fields that all families have.
     *
     * @param architecture the family's name in config.json
     * @param ofSliding the rotation of layers with a window in families that have one of their own for these
     */
    record Shape(String architecture, int layers, int hiddenSize, Rotation rotation, Rotation ofSliding) {}

    /** Reads a recipe. */
    @FunctionalInterface
    interface Reader {
        /** @throws ConfigException naming the field that is malformed or asks for something unsupported */
        Recipe read(JsonFields json, Shape shape);
    }

    /** @throws ConfigException listing the supported families if the checkpoint's is none of them */
    static DecoderFamily of(JsonFields json) {
        List<String> names = ALL.stream().map(DecoderFamily::architecture).toList();
        JsonNode architectures = json.value("architectures")
                .orElseThrow(() -> new ConfigException(
                        json.field("architectures"), "is missing; supported: " + String.join(", ", names)));
        int index = architectures.isArray() && architectures.size() == 1
                ? names.indexOf(architectures.get(0).asString(""))
                : -1;
        if (index < 0) {
            throw ConfigException.unsupported(
                    json.field("architectures"), architectures, "one of " + String.join(", ", names));
        }
        return ALL.get(index);
    }

    private static Recipe llama(JsonFields json, Shape shape) {
        Set<Part> biased = biases(json);
        if (json.bool("use_sliding_window").orElse(true)) {
            window(json).ifPresent(positions -> {
                throw new ConfigException(
                        json.field("sliding_window"),
                        "is " + positions + ", must be null: every layer of a Llama attends to all positions");
            });
        }
        json.value("layer_types").ifPresent(types -> checkLayerTypes(json, types, shape.layers));
        return Recipe.usual(shape.architecture, attendingToAll(shape), Recipe.USUAL_TENSORS, biased);
    }

    private static Recipe mistral(JsonFields json, Shape shape) {
        Optional<Integer> positions = windowPositions(json);
        if (positions.isPresent() && !json.bool("use_sliding_window").orElse(true)) {
            throw new ConfigException(
                    json.field("use_sliding_window"),
                    "is false, but a Mistral's layers have the window that sliding_window gives, which is "
                            + positions.get() + "; make that null");
        }
        IntPredicate slides = slidingLayers(json, shape.layers, positions, _ -> true);
        if (json.value("layer_types").isPresent()
                && !IntStream.range(0, shape.layers).allMatch(layer -> slides.test(layer) == positions.isPresent())) {
            throw new ConfigException(
                    json.field("layer_types"), "must be the same kind for all layers, as with sliding_window");
        }
        List<LayerAttention> attention = attention(shape, positions, slides, shape.rotation);
        return Recipe.usual(shape.architecture, attention, Recipe.USUAL_TENSORS, Set.of());
    }

    private static Recipe gemma3(JsonFields json, Shape shape) {
        Optional<Integer> positions = windowPositions(json);
        int pattern = json.integerAtLeast("sliding_window_pattern", 1)
                .or(() -> json.integerAtLeast("_sliding_window_pattern", 1))
                .orElse(6);
        IntPredicate slides = slidingLayers(json, shape.layers, positions, layer -> (layer + 1) % pattern != 0);
        return gemma(
                json,
                shape,
                attention(shape, positions, slides, shape.ofSliding),
                NORMED_HEADS,
                new Caps(Optional.empty(), cap(json, "final_logit_softcapping")));
    }

    private static Recipe gemma2(JsonFields json, Shape shape) {
        Optional<Integer> positions = windowPositions(json);
        IntPredicate slides = slidingLayers(json, shape.layers, positions, layer -> layer % 2 == 0);
        return gemma(
                json,
                shape,
                attention(shape, positions, slides, shape.rotation),
                Recipe.USUAL_TENSORS,
                new Caps(cap(json, "attn_logit_softcapping", 50), cap(json, "final_logit_softcapping", 30)));
    }

    private static Optional<Double> cap(JsonFields json, String field, double unlessNamed) {
        return json.names().contains(field) ? cap(json, field) : Optional.of(unlessNamed);
    }

    private static Optional<Double> cap(JsonFields json, String field) {
        Optional<Double> cap = CheckpointConfig.positiveNumber(json, field);
        // Kernels multiply by 2 / cap and 2 * cap / ln(2), in float32.
        cap.filter(value -> value < 1e-38 || value > 1e38).ifPresent(value -> {
            throw new ConfigException(json.field(field), "is " + value + ", must be at least 1e-38 and at most 1e38");
        });
        return cap;
    }

    /** @param tensors but for the norms around the feed-forward layer and behind attention */
    private static Recipe gemma(
            JsonFields json, Shape shape, List<LayerAttention> attention, Map<Part, String> tensors, Caps caps) {
        double perHead =
                CheckpointConfig.positiveNumber(json, "query_pre_attn_scalar").orElse(256.0);
        return new Recipe(
                shape.architecture,
                attention,
                Recipe.with(
                        tensors,
                        Map.of(
                                Part.AFTER_ATTENTION_NORM, "post_attention_layernorm",
                                Part.FEED_FORWARD_NORM, "pre_feedforward_layernorm",
                                Part.AFTER_FEED_FORWARD_NORM, "post_feedforward_layernorm")),
                attentionBiases(json),
                Collections.nCopies(shape.layers, new Dense(Activation.GELU_TANH)),
                new Scales(Math.sqrt(shape.hiddenSize), Optional.of(1 / Math.sqrt(perHead)), 1, 1),
                true,
                caps);
    }

    private static Recipe granite(JsonFields json, Shape shape) {
        return granite(json, shape, attendingToAll(shape), Recipe.USUAL_TENSORS, biases(json));
    }

    /** The usual recipe with Granite's factors. */
    static Recipe granite(
            JsonFields json, Shape shape, List<LayerAttention> attention, Map<Part, String> tensors, Set<Part> biased) {
        Scales scales = new Scales(
                factor(json, "embedding_multiplier"),
                Optional.of(factor(json, "attention_multiplier")),
                factor(json, "residual_multiplier"),
                1 / factor(json, "logits_scaling"));
        return new Recipe(
                shape.architecture,
                attention,
                tensors,
                biased,
                Collections.nCopies(attention.size(), new Dense(Activation.SILU)),
                scales,
                false,
                Caps.NONE);
    }

    private static Recipe phi3(JsonFields json, Shape shape) {
        return Recipe.usual(
                shape.architecture,
                attention(shape, window(json), _ -> true, shape.rotation),
                Recipe.with(
                        Recipe.USUAL_TENSORS,
                        Map.of(
                                Part.QUERIES, "self_attn.qkv_proj",
                                Part.KEYS, "self_attn.qkv_proj",
                                Part.VALUES, "self_attn.qkv_proj",
                                Part.GATE, "mlp.gate_up_proj",
                                Part.UP, "mlp.gate_up_proj")),
                Set.of());
    }

    private static Recipe smolLm3(JsonFields json, Shape shape) {
        IntPredicate rotates = rotatingLayers(json, shape.layers);
        Optional<Integer> positions = json.bool("use_sliding_window").orElse(false) ? window(json) : Optional.empty();
        IntPredicate slides = slidingLayers(json, shape.layers, positions, rotates.negate());
        List<LayerAttention> attention = byLayer(
                shape.layers,
                layer -> new LayerAttention(
                        positions
                                .filter(_ -> slides.test(layer))
                                .<Reach>map(Window::new)
                                .orElse(EVERYTHING),
                        Optional.of(shape.rotation).filter(_ -> rotates.test(layer))));
        return Recipe.usual(shape.architecture, attention, Recipe.USUAL_TENSORS, biases(json));
    }

    /** @param defaults of the fields of experts */
    private static Recipe qwenWithExperts(
            JsonFields json, Shape shape, Map<Part, String> tensors, Set<Part> biased, Experts defaults) {
        json.value("layer_types").ifPresent(types -> checkLayerTypes(json, types, shape.layers));
        int width = json.integerAtLeast("moe_intermediate_size", 1).orElse(defaults.width());
        int sharedWidth = defaults.sharedWidth() == 0
                ? 0
                : json.integerAtLeast("shared_expert_intermediate_size", 1).orElse(defaults.sharedWidth());
        boolean normalised = json.bool("norm_topk_prob").orElse(defaults.normalised());
        FeedForward experts = experts(
                json,
                new Experts(
                        defaults.count(), defaults.chosen(), normalised, width, sharedWidth, defaults.activation()));
        FeedForward dense = new Dense(defaults.activation());
        int step = json.integerAtLeast("decoder_sparse_step", 1).orElse(1);
        Set<Integer> denseLayers = denseLayers(json);
        return Recipe.usual(
                shape.architecture,
                attendingToAll(shape),
                Recipe.with(tensors, QWEN_EXPERTS),
                biased,
                byLayer(
                        shape.layers,
                        layer -> (layer + 1) % step != 0 || denseLayers.contains(layer) ? dense : experts));
    }

    private static Recipe gptOss(JsonFields json, Shape shape) {
        requireValue(json, "swiglu_alpha", Activation.SWIGLU_SLOPE);
        requireValue(json, "swiglu_limit", Activation.SWIGLU_LIMIT);
        if (json.value("rope_parameters").or(() -> json.value("rope_scaling")).isEmpty()) {
            throw new ConfigException(json.field("rope_scaling"), "is missing, must be of rope_type yarn");
        }
        if (shape.rotation.scaling().orElse(null) instanceof YarnRopeScaling yarn) {
            requireValue(json, "initial_context_length", yarn.originalMaxPositions());
        }
        json.object("quantization_config").ifPresent(quantization -> {
            String method = quantization.string("quant_method").orElse("");
            if (!method.equals("mxfp4")) {
                throw ConfigException.unsupported(quantization.field("quant_method"), method, "mxfp4");
            }
        });
        int width = json.integerAtLeast("intermediate_size", 1).orElseThrow();
        Experts experts = experts(json, new Experts(128, 4, true, width, 0, Activation.CLAMPED_SWIGLU));
        requireValue(json, "experts_per_token", experts.chosen());
        Optional<Integer> positions = windowPositions(json, 128);
        IntPredicate slides = slidingLayers(json, shape.layers, positions, layer -> layer % 2 == 0);
        Set<Part> biased = attentionBiases(json, true);
        biased.addAll(Set.of(Part.ROUTER, Part.EXPERT_GATE, Part.EXPERT_UP, Part.EXPERT_DOWN));
        return Recipe.usual(
                shape.architecture,
                attention(shape, positions, slides, shape.rotation),
                Recipe.with(
                        Recipe.USUAL_TENSORS,
                        Map.of(
                                Part.SINKS, "self_attn.sinks",
                                Part.ROUTER, "mlp.router",
                                Part.EXPERT_GATE, "mlp.experts.*.gate_proj",
                                Part.EXPERT_UP, "mlp.experts.*.up_proj",
                                Part.EXPERT_DOWN, "mlp.experts.*.down_proj")),
                biased,
                Collections.nCopies(shape.layers, experts));
    }

    private static void requireValue(JsonFields json, String field, double only) {
        json.number(field).filter(value -> value.floatValue() != (float) only).ifPresent(value -> {
            throw ConfigException.unsupported(json.field(field), plain(value), plain(only));
        });
    }

    /** Without the fraction of a whole number. */
    private static String plain(double number) {
        return BigDecimal.valueOf(number).stripTrailingZeros().toPlainString();
    }

    private static Recipe mixtral(JsonFields json, Shape shape) {
        int width = json.integerAtLeast("intermediate_size", 1).orElseThrow();
        Experts experts = experts(json, new Experts(8, 2, true, width, 0, Activation.SILU));
        return Recipe.usual(
                shape.architecture,
                attention(shape, window(json), _ -> true, shape.rotation),
                Recipe.with(
                        Recipe.USUAL_TENSORS,
                        Map.of(
                                Part.ROUTER, "block_sparse_moe.gate",
                                Part.EXPERT_GATE, "block_sparse_moe.experts.*.w1",
                                Part.EXPERT_UP, "block_sparse_moe.experts.*.w3",
                                Part.EXPERT_DOWN, "block_sparse_moe.experts.*.w2")),
                Set.of(),
                Collections.nCopies(shape.layers, experts));
    }

    /**
     * The layers' attention in Qwen's models: {@code use_sliding_window} is a switch, and the first {@code max_window_layers} have no
     * window.
     */
    private static List<LayerAttention> qwenAttention(JsonFields json, Shape shape) {
        Optional<Integer> positions =
                json.bool("use_sliding_window").orElse(false) ? windowPositions(json) : Optional.empty();
        int first = json.integerAtLeast("max_window_layers", 0).orElse(28);
        IntPredicate slides = slidingLayers(json, shape.layers, positions, layer -> layer >= first);
        return attention(shape, positions, slides, shape.rotation);
    }
}
