package baton.engine.model;

import baton.engine.model.DecoderFamily.Shape;
import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Reach;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.AbstractList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntFunction;
import java.util.function.IntPredicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;

/** Reads the fields of config.json that several families have. */
final class FamilyFields {
    static final Reach EVERYTHING = new Everything();

    private static final List<String> LAYER_TYPES = List.of("full_attention", "sliding_attention");

    private FamilyFields() {}

    static Set<String> union(Set<String> fields, Set<String> more) {
        return Stream.concat(fields.stream(), more.stream()).collect(Collectors.toUnmodifiableSet());
    }

    static double factor(JsonFields json, String field) {
        return CheckpointConfig.positiveNumber(json, field).orElse(1.0);
    }

    static Set<Integer> denseLayers(JsonFields json) {
        Optional<JsonNode> layers = json.value("mlp_only_layers");
        layers.ifPresent(given -> {
            if (!given.isArray() || given.valueStream().anyMatch(each -> !each.isInt())) {
                throw new ConfigException(
                        json.field("mlp_only_layers"), "must be an array of numbers of layers, is " + given);
            }
        });
        return layers.stream()
                .flatMap(JsonNode::valueStream)
                .map(JsonNode::asInt)
                .collect(Collectors.toSet());
    }

    /**
     * Reads how many experts there are, and how many a token has. transformers writes {@code num_experts} as {@code num_local_experts} too.
     *
     * @param defaults with all else
     */
    static Experts experts(JsonFields json, Experts defaults) {
        Optional<Integer> given = json.integerAtLeast("num_experts", 1);
        Optional<Integer> local = json.integerAtLeast("num_local_experts", 1);
        if (given.isPresent() && local.isPresent() && !given.equals(local)) {
            throw new ConfigException(
                    json.field("num_local_experts"),
                    "is %d, but num_experts is %d; both must be the same".formatted(local.get(), given.get()));
        }
        int count = given.or(() -> local).orElse(defaults.count());
        int chosen = json.integerAtLeast("num_experts_per_tok", 1).orElse(defaults.chosen());
        if (chosen > count) {
            throw new ConfigException(
                    json.field("num_experts_per_tok"),
                    "is %d, must be at most the number of experts, which is %d".formatted(chosen, count));
        }
        return new Experts(
                count, chosen, defaults.normalised(), defaults.width(), defaults.sharedWidth(), defaults.activation());
    }

    /** {@code no_rope_layers} has 1 for a layer that rotates, and 0 for one that does not. */
    static IntPredicate rotatingLayers(JsonFields json, int layers) {
        int interval = json.integerAtLeast("no_rope_layer_interval", 1).orElse(4);
        Optional<JsonNode> rotates = json.value("no_rope_layers");
        rotates.ifPresent(given -> {
            if (!given.isArray()
                    || given.size() < layers
                    || given.valueStream().anyMatch(each -> !each.isInt() || (each.asInt() & ~1) != 0)) {
                throw new ConfigException(
                        json.field("no_rope_layers"),
                        "must be an array of 0 or 1 for each of num_hidden_layers=" + layers + ", is " + given);
            }
        });
        return rotates.<IntPredicate>map(given -> layer -> given.get(layer).asInt() == 1)
                .orElse(layer -> (layer + 1) % interval != 0);
    }

    static Set<Part> biases(JsonFields json) {
        Set<Part> biased = attentionBiases(json);
        if (json.bool("mlp_bias").orElse(false)) {
            biased.addAll(List.of(Part.GATE, Part.UP, Part.DOWN));
        }
        return biased;
    }

    static Set<Part> attentionBiases(JsonFields json) {
        return attentionBiases(json, false);
    }

    static Set<Part> attentionBiases(JsonFields json, boolean unlessNamed) {
        Set<Part> biased = EnumSet.noneOf(Part.class);
        if (json.bool("attention_bias").orElse(unlessNamed)) {
            biased.addAll(Part.PROJECTIONS);
            biased.add(Part.OUTPUT);
        }
        return biased;
    }

    static List<LayerAttention> attendingToAll(Shape shape) {
        return Collections.nCopies(shape.layers(), new LayerAttention(EVERYTHING, shape.rotation()));
    }

    static List<LayerAttention> attention(
            Shape shape, Optional<Integer> window, IntPredicate slides, Rotation ofSliding) {
        LayerAttention everything = new LayerAttention(EVERYTHING, shape.rotation());
        Optional<LayerAttention> sliding =
                window.map(positions -> new LayerAttention(new Window(positions), ofSliding));
        return byLayer(
                shape.layers(), layer -> sliding.filter(_ -> slides.test(layer)).orElse(everything));
    }

    /** Each layer's is made when it is asked for: config.json may name any number of layers, which the weights do not have. */
    static <T> List<T> byLayer(int layers, IntFunction<T> ofLayer) {
        return new AbstractList<>() {
            @Override
            public T get(int layer) {
                return ofLayer.apply(layer);
            }

            @Override
            public int size() {
                return layers;
            }
        };
    }

    /** {@code sliding_window}: null for none, and a default if it is not there. */
    static Optional<Integer> windowPositions(JsonFields json) {
        return windowPositions(json, 4096);
    }

    static Optional<Integer> windowPositions(JsonFields json, int unlessNamed) {
        return json.names().contains("sliding_window") ? window(json) : Optional.of(unlessNamed);
    }

    /** {@code sliding_window}: null or 0 for none. */
    static Optional<Integer> window(JsonFields json) {
        return json.integerAtLeast("sliding_window", 0).filter(positions -> positions > 0);
    }

    /** A field in which null is {@code none}, and that is {@code unlessNamed} if it is not there. */
    static int orNone(JsonFields json, String field, int min, int unlessNamed, int none) {
        return json.names().contains(field) ? json.integerAtLeast(field, min).orElse(none) : unlessNamed;
    }

    /**
     * The layers that {@code layer_types} gives the window to.
     *
     * @param positions of the window, if there is one
     * @param usual the layers that have it in a config.json without that field
     */
    static IntPredicate slidingLayers(JsonFields json, int layers, Optional<Integer> positions, IntPredicate usual) {
        Optional<JsonNode> types = json.value("layer_types");
        types.ifPresent(named -> checkLayerTypes(json, named, layers, LAYER_TYPES, positions.isPresent()));
        return types.<IntPredicate>map(
                        named -> layer -> named.get(layer).asString("").equals("sliding_attention"))
                .orElse(usual);
    }

    static void checkLayerTypes(JsonFields json, JsonNode types, int layers) {
        checkLayerTypes(json, types, layers, LAYER_TYPES, false);
    }

    /** @param allowed types of layers */
    static void checkLayerTypes(JsonFields json, JsonNode types, int layers, List<String> allowed, boolean window) {
        String field = json.field("layer_types");
        if (!types.isArray() || types.size() != layers) {
            throw new ConfigException(
                    field, "must be an array of num_hidden_layers=" + layers + ", is " + JsonFields.shown(types));
        }
        for (int i = 0; i < layers; i++) {
            String type = types.get(i).asString("");
            if (!allowed.contains(type)) {
                throw ConfigException.unsupported(
                        field + "[" + i + "]", JsonFields.shown(types.get(i)), String.join(", ", allowed));
            }
            if (type.equals("sliding_attention") && !window) {
                throw new ConfigException(field + "[" + i + "]", "is sliding_attention, but no sliding window is set");
            }
        }
    }
}
