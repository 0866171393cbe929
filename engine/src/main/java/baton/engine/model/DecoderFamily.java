package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Dense;
import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Reach;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.AbstractList;
import java.util.Collections;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;

/**
 * A family of decoders: how its config.json becomes a {@link Recipe}, with transformers' defaults. A new family is one more constant
 * here and its place in {@link #ALL}.
 *
 * @param architecture the name in {@code architectures}
 * @param modelType the name in {@code model_type}
 * @param defaultKvHeads {@code num_key_value_heads} of a config.json without that field, by the number of heads
 * @param defaultHeadDim {@code head_dim} of a config.json without that field; empty: the part of {@code hidden_size} of one head
 * @param fixedBiases fields for biases that the family does not let a model choose, and the value that they have in effect
 * @param reader of the rest
 */
record DecoderFamily(
        String architecture,
        String modelType,
        IntUnaryOperator defaultKvHeads,
        Optional<Integer> defaultHeadDim,
        Map<String, Boolean> fixedBiases,
        Reader reader) {
    private static final Dense SILU = new Dense(Activation.SILU);
    private static final Reach EVERYTHING = new Everything();

    /** Tensors of a Qwen 3. */
    static final Map<Part, String> NORMED_HEADS =
            with(Recipe.USUAL_TENSORS, Map.of(Part.QUERY_NORM, "self_attn.q_norm", Part.KEY_NORM, "self_attn.k_norm"));

    /** Llama 2 and 3. */
    static final DecoderFamily LLAMA = new DecoderFamily(
            "LlamaForCausalLM",
            "llama",
            heads -> heads,
            Optional.empty(),
            Map.of("qkv_bias", false),
            DecoderFamily::llama);

    /** Mistral: all layers have the sliding window, unless it is null. */
    static final DecoderFamily MISTRAL = new DecoderFamily(
            "MistralForCausalLM",
            "mistral",
            _ -> 8,
            Optional.empty(),
            Map.of("attention_bias", false, "mlp_bias", false, "qkv_bias", false),
            DecoderFamily::mistral);

    /** Qwen 2 and 2.5. */
    static final DecoderFamily QWEN2 = new DecoderFamily(
            "Qwen2ForCausalLM",
            "qwen2",
            _ -> 32,
            Optional.empty(),
            Map.of("mlp_bias", false, "qkv_bias", true),
            (json, layers, rotation) -> new Recipe(
                    "Qwen2ForCausalLM",
                    qwenAttention(json, layers, rotation),
                    Recipe.USUAL_TENSORS,
                    Part.PROJECTIONS,
                    SILU));

    /** Dense Qwen 3. */
    static final DecoderFamily QWEN3 = new DecoderFamily(
            "Qwen3ForCausalLM",
            "qwen3",
            _ -> 32,
            Optional.of(128),
            Map.of("mlp_bias", false, "qkv_bias", false),
            (json, layers, rotation) -> new Recipe(
                    "Qwen3ForCausalLM",
                    qwenAttention(json, layers, rotation),
                    NORMED_HEADS,
                    attentionBiases(json),
                    SILU));

    /** The supported families. */
    static final List<DecoderFamily> ALL = List.of(LLAMA, MISTRAL, QWEN2, QWEN3);

    /** Reads a recipe. */
    @FunctionalInterface
    interface Reader {
        /**
         * @param rotation of the fields that all families share
         * @throws ConfigException naming the field that is malformed or asks for something unsupported
         */
        Recipe read(JsonFields json, int layers, Rotation rotation);
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

    private static Recipe llama(JsonFields json, int layers, Rotation rotation) {
        Set<Part> biased = attentionBiases(json);
        if (json.bool("mlp_bias").orElse(false)) {
            biased.addAll(List.of(Part.GATE, Part.UP, Part.DOWN));
        }
        if (json.bool("use_sliding_window").orElse(true)) {
            json.value("sliding_window").ifPresent(positions -> {
                throw new ConfigException(
                        json.field("sliding_window"),
                        "is " + positions + ", must be null: every layer of a Llama attends to all positions");
            });
        }
        json.value("layer_types").ifPresent(types -> checkLayerTypes(json, types, layers, false));
        List<LayerAttention> attention = Collections.nCopies(layers, new LayerAttention(EVERYTHING, rotation));
        return new Recipe("LlamaForCausalLM", attention, Recipe.USUAL_TENSORS, biased, SILU);
    }

    private static Recipe mistral(JsonFields json, int layers, Rotation rotation) {
        Optional<Integer> positions = windowPositions(json);
        if (positions.isPresent() && !json.bool("use_sliding_window").orElse(true)) {
            throw new ConfigException(
                    json.field("use_sliding_window"),
                    "is false, but a Mistral's layers have the window that sliding_window gives, which is "
                            + positions.get() + "; make that null");
        }
        IntPredicate slides = slidingLayers(json, layers, positions, _ -> true);
        if (json.value("layer_types").isPresent()
                && !IntStream.range(0, layers).allMatch(layer -> slides.test(layer) == positions.isPresent())) {
            throw new ConfigException(
                    json.field("layer_types"), "must be the same kind for all layers, as sliding_window has it");
        }
        List<LayerAttention> attention = attention(layers, positions, slides, rotation);
        return new Recipe("MistralForCausalLM", attention, Recipe.USUAL_TENSORS, Set.of(), SILU);
    }

    /** In Qwen's models {@code use_sliding_window} is a switch, and the first {@code max_window_layers} have no window. */
    private static List<LayerAttention> qwenAttention(JsonFields json, int layers, Rotation rotation) {
        Optional<Integer> positions =
                json.bool("use_sliding_window").orElse(false) ? windowPositions(json) : Optional.empty();
        int first = json.integerAtLeast("max_window_layers", 0).orElse(28);
        IntPredicate slides = slidingLayers(json, layers, positions, layer -> layer >= first);
        return attention(layers, positions, slides, rotation);
    }

    private static Set<Part> attentionBiases(JsonFields json) {
        Set<Part> biased = EnumSet.noneOf(Part.class);
        if (json.bool("attention_bias").orElse(false)) {
            biased.addAll(Part.PROJECTIONS);
            biased.add(Part.OUTPUT);
        }
        return biased;
    }

    /** Each layer's is made when it is asked for: config.json may name any number of layers, which the weights do not have. */
    private static List<LayerAttention> attention(
            int layers, Optional<Integer> window, IntPredicate slides, Rotation rotation) {
        LayerAttention everything = new LayerAttention(EVERYTHING, rotation);
        Optional<LayerAttention> sliding = window.map(positions -> new LayerAttention(new Window(positions), rotation));
        return new AbstractList<>() {
            @Override
            public LayerAttention get(int layer) {
                return sliding.filter(_ -> slides.test(layer)).orElse(everything);
            }

            @Override
            public int size() {
                return layers;
            }
        };
    }

    /** {@code sliding_window}: null for none, and a default if it is not there. */
    private static Optional<Integer> windowPositions(JsonFields json) {
        return json.names().contains("sliding_window") ? json.integerAtLeast("sliding_window", 1) : Optional.of(4096);
    }

    /**
     * The layers that {@code layer_types} gives the window to.
     *
     * @param positions of the window, if there is one
     * @param usual the layers that have it in a config.json without that field
     */
    private static IntPredicate slidingLayers(
            JsonFields json, int layers, Optional<Integer> positions, IntPredicate usual) {
        Optional<JsonNode> types = json.value("layer_types");
        types.ifPresent(named -> checkLayerTypes(json, named, layers, positions.isPresent()));
        return types.<IntPredicate>map(
                        named -> layer -> named.get(layer).asString("").equals("sliding_attention"))
                .orElse(usual);
    }

    private static void checkLayerTypes(JsonFields json, JsonNode types, int layers, boolean window) {
        String field = json.field("layer_types");
        if (!types.isArray() || types.size() != layers) {
            throw new ConfigException(field, "must be an array of num_hidden_layers=" + layers + ", is " + types);
        }
        for (int i = 0; i < layers; i++) {
            String type = types.get(i).asString("");
            if (!type.equals("full_attention") && !type.equals("sliding_attention")) {
                throw ConfigException.unsupported(
                        field + "[" + i + "]", types.get(i), "full_attention, sliding_attention");
            }
            if (type.equals("sliding_attention") && !window) {
                throw new ConfigException(field + "[" + i + "]", "is sliding_attention, but no sliding window is set");
            }
        }
    }

    private static Map<Part, String> with(Map<Part, String> tensors, Map<Part, String> more) {
        Map<Part, String> all = new EnumMap<>(tensors);
        all.putAll(more);
        return all;
    }
}
