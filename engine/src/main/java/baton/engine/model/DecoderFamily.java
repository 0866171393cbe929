package baton.engine.model;

import baton.engine.model.ModelConfig.SlidingWindow;
import baton.engine.model.ModelConfig.Variant;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;

/**
 * A family of dense decoders: what its config.json says beyond the fields that all families share, with transformers' defaults.
 * All norm their layers' input by its root mean square, rotate the halves of heads and gate the feed-forward layer by SiLU. A new
 * family is one more class here and its place in {@link #all}.
 */
sealed interface DecoderFamily {
    /** The supported families. */
    static List<DecoderFamily> all() {
        return List.of(new Llama(), new Mistral(), new Qwen2(), new Qwen3());
    }

    /** {@code num_key_value_heads} of a Qwen's config.json without that field. */
    int QWEN_KV_HEADS = 32;

    /** The name in {@code architectures}. */
    String architecture();

    /** The name in {@code model_type}. */
    String modelType();

    /** {@code num_key_value_heads} of a config.json without that field. */
    int defaultKvHeads(int heads);

    /** {@code head_dim} of a config.json without that field; empty: that part of {@code hidden_size} that falls to a head. */
    default Optional<Integer> defaultHeadDim() {
        return Optional.empty();
    }

    /** Fields for biases that are not the family's to choose, and the value that they have in effect. */
    Map<String, Boolean> fixedBiases();

    /** @throws ConfigException naming the field that is malformed or asks for something unsupported */
    Variant variant(JsonFields json, int layers);

    /** @throws ConfigException listing the supported families if the checkpoint's is none of them */
    static DecoderFamily of(JsonFields json) {
        List<String> names = all().stream().map(DecoderFamily::architecture).toList();
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
        return all().get(index);
    }

    /** Llama 2 and 3. */
    record Llama() implements DecoderFamily {
        @Override
        public String architecture() {
            return "LlamaForCausalLM";
        }

        @Override
        public String modelType() {
            return "llama";
        }

        @Override
        public int defaultKvHeads(int heads) {
            return heads;
        }

        @Override
        public Map<String, Boolean> fixedBiases() {
            return Map.of("qkv_bias", false);
        }

        @Override
        public Variant variant(JsonFields json, int layers) {
            boolean attention = json.bool("attention_bias").orElse(false);
            boolean feedForward = json.bool("mlp_bias").orElse(false);
            if (json.bool("use_sliding_window").orElse(true)) {
                json.value("sliding_window").ifPresent(positions -> {
                    throw new ConfigException(
                            json.field("sliding_window"),
                            "is " + positions + ", must be null: every layer of a Llama attends to all positions");
                });
            }
            json.value("layer_types").ifPresent(types -> checkLayerTypes(json, types, layers, false));
            return new Variant(architecture(), attention, attention, feedForward, false, Optional.empty());
        }
    }

    /** Mistral: all layers have the sliding window, unless it is null. */
    record Mistral() implements DecoderFamily {
        @Override
        public String architecture() {
            return "MistralForCausalLM";
        }

        @Override
        public String modelType() {
            return "mistral";
        }

        @Override
        public int defaultKvHeads(int heads) {
            return 8;
        }

        @Override
        public Map<String, Boolean> fixedBiases() {
            return Map.of("attention_bias", false, "mlp_bias", false, "qkv_bias", false);
        }

        @Override
        public Variant variant(JsonFields json, int layers) {
            Optional<Integer> positions = windowPositions(json);
            if (positions.isPresent() && !json.bool("use_sliding_window").orElse(true)) {
                throw new ConfigException(
                        json.field("use_sliding_window"),
                        "is false, but a Mistral's layers have the window that sliding_window gives, which is "
                                + positions.get() + "; make that null");
            }
            Optional<SlidingWindow> window = slidingWindow(json, layers, positions, _ -> true);
            if (window.isPresent() != positions.isPresent()
                    || window.stream().anyMatch(sliding -> sliding.layers().size() < layers)) {
                throw new ConfigException(
                        json.field("layer_types"), "must be the same kind for all layers, as sliding_window has it");
            }
            return new Variant(architecture(), false, false, false, false, window);
        }
    }

    /** Qwen 2 and 2.5. */
    record Qwen2() implements DecoderFamily {
        @Override
        public String architecture() {
            return "Qwen2ForCausalLM";
        }

        @Override
        public String modelType() {
            return "qwen2";
        }

        @Override
        public int defaultKvHeads(int heads) {
            return QWEN_KV_HEADS;
        }

        @Override
        public Map<String, Boolean> fixedBiases() {
            return Map.of("mlp_bias", false, "qkv_bias", true);
        }

        @Override
        public Variant variant(JsonFields json, int layers) {
            return new Variant(architecture(), true, false, false, false, qwenWindow(json, layers));
        }
    }

    /** Dense Qwen 3. */
    record Qwen3() implements DecoderFamily {
        @Override
        public String architecture() {
            return "Qwen3ForCausalLM";
        }

        @Override
        public String modelType() {
            return "qwen3";
        }

        @Override
        public int defaultKvHeads(int heads) {
            return QWEN_KV_HEADS;
        }

        @Override
        public Optional<Integer> defaultHeadDim() {
            return Optional.of(128);
        }

        @Override
        public Map<String, Boolean> fixedBiases() {
            return Map.of("mlp_bias", false, "qkv_bias", false);
        }

        @Override
        public Variant variant(JsonFields json, int layers) {
            boolean bias = json.bool("attention_bias").orElse(false);
            return new Variant(architecture(), bias, bias, false, true, qwenWindow(json, layers));
        }
    }

    /** In Qwen's models {@code use_sliding_window} is a switch, and the first {@code max_window_layers} have no window. */
    private static Optional<SlidingWindow> qwenWindow(JsonFields json, int layers) {
        Optional<Integer> positions =
                json.bool("use_sliding_window").orElse(false) ? windowPositions(json) : Optional.empty();
        int first = json.integerAtLeast("max_window_layers", 0).orElse(28);
        return slidingWindow(json, layers, positions, layer -> layer >= first);
    }

    /** {@code sliding_window}: null for none, and a default if it is not there. */
    private static Optional<Integer> windowPositions(JsonFields json) {
        return json.names().contains("sliding_window") ? json.integerAtLeast("sliding_window", 1) : Optional.of(4096);
    }

    /** The window of the layers that {@code layer_types} names, or without that field of those that {@code usual} holds for. */
    private static Optional<SlidingWindow> slidingWindow(
            JsonFields json, int layers, Optional<Integer> positions, IntPredicate usual) {
        Optional<JsonNode> types = json.value("layer_types");
        types.ifPresent(named -> checkLayerTypes(json, named, layers, positions.isPresent()));
        IntPredicate slides = types.<IntPredicate>map(
                        named -> layer -> named.get(layer).asString("").equals("sliding_attention"))
                .orElse(usual);
        List<Integer> sliding =
                IntStream.range(0, layers).filter(slides).boxed().toList();
        return positions.filter(_ -> !sliding.isEmpty()).map(window -> new SlidingWindow(window, sliding));
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
}
