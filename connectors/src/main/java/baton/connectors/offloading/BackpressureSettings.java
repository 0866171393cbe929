package baton.connectors.offloading;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.store.tiered.Backpressure;
import baton.store.tiered.Backpressure.Policy;
import java.util.List;
import java.util.Optional;
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
        all.ifPresent(each -> each.requireKnown(SETTINGS));
        own.ifPresent(each -> each.requireKnown(SETTINGS));
        JsonFields fields =
                own.map(each -> all.map(each::over).orElse(each)).or(() -> all).orElseThrow();
        Backpressure.Settings defaults = remote ? Backpressure.Settings.REMOTE : Backpressure.Settings.LOCAL;
        fields.choice(DETECTOR, "EMABackpressureDetector");
        boolean drops = fields.choice(POLICY, "ThrottledDropPolicy", "DropStorePolicy")
                .filter("DropStorePolicy"::equals)
                .isPresent();
        double high = fields.number(HIGH, Double.MIN_VALUE, 1e6).orElse(defaults.highWater());
        double low = fields.number(LOW, 0, 1e6).orElse(defaults.lowWater());
        if (low > high) {
            throw new ConfigException(fields.field(LOW), "is " + low + ", must be at most " + HIGH + "=" + high);
        }
        return Optional.of(new Backpressure.Settings(
                drops ? Policy.DROP : Policy.THROTTLED,
                high,
                low,
                fields.number(ALPHA, Double.MIN_VALUE, 1).orElse(defaults.alpha()),
                fields.integer(WARM_UP, 1, 1_000_000).orElse(defaults.warmUp()),
                fields.number(HALF_LIFE, 1e-6, 1e6).orElse(defaults.halfLife()),
                fields.number(COOLDOWN, 0, 1e6).orElse(defaults.cooldown()),
                fields.integerAtLeast(FAILURES, 1)
                        .orElse((files ? Backpressure.Settings.LOCAL : Backpressure.Settings.REMOTE)
                                .failureThreshold())));
    }
}
