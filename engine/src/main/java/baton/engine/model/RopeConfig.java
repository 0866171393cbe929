package baton.engine.model;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.LongRopeScaling;
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
import tools.jackson.databind.JsonNode;

/**
 * The rotary embedding of config.json: {@code rope_parameters} of transformers 5, or {@code rope_theta} and {@code rope_scaling} of
 * transformers 4.
 *
 * @param headDim elements of a head
 */
record RopeConfig(JsonFields json, DecoderFamily family, int headDim, int maxPositions) {
    /** The field by which layers with a window have a rotation of their own, among {@link DecoderFamily#ownFields} of families that may. */
    static final String OF_SLIDING = "rope_parameters.sliding_attention";

    /** The base of the frequencies of layers with a window, in families that have that field. */
    static final String LOCAL_THETA = "rope_local_base_freq";

    private static final Set<String> FIELDS_OF_ALL = Set.of(
            "rope_type",
            "type",
            "rope_theta",
            "partial_rotary_factor",
            "original_max_position_embeddings",
            "finetuned");

    /** @throws ConfigException naming the field that is malformed, unsupported, or contradicted by another */
    Rotation parse() {
        Optional<Double> theta = positive(json, "rope_theta");
        List<JsonFields> objects = objects(json).toList();
        List<Rotation> found = objects.stream()
                .map(fields -> parse(fields, theta, family.defaults().theta()))
                .distinct()
                .toList();
        if (found.size() > 1) {
            throw new ConfigException(
                    json.field("rope_scaling"),
                    "is %s, but rope_parameters is %s; both must say the same, or one be left out"
                            .formatted(objects.getFirst(), objects.getLast()));
        }
        return found.isEmpty()
                ? rotation(theta.orElse(family.defaults().theta()), Optional.empty(), share(json))
                : found.getFirst();
    }

    private static Stream<JsonFields> objects(JsonFields json) {
        return Stream.of("rope_scaling", "rope_parameters")
                .flatMap(name -> json.object(name).stream())
                .filter(fields -> !fields.isEmpty());
    }

    /**
     * The factor of all elements of queries, and of keys, by YaRN's {@code mscale_all_dim}, if it is there and not 0.
     *
     * @param factor of the scaling
     */
    static Optional<Double> factorOfAll(JsonFields json, double factor) {
        return objects(json)
                .findFirst()
                .filter(rope -> !rope.number("mscale_all_dim").equals(Optional.of(0.0)))
                .flatMap(rope -> positive(rope, "mscale_all_dim"))
                .map(scale -> yarnAmplitude(factor, scale));
    }

    /** The rotation of layers without a window, in a family with rotations that differ by layer. */
    Rotation ofFull() {
        return ofLayers("full_attention")
                .map(rope -> parse(
                        rope, positive(json, "rope_theta"), family.defaults().theta()))
                .orElseGet(this::parse);
    }

    /** The rotation of layers with a window, in a family with rotations that differ by layer; {@code rope_theta} has no effect on it. */
    Rotation ofSliding() {
        double theta = family.ownFields().contains(LOCAL_THETA)
                ? positive(json, LOCAL_THETA).orElse(10000.0)
                : family.defaults().theta();
        return ofLayers("sliding_attention")
                .map(rope -> parse(rope, Optional.empty(), theta))
                .orElseGet(() -> rotation(theta, Optional.empty(), Optional.empty()));
    }

    private Optional<JsonFields> ofLayers(String kind) {
        return json.object("rope_parameters").flatMap(rope -> rope.object(kind));
    }

    private Rotation parse(JsonFields rope, Optional<Double> outer, double defaultTheta) {
        Optional<Double> inner = positive(rope, "rope_theta");
        requireSame(rope, "rope_theta", outer, inner);
        Optional<Double> share = share(rope);
        requireSame(rope, "partial_rotary_factor", share(json), share);
        return rotation(inner.or(() -> outer).orElse(defaultTheta), scaling(rope), share.or(() -> share(json)));
    }

    private Rotation rotation(double theta, Optional<RopeScaling> scaling, Optional<Double> share) {
        return new Rotation(
                theta,
                scaling,
                share.orElse(family.defaults().share()),
                family.defaults().ofNeighbours());
    }

    /** How much of a head is turned. */
    private Optional<Double> share(JsonFields fields) {
        Optional<Double> share = positive(fields, "partial_rotary_factor");
        share.ifPresent(part -> {
            if (!family.ownFields().contains("partial_rotary_factor") && part != 1) {
                throw ConfigException.unsupported(fields.field("partial_rotary_factor"), part, "1");
            }
            int turned = (int) (part * headDim);
            if (part > 1 || turned < 2 || turned % 2 != 0) {
                throw new ConfigException(
                        fields.field("partial_rotary_factor"),
                        "is %s, so that %d of a head's %d elements are turned; they must be an even number of them"
                                .formatted(part, turned, headDim));
            }
        });
        return share;
    }

