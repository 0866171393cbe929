package baton.cli;

import java.time.Duration;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;

/** Values of options that several bench commands have. */
final class BenchValues {
    private static final int MOST_COPYING = 4;

    private BenchValues() {}

    static Duration seconds(double seconds) {
        return Duration.ofNanos(Math.round(seconds * 1e9));
    }

    static OptionalInt optional(@Nullable Integer number) {
        return number == null ? OptionalInt.empty() : OptionalInt.of(number);
    }

    /** Threads that copy: all cores, at most 4. */
    static int copying(@Nullable Integer threads) {
        return threads == null ? Math.min(MOST_COPYING, Runtime.getRuntime().availableProcessors()) : threads;
    }
}
