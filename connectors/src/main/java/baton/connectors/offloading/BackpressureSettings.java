package baton.connectors.offloading;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.store.tiered.Backpressure;
import baton.store.tiered.Backpressure.Policy;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiFunction;

/** Reads {@code backpressure}, by vLLM 0.32's names. */
final class BackpressureSettings {
    private static final String DETECTOR = "backpressure_cls";
    private static final String POLICY = "policy_cls";
    private static final String HIGH = "high_water_s";
    private static final String LOW = "low_water_s";
    private static final String ALPHA = "alpha";
    private static final String WARM_UP = "warmup_completions";
    private static final String HALF_LIFE = "decay_half_life_s";
    private static final String COOLDOWN = "cooldown_s";
    private static final Set<String> NAMES = Set.of(DETECTOR, POLICY, HIGH, LOW, ALPHA, WARM_UP, HALF_LIFE, COOLDOWN);

    private BackpressureSettings() {}

    /**
     * @param all of all tiers
     * @param own of the tier: it goes first, field by field
     * @return empty if neither is there
     */
    static Optional<Backpressure.Settings> of(Optional<JsonFields> all, Optional<JsonFields> own, boolean remote) {
        if (all.isEmpty() && own.isEmpty()) {
            return Optional.empty();
        }
        all.ifPresent(BackpressureSettings::requireKnown);
        own.ifPresent(BackpressureSettings::requireKnown);
        Backpressure.Settings defaults = remote ? Backpressure.Settings.REMOTE : Backpressure.Settings.LOCAL;
        text(own, all, DETECTOR, "EMABackpressureDetector", Set.of("EMABackpressureDetector"));
        String policy = text(own, all, POLICY, "ThrottledDropPolicy", Set.of("ThrottledDropPolicy", "DropStorePolicy"));
        double high = number(own, all, HIGH, defaults.highWater(), Double.MIN_NORMAL, 1e6);
        double low = number(own, all, LOW, defaults.lowWater(), 0, 1e6);
        if (low > high) {
            throw new ConfigException(
                    own.or(() -> all).orElseThrow().field(LOW), "is " + low + ", must be at most " + HIGH + "=" + high);
        }
        return Optional.of(new Backpressure.Settings(
                policy.equals("DropStorePolicy") ? Policy.DROP : Policy.THROTTLED,
                high,
                low,
                number(own, all, ALPHA, defaults.alpha(), Double.MIN_NORMAL, 1),
                (int) number(own, all, WARM_UP, defaults.warmUp(), 1, 1e6),
                number(own, all, HALF_LIFE, defaults.halfLife(), 1e-6, 1e6),
                number(own, all, COOLDOWN, defaults.cooldown(), 0, 1e6)));
    }

    private static void requireKnown(JsonFields fields) {
        for (String name : fields.names()) {
            if (!NAMES.contains(name)) {
                throw new ConfigException(
                        fields.field(name),
                        "is not known; known: "
                                + String.join(", ", NAMES.stream().sorted().toList()));
            }
        }
    }

    private static <T> Optional<T> first(
            Optional<JsonFields> own,
            Optional<JsonFields> all,
            String name,
            BiFunction<JsonFields, String, Optional<T>> reader) {
        return own.flatMap(fields -> reader.apply(fields, name))
                .or(() -> all.flatMap(fields -> reader.apply(fields, name)));
    }

    private static String text(
            Optional<JsonFields> own, Optional<JsonFields> all, String name, String ifAbsent, Set<String> allowed) {
        String value = first(own, all, name, JsonFields::string).orElse(ifAbsent);
        if (!allowed.contains(value)) {
            throw ConfigException.unsupported(
                    own.or(() -> all).orElseThrow().field(name),
                    value,
                    String.join(", ", allowed.stream().sorted().toList()));
        }
        return value;
    }

    private static double number(
            Optional<JsonFields> own, Optional<JsonFields> all, String name, double ifAbsent, double min, double max) {
        double value = first(own, all, name, JsonFields::number).orElse(ifAbsent);
        if (!(value >= min && value <= max)) {
            throw new ConfigException(
                    own.or(() -> all).orElseThrow().field(name),
                    "is " + value + ", must be " + (min == Double.MIN_NORMAL ? "more than 0" : "at least " + min)
                            + " and at most " + max);
        }
        return value;
    }
}