    private Optional<RopeScaling> scaling(JsonFields rope) {
        for (String kind : List.of("full_attention", "sliding_attention")) {
            if (rope.value(kind).isPresent()) {
                throw new ConfigException(rope.field(kind), "rotations that differ by layer are not supported");
            }
        }
        String typeField = rope.value("rope_type").isPresent() ? "rope_type" : "type";
        String type = current(rope.string(typeField).orElse("default"));
        rope.string("type").filter(other -> !current(other).equals(type)).ifPresent(other -> {
            throw new ConfigException(
                    rope.field("type"), "is '" + other + "', but rope_type is '" + type + "'; leave type out");
        });
        Optional<Integer> outer = json.integerAtLeast("original_max_position_embeddings", 1);
        Optional<Integer> inner = rope.integerAtLeast("original_max_position_embeddings", 1);
        requireSame(rope, "original_max_position_embeddings", outer, inner);
        Optional<Integer> named = inner.or(() -> outer);
        int original = named.orElse(maxPositions);
        return switch (type) {
            case "default" -> {
                requireKnown(rope, type, Set.of());
                yield Optional.empty();
            }
            case "linear" -> {
                requireKnown(rope, type, Set.of("factor"));
                yield Optional.of(new LinearRopeScaling(required(rope, "factor")));
            }
            case "dynamic" -> {
                // Stretches only sequences that are longer than the model allows.
                requireKnown(rope, type, Set.of("factor"));
                double _ = required(rope, "factor");
                yield Optional.empty();
            }
            case "longrope" -> {
                requireKnown(rope, type, Set.of("factor", "attention_factor", "short_factor", "long_factor"));
                yield Optional.of(longRope(rope, named));
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
                yield Optional.of(yarn(rope, original));
            }
            default ->
                throw ConfigException.unsupported(
                        rope.field(typeField), type, "default, linear, dynamic, llama3, yarn, longrope");
        };
    }

    /** The first Phi 3 had another name for LongRoPE. */
    private static String current(String type) {
        return type.equals("su") ? "longrope" : type;
    }

    private LongRopeScaling longRope(JsonFields rope, Optional<Integer> named) {
        List<Double> shortFactors = factors(rope, "short_factor");
        List<Double> longFactors = factors(rope, "long_factor");
        int original = named.orElseThrow(
                () -> new ConfigException(json.field("original_max_position_embeddings"), "is missing"));
        double factor = positive(rope, "factor").orElse((double) maxPositions / original);
        double attention = positive(rope, "attention_factor")
                .orElse(factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original)));
        requireAttentionFactor(rope, "original_max_position_embeddings", attention);
        return new LongRopeScaling(shortFactors, longFactors, original, attention);
    }

    /** One for each pair that is turned. */
    private List<Double> factors(JsonFields rope, String name) {
        JsonNode given = rope.value(name).orElseThrow(() -> new ConfigException(rope.field(name), "is missing"));
        int pairs = (int) (share(rope)
                                .or(() -> share(json))
                                .orElse(family.defaults().share())
                        * headDim)
                / 2;
        if (!given.isArray()
                || given.size() != pairs
                || given.valueStream().anyMatch(each -> !each.isNumber() || !(each.asDouble() > 0))) {
            throw new ConfigException(
                    rope.field(name),
                    "must be an array of a positive number for each of the %d pairs of a head that are turned, is %s"
                            .formatted(pairs, JsonFields.shown(given)));
        }
        return given.valueStream().map(JsonNode::asDouble).toList();
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

    private YarnRopeScaling yarn(JsonFields rope, int original) {
        double factor = positive(rope, "factor").orElse((double) maxPositions / original);
        Optional<Double> scale = rope.number("mscale").filter(value -> value != 0);
        Optional<Double> scaleAll = rope.number("mscale_all_dim").filter(value -> value != 0);
        double attention = positive(rope, "attention_factor")
                .or(() -> scale.flatMap(
                        one -> scaleAll.map(all -> yarnAmplitude(factor, one) / yarnAmplitude(factor, all))))
                .orElseGet(() -> yarnAmplitude(factor, 1));
        requireAttentionFactor(rope, "mscale", attention);
        double fast = positive(rope, "beta_fast").orElse(32.0);
        double slow = positive(rope, "beta_slow").orElse(1.0);
        if (fast <= slow) {
            throw new ConfigException(rope.field("beta_fast"), "is " + fast + ", must exceed beta_slow " + slow);
        }
        return new YarnRopeScaling(
                factor, original, attention, fast, slow, rope.bool("truncate").orElse(true));
    }

    /** @param source the field that it follows from unless it is named */
    private static void requireAttentionFactor(JsonFields rope, String source, double attention) {
        if (!((float) attention > 0) || !Float.isFinite((float) attention)) {
            throw new ConfigException(
                    rope.field(rope.value("attention_factor").isPresent() ? "attention_factor" : source),
                    "makes an attention_factor of " + attention + ", which must be positive and finite in float32");
        }
    }

    private static double yarnAmplitude(double factor, double scale) {
        return factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1;
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

    private <T> void requireSame(JsonFields rope, String name, Optional<T> outer, Optional<T> inner) {
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
