package baton.kv;

import java.time.Duration;
import java.util.List;

/** Checks of settings. Each throws a {@link ConfigException} that names the field and its value. */
public final class Require {
    private Require() {}

    public static void positive(String field, long value) {
        if (value <= 0) {
            throw new ConfigException(field, "is " + value + ", must be positive");
        }
    }

    public static void atLeast(String field, long value, long least) {
        if (value < least) {
            throw new ConfigException(field, "is " + value + ", must be at least " + least);
        }
    }

    public static void between(String field, long value, long least, long most) {
        if (value < least || value > most) {
            throw new ConfigException(field, "is " + value + ", must be " + least + " to " + most);
        }
    }

    /** A port, or 0 for any free one. */
    public static void port(String field, int value) {
        between(field, value, 0, 65_535);
    }

    /** A finite number above 0. */
    public static void positive(String field, double value) {
        if (!(value > 0 && value < Double.POSITIVE_INFINITY)) {
            throw new ConfigException(field, "is " + value + ", must be positive and finite");
        }
    }

    public static void positive(String field, Duration value) {
        if (!value.isPositive()) {
            throw new ConfigException(field, "is " + value.toMillis() / 1e3 + " s, must be positive");
        }
    }

    public static void atLeast(String field, Duration value, Duration least) {
        if (value.compareTo(least) < 0) {
            throw new ConfigException(
                    field, "is " + value.toMillis() + " ms, must be at least " + least.toMillis() + " ms");
        }
    }

    /** Requires at least a millisecond and at most {@code most}. */
    public static void atMost(String field, Duration value, Duration most) {
        if (value.toMillis() < 1 || value.compareTo(most) > 0) {
            throw new ConfigException(field, "is " + value + ", must be 1 ms to " + most.toSeconds() + " s");
        }
    }

    /** Requires at least one number, each a positive multiple of {@code unit}. */
    public static void multiples(String field, List<Integer> values, int unit) {
        if (values.isEmpty() || values.stream().anyMatch(each -> each < unit || each % unit != 0)) {
            throw new ConfigException(field, "is " + values + ", must be multiples of " + unit);
        }
    }
}
