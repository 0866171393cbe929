package baton.bench.frame;

import baton.kv.ConfigException;
import java.time.Duration;
import java.util.List;

/** Checks of settings. Each throws a {@link ConfigException} that names the field and its value. */
public final class Require {
    private Require() {}

    public static int positive(String field, int value) {
        return atLeast(field, value, 1, "must be positive");
    }

    public static int atLeast(String field, int value, int least) {
        return atLeast(field, value, least, "must be at least " + least);
    }

    private static int atLeast(String field, int value, int least, String wanted) {
        if (value < least) {
            throw new ConfigException(field, "is " + value + ", " + wanted);
        }
        return value;
    }

    /** A finite number above 0. */
    public static double positive(String field, double value) {
        if (!(value > 0 && value < Double.POSITIVE_INFINITY)) {
            throw new ConfigException(field, "is " + value + ", must be positive and finite");
        }
        return value;
    }

    public static Duration positive(String field, Duration value) {
        if (!value.isPositive()) {
            throw new ConfigException(field, "is " + value.toMillis() / 1e3 + ", must be positive");
        }
        return value;
    }

    /** Lengths in tokens: at least one, each a multiple of the block size. */
    public static List<Integer> tokens(List<Integer> tokens, int blockSize) {
        if (tokens.isEmpty()) {
            throw new ConfigException("tokens", "is empty, must have at least one number");
        }
        for (int count : tokens) {
            if (count < blockSize || count % blockSize != 0) {
                throw new ConfigException(
                        "tokens", "has %d, must be multiples of the block size of %d".formatted(count, blockSize));
            }
        }
        return List.copyOf(tokens);
    }
}
