package baton.pipe.tcp;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A moment, and what it was said as. */
record Deadline(long nanos, Duration timeout) {
    private static final Duration LONGEST = Duration.ofDays(1);

    static Deadline in(Duration timeout) {
        Duration wait = timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout.isNegative() ? Duration.ZERO : timeout;
        return new Deadline(System.nanoTime() + wait.toNanos(), wait);
    }

    Duration left() {
        return Duration.ofNanos(Math.max(0, nanos - System.nanoTime()));
    }

    boolean passed() {
        return nanos - System.nanoTime() <= 0;
    }

    /** The sooner of this and that. */
    Deadline butAtMost(Duration other) {
        return left().compareTo(other) <= 0 ? this : in(other);
    }

    /** Does something when it is passed, unless cancelled. */
    CompletableFuture<?> then(Runnable action) {
        CompletableFuture<Void> timer = new CompletableFuture<>();
        CompletableFuture<?> _ = timer.thenRun(action);
        return timer.completeOnTimeout(null, Math.max(0, nanos - System.nanoTime()), TimeUnit.NANOSECONDS);
    }

    @Override
    public String toString() {
        return timeout.toMillis() + " ms";
    }
}
