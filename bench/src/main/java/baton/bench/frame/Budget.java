package baton.bench.frame;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.time.Duration;
import java.util.Locale;
import java.util.Optional;

/**
 * Time that measurements may take: a deadline set at their start.
 *
 * @param end by {@link System#nanoTime}
 */
public record Budget(long end) {
    /**
     * A budget that begins now.
     *
     * @throws ConfigException if it is not positive
     */
    public static Budget of(Duration duration) {
        Require.positive("budget", duration);
        return new Budget(System.nanoTime() + duration.toNanos());
    }

    /** Time left; never negative. */
    public Duration left() {
        return Duration.ofNanos(Math.max(0, end - System.nanoTime()));
    }

    public double leftSeconds() {
        return left().toNanos() * 1e-9;
    }

    /** Whether a measurement of so many seconds ends in time. */
    public boolean fits(double seconds) {
        return seconds <= leftSeconds();
    }

    /** Why a measurement of so many seconds is left out. */
    public String tooLittleFor(double seconds) {
        return String.format(
                Locale.ROOT, "would take about %.1f s, %.1f s of the budget are left", seconds, leftSeconds());
    }

    /** Seconds for the next of so many cases: an equal part, and no more than {@code most}. */
    public double forOneOf(int cases, Optional<Duration> most) {
        double part = leftSeconds() / cases;
        return Math.min(part, most.map(each -> each.toNanos() * 1e-9).orElse(part));
    }

    /** A budget of this share of the time left, beginning now. */
    public Budget share(double share) {
        return new Budget(System.nanoTime() + Math.round(share * left().toNanos()));
    }
}
