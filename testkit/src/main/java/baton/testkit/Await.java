package baton.testkit;

import static org.assertj.core.api.Assertions.fail;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;

/** Waits for conditions that another thread or process brings about. */
public final class Await {
    private static final long POLL_NANOS = 10_000_000;

    private Await() {}

    /** Returns once the condition holds; fails with the text of {@code state} if it does not within the deadline. */
    public static void until(Duration deadline, Supplier<String> state, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + deadline.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() - end > 0) {
                fail("not within " + deadline + ": " + state.get());
            }
            LockSupport.parkNanos(POLL_NANOS);
        }
    }

    /** As {@link #until(Duration, Supplier, Callable)}; an exception of the condition is a failure. */
    public static void until(String what, Duration deadline, Callable<Boolean> condition) {
        try {
            until(deadline, () -> what, condition);
        } catch (Exception e) {
            throw new AssertionError(what, e);
        }
    }
}
