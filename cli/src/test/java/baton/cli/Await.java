package baton.cli;

import static org.assertj.core.api.Assertions.fail;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;

/** Waits for conditions that another process brings about. */
final class Await {
    private static final long POLL_NANOS = 10_000_000;

    private Await() {}

    /** Returns once the condition holds; fails with what {@code state} says if it does not within the deadline. */
    static void until(Duration deadline, Supplier<String> state, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + deadline.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() - end > 0) {
                fail("not within " + deadline + ": " + state.get());
            }
            LockSupport.parkNanos(POLL_NANOS);
        }
    }
}
