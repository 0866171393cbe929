package baton.connectors.offloading;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.store.tiered.Backpressure;
import baton.store.tiered.Backpressure.Policy;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.ToDoubleFunction;

/** Reads {@code backpressure}, by vLLM 0.33's names. */
final class BackpressureSettings {
    private static final String DETECTOR = "backpressure_cls";
    private static final String POLICY = "policy_cls";
    private static final String HIGH = "high_water_s";
    private static final String LOW = "low_water_s";
    private static final String ALPHA = "alpha";
    private static final String WARM_UP = "warmup_completions";
    private static final String HALF_LIFE = "decay_half_life_s";
    private static final String COOLDOWN = "cooldown_s";
    private static final String FAILURES = "failure_threshold";
    /** All of them. */
    static final List<Setting> SETTINGS = List.of(
            Setting.of(DETECTOR, "EMABackpressureDetector", "No other."),
            Setting.of(
                    POLICY,
                    "ThrottledDropPolicy",
                    "Under pressure: that drops a part of the writes, the larger the slower they are; `DropStorePolicy` all."),
            setting(HIGH, Backpressure.Settings::highWater, "Seconds for a MiB, on average, at which pressure begins."),
            setting(LOW, Backpressure.Settings::lowWater, "Seconds for a MiB at which it ends."),
            setting(ALPHA, Backpressure.Settings::alpha, "Weight of the last write in the average."),
            setting(WARM_UP, Backpressure.Settings::warmUp, "Writes of which the first average is made."),
            setting(
                    HALF_LIFE,
                    Backpressure.Settings::halfLife,
                    "Seconds without a write, under pressure, in which the average halves."),
            setting(
                    COOLDOWN,
                    Backpressure.Settings::cooldown,
                    "Seconds after pressure in which every other write is dropped."),
            Setting.absent(
                    FAILURES,
                    "of `fs` `" + Backpressure.Settings.LOCAL.failureThreshold() + "`, else none",
                    "Writes that fail one after the other at which pressure begins."));

    private BackpressureSettings() {}

    private static Setting setting(String name, ToDoubleFunction<Backpressure.Settings> value, String meaning) {
        double local = value.applyAsDouble(Backpressure.Settings.LOCAL);
        double remote = value.applyAsDouble(Backpressure.Settings.REMOTE);
        return Setting.absent(
                name,
                local == remote ? "`" + local + "`" : "`LOCAL`: `" + local + "`, `REMOTE`: `" + remote + "`",
                meaning);
    }

    /**
     * @param all of all tiers
     * @param own of the tier: it goes first, field by field
     * @param remote whether the tier is behind a network
     * @param files whether the tier is a file system
     * @return empty if neither is there
     */
    static Optional<Backpressure.Settings> of(
            Optional<JsonFields> all, Optional<JsonFields> own, boolean remote, boolean files) {
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
                number(own, all, COOLDOWN, defaults.cooldown(), 0, 1e6),
                (int) number(
                        own,
                        all,
                        FAILURES,
                        (files ? Backpressure.Settings.LOCAL : Backpressure.Settings.REMOTE).failureThreshold(),
                        1,
                        Integer.MAX_VALUE)));
    }

    private static void requireKnown(JsonFields fields) {
        Set<String> known = Setting.names(SETTINGS);
        for (String name : fields.names()) {
            if (!known.contains(name)) {
                throw new ConfigException(
                        fields.field(name),
                        "is not known; known: "
                                + String.join(", ", known.stream().sorted().toList()));
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
