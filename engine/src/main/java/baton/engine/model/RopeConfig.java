package baton.engine.model;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.RopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Rotation;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;

/**
 * The rotary embedding of config.json: {@code rope_parameters} of transformers 5, or {@code rope_theta} and {@code rope_scaling} of
 * transformers 4.
 */
final class RopeConfig {

    private static final Set<String> FIELDS_OF_ALL = Set.of(
            "rope_type",
            "type",
            "rope_theta",
            "partial_rotary_factor",
            "original_max_position_embeddings",
            "finetuned");

    private RopeConfig() {}

    /**
     * @param defaultTheta the family's base
     * @throws ConfigException naming the field that is malformed, unsupported, or contradicted by another
     */
    static Rotation parse(JsonFields json, int maxPositions, double defaultTheta) {
        requireWholeHeads(json);
        Optional<Double> theta = positive(json, "rope_theta");
        List<JsonFields> objects = Stream.of("rope_scaling", "rope_parameters")
                .flatMap(name -> json.object(name).stream())
                .filter(fields -> !fields.isEmpty())
                .toList();
        List<Rotation> found = objects.stream()
                .map(fields -> parse(json, fields, theta, maxPositions, defaultTheta))
                .distinct()
                .toList();
        if (found.size() > 1) {
            throw new ConfigException(
                    json.field("rope_scaling"),
                    "is %s, but rope_parameters is %s; both must say the same, or one be left out"
                            .formatted(objects.getFirst(), objects.getLast()));
        }
        return found.isEmpty() ? new Rotation(theta.orElse(defaultTheta), Optional.empty()) : found.getFirst();
    }

    /** The rotation that {@code rope_parameters} has for the layers of a kind of {@code layer_types}. */
    static Optional<Rotation> ofLayers(JsonFields json, String kind, int maxPositions) {
        return json.object("rope_parameters")
                .flatMap(rope -> rope.object(kind))
                .map(rope -> parse(json, rope, Optional.empty(), maxPositions, 10000));
    }

    private static Rotation parse(
            JsonFields json, JsonFields rope, Optional<Double> outer, int maxPositions, double defaultTheta) {
        requireWholeHeads(rope);
        Optional<Double> inner = positive(rope, "rope_theta");
        requireSame(json, rope, "rope_theta", outer, inner);
        return new Rotation(inner.or(() -> outer).orElse(defaultTheta), scaling(json, rope, maxPositions));
    }

    private static Optional<RopeScaling> scaling(JsonFields json, JsonFields rope, int maxPositions) {
        for (String kind : List.of("full_attention", "sliding_attention")) {
            if (rope.value(kind).isPresent()) {
                throw new ConfigException(rope.field(kind), "rotations that differ by layer are not supported");
            }
        }
        String typeField = rope.value("rope_type").isPresent() ? "rope_type" : "type";
        String type = rope.string(typeField).orElse("default");
        rope.string("type").filter(other -> !other.equals(type)).ifPresent(other -> {
            throw new ConfigException(
                    rope.field("type"), "is '" + other + "', but rope_type is '" + type + "'; leave type out");
        });
        Optional<Integer> outer = json.integerAtLeast("original_max_position_embeddings", 1);
        Optional<Integer> inner = rope.integerAtLeast("original_max_position_embeddings", 1);
        requireSame(json, rope, "original_max_position_embeddings", outer, inner);
        int original = inner.or(() -> outer).orElse(maxPositions);
        return switch (type) {
            case "default" -> {
                requireKnown(rope, type, Set.of());
                yield Optional.empty();
            }
            case "linear" -> {
                requireKnown(rope, type, Set.of("factor"));
                yield Optional.of(new LinearRopeScaling(required(rope, "factor")));
            }
            case "llama3" -> {
                requireKnown(rope, type, Set.of("factor", "low_freq_factor", "high_freq_factor"));
                yield Optional.of(llama3(rope, original));
            }
            case "yarn" -> {
                requireKnown(
                        rope,
                        type,
                        Set.of(
                                "factor",
                                "attention_factor",
                                "beta_fast",
                                "beta_slow",
                                "mscale",
                                "mscale_all_dim",
                                "truncate"));
                yield Optional.of(yarn(rope, maxPositions, original));
            }
            default -> throw ConfigException.unsupported(rope.field(typeField), type, "default, linear, llama3, yarn");
        };
    }

    private static Llama3RopeScaling llama3(JsonFields rope, int original) {
        double low = required(rope, "low_freq_factor");
        double high = required(rope, "high_freq_factor");
        if (high <= low) {
            throw new ConfigException(
                    rope.field("high_freq_factor"), "is " + high + ", must exceed low_freq_factor " + low);
        }
        return new Llama3RopeScaling(required(rope, "factor"), low, high, original);
    }

    private static YarnRopeScaling yarn(JsonFields rope, int maxPositions, int original) {
        double factor = positive(rope, "factor").orElse((double) maxPositions / original);
        Optional<Double> scale = rope.number("mscale").filter(value -> value != 0);
        Optional<Double> scaleAll = rope.number("mscale_all_dim").filter(value -> value != 0);
        double attention = positive(rope, "attention_factor")
                .or(() -> scale.flatMap(
                        one -> scaleAll.map(all -> yarnAmplitude(factor, one) / yarnAmplitude(factor, all))))
                .orElseGet(() -> yarnAmplitude(factor, 1));
        if (!(attention > 0) || attention == Double.POSITIVE_INFINITY) {
            throw new ConfigException(
                    rope.field("mscale"), "makes an attention_factor of " + attention + ", which must be positive");
        }
        double fast = positive(rope, "beta_fast").orElse(32.0);
        double slow = positive(rope, "beta_slow").orElse(1.0);
        if (fast <= slow) {
            throw new ConfigException(rope.field("beta_fast"), "is " + fast + ", must exceed beta_slow " + slow);
        }
        return new YarnRopeScaling(
                factor, original, attention, fast, slow, rope.bool("truncate").orElse(true));
    }

    private static double yarnAmplitude(double factor, double scale) {
        return factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1;
    }

    private static void requireWholeHeads(JsonFields fields) {
        fields.number("partial_rotary_factor").filter(share -> share != 1).ifPresent(share -> {
            throw ConfigException.unsupported(fields.field("partial_rotary_factor"), share, "1");
        });
    }

    /** A field that the type does not have was meant for another type, or for a program that computes another rotation. */
    private static void requireKnown(JsonFields rope, String type, Set<String> own) {
        Set<String> known = new TreeSet<>(FIELDS_OF_ALL);
        known.addAll(own);
        for (String name : new TreeSet<>(rope.names())) {
            if (!known.contains(name)) {
                rope.value(name).ifPresent(value -> {
                    throw new ConfigException(
                            rope.field(name),
                            "is " + value + ", but rope_type '" + type + "' has no such field; it has "
                                    + String.join(", ", known));
                });
            }
        }
    }

    private static <T> void requireSame(
            JsonFields json, JsonFields rope, String name, Optional<T> outer, Optional<T> inner) {
        if (outer.isPresent() && inner.isPresent() && !outer.equals(inner)) {
            throw new ConfigException(
                    rope.field(name),
                    "is %s, but %s is %s; both must be the same, or one be left out"
                            .formatted(inner.get(), json.field(name), outer.get()));
        }
    }

    private static double required(JsonFields fields, String name) {
        return positive(fields, name).orElseThrow(() -> new ConfigException(fields.field(name), "is missing"));
    }

    private static Optional<Double> positive(JsonFields fields, String name) {
        return CheckpointConfig.positiveNumber(fields, name);
    }
}
