package baton.store.tiered;

import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;

/**
 * Decides whether a slow store gets more to write: by a moving average of the seconds that a MiB takes, with two watermarks. The names,
 * the defaults and the behaviour are those of vLLM 0.33's EMABackpressureDetector with its ThrottledDropPolicy or DropStorePolicy. Thread-safe.
 */
public final class Backpressure {
    private static final double MIB = 1 << 20;
    /** Above the high watermark writes are dropped in proportion; all of them where the average exceeds it by so many times itself. */
    private static final double RAMP = 2;
    /** Failures raise the average to so many times the high watermark. */
    private static final double FAILED = 4;

    /** The treatment of writes under pressure. */
    public enum Policy {
        /** A part of them is dropped, the larger the higher the average: {@code ThrottledDropPolicy}. */
        THROTTLED,
        /** All are dropped: {@code DropStorePolicy}. */
        DROP
    }

    /**
     * @param highWater seconds for a MiB at which pressure begins
     * @param lowWater at which it ends
     * @param alpha weight of a new value in the average, more than 0 and at most 1
     * @param warmUp writes of which the first average is made; there is no pressure before
     * @param halfLife seconds without a write, under pressure, in which the average halves, so that writing is tried again
     * @param cooldown seconds after pressure in which every other write is dropped
     * @param failureThreshold writes that fail one after the other at which pressure begins
     */
    public record Settings(
            Policy policy,
            double highWater,
            double lowWater,
            double alpha,
            int warmUp,
            double halfLife,
            double cooldown,
            int failureThreshold) {
        /** The settings for storage of this host. */
        public static final Settings LOCAL = new Settings(Policy.THROTTLED, 0.010, 0.002, 0.15, 10, 2, 1, 3);

        /** The settings for storage behind a network. */
        public static final Settings REMOTE =
                new Settings(Policy.THROTTLED, 0.050, 0.010, 0.15, 10, 2, 1, Integer.MAX_VALUE);
    }

    private final Settings settings;
    private final Ticker ticker;

    @GuardedBy("this")
    private double average;

    @GuardedBy("this")
    private int completions;

    @GuardedBy("this")
    private boolean pressure;

    @GuardedBy("this")
    private long changedNanos;

    @GuardedBy("this")
    private boolean cooling;

    @GuardedBy("this")
    private long asked;

    /** Parts of writes that are to be dropped, and were not. */
    @GuardedBy("this")
    private double owed;

    @GuardedBy("this")
    private double warmUpSum;

    @GuardedBy("this")
    private int failures;

    public Backpressure(Settings settings, Ticker ticker) {
        this.settings = settings;
        this.ticker = ticker;
    }

    /** Whether the next write is to be done; counts as one asked for. */
    public synchronized boolean admits() {
        decay();
        if (!pressure) {
            if (cooling && secondsSinceChange() >= settings.cooldown) {
                cooling = false;
            }
            return !cooling || asked++ % 2 == 0;
        }
        if (settings.policy == Policy.DROP || settings.highWater <= 0) {
            return false;
        }
        double rate = Math.min(1, Math.max(0, average - settings.highWater) / settings.highWater / RAMP);
        if (rate == 0 || rate == 1) {
            return rate == 0;
        }
        owed += rate;
        if (owed < 1) {
            return true;
        }
        owed--;
        return false;
    }

    /** A write has ended. */
    public synchronized void written(double seconds, long bytes) {
        if (bytes <= 0) {
            return;
        }
        double value = seconds / (bytes / MIB);
        failures = 0;
        completions++;
        if (completions <= settings.warmUp) {
            warmUpSum += value;
            if (!pressure || completions == settings.warmUp) {
                average = warmUpSum / completions;
            }
        } else {
            decay();
            average += settings.alpha * (value - average);
        }
        if (completions >= settings.warmUp) {
            judge();
        }
        if (pressure) {
            changedNanos = ticker.nanos();
        }
    }

    /** A write has failed, and not for being slow. Pressure that begins so ends by itself, so that writing is tried again. */
    public synchronized void failed() {
        failures++;
        if (failures >= settings.failureThreshold) {
            average = Math.max(average, settings.highWater * FAILED);
            pressure = true;
            changedNanos = ticker.nanos();
        }
    }

    /** Writes that have failed since the last one that has not. */
    public synchronized int failures() {
        return failures;
    }

    /** Seconds for a MiB. */
    public synchronized double average() {
        return average;
    }

    @GuardedBy("this")
    private void judge() {
        if (!pressure && average >= settings.highWater) {
            pressure = true;
            changedNanos = ticker.nanos();
        } else if (pressure && average <= settings.lowWater) {
            pressure = false;
            cooling = true;
            changedNanos = ticker.nanos();
        }
    }

    /** While nothing is written nothing is measured: the average falls by itself, so that writing is tried again. */
    @GuardedBy("this")
    private void decay() {
        if (pressure) {
            average *= Math.pow(0.5, secondsSinceChange() / settings.halfLife);
            changedNanos = ticker.nanos();
            judge();
        }
    }

    @GuardedBy("this")
    private double secondsSinceChange() {
        return (ticker.nanos() - changedNanos) / 1e9;
    }
}
