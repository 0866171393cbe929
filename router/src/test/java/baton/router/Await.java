package baton.router;

import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;

/** Waiting for a condition, with a deadline. */
final class Await {
    private Await() {}

    /** Returns how long it took. */
    static Duration until(String what, Duration deadline, BooleanSupplier condition) {
        long start = System.nanoTime();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() - start > deadline.toNanos()) {
                throw new AssertionError("not within " + deadline + ": " + what);
            }
            LockSupport.parkNanos(500_000);
        }
        return Duration.ofNanos(System.nanoTime() - start);
    }
}
