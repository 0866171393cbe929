package baton.kv;

import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.BooleanSupplier;

/**
 * A point on a {@link Ticker}'s clock by which something has to be over; the parts of an operation share one. Immutable, for any thread.
 *
 * <p>The methods that wait do so in real time, for the time that remains on the ticker's clock. Under a virtual clock they return when that
 * much real time has passed; a caller that loops until {@link #isOver} is right in both cases.
 */
public final class Deadline {
    /** Longer times are cut to this, 100 years, so that no sum or difference of nanoseconds overflows. */
    public static final Duration LONGEST = Duration.ofDays(36_500);

    private final Ticker ticker;
    private final Duration timeout;
    private final long nanos;

    private Deadline(Ticker ticker, Duration timeout) {
        this.ticker = ticker;
        this.timeout = timeout;
        this.nanos = ticker.nanos() + timeout.toNanos();
    }

    /** @param timeout from now on; a negative one counts as zero, one of more than {@link #LONGEST} as that */
    public static Deadline after(Ticker ticker, Duration timeout) {
        return new Deadline(ticker, clamp(timeout));
    }

    /** One that is never over within a process's life, for waits that something else ends. */
    public static Deadline never(Ticker ticker) {
        return new Deadline(ticker, LONGEST);
    }

    private static Duration clamp(Duration timeout) {
        return timeout.isNegative() ? Duration.ZERO : timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout;
    }

    /** The time that it was made with. */
    public Duration timeout() {
        return timeout;
    }

    public boolean isOver() {
        return nanos - ticker.nanos() <= 0;
    }

    /** The remaining time; zero once it is over. */
    public Duration remaining() {
        return Duration.ofNanos(remainingNanos());
    }

    /** The remaining time, at most {@code most}. */
    public Duration remaining(Duration most) {
        Duration remaining = remaining();
        return remaining.compareTo(most) < 0 ? remaining : most;
    }

    /** The remaining nanoseconds; 0 once it is over. */
    public long remainingNanos() {
        return Math.max(0, nanos - ticker.nanos());
    }

    /** The remaining milliseconds, rounded up: at least 1, because 0 means no limit to a socket. */
    public int remainingMillis() {
        return Math.toIntExact(Math.clamp(Math.ceilDiv(remainingNanos(), 1_000_000L), 1, Integer.MAX_VALUE));
    }

    /** This one, or one after that time if it is sooner. */
    public Deadline atMost(Duration other) {
        return remaining().compareTo(other) <= 0 ? this : after(ticker, other);
    }

    /**
     * Waits on a condition until it is signalled, spuriously, or the deadline is over. The thread holds the condition's lock.
     *
     * @return whether time remains
     */
    @SuppressWarnings("WaitNotInLoop") // the callers loop
    public boolean await(Condition condition) throws InterruptedException {
        long unusedLeft = condition.awaitNanos(remainingNanos());
        return !isOver();
    }

    /**
     * Waits on a monitor that the thread holds, by {@link Object#wait}.
     *
     * @return whether time remains
     */
    @SuppressWarnings("WaitNotInLoop") // the callers loop
    public boolean awaitNotify(Object monitor) throws InterruptedException {
        // Less than a millisecond would be no wait at all, and the caller's loop would spin.
        TimeUnit.NANOSECONDS.timedWait(monitor, Math.max(1_000_000, remainingNanos()));
        return !isOver();
    }

    /**
     * As {@link #awaitNotify}, until a condition that the monitor guards holds or this is over. An interrupt does not end it, and is set again after it.
     *
     * @return whether the condition holds
     */
    public boolean awaitUninterruptibly(Object monitor, BooleanSupplier condition) {
        boolean interrupted = false;
        boolean holds = condition.getAsBoolean();
        for (boolean inTime = true; !holds && inTime; holds = condition.getAsBoolean()) {
            try {
                inTime = awaitNotify(monitor);
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return holds;
    }

    /** @return whether the thread holds the lock now */
    public boolean tryLock(Lock lock) throws InterruptedException {
        return lock.tryLock(remainingNanos(), TimeUnit.NANOSECONDS);
    }

    /** @throws TimeoutException if there is no result in time */
    public <T> T get(Future<T> future) throws InterruptedException, ExecutionException, TimeoutException {
        return future.get(remainingNanos(), TimeUnit.NANOSECONDS);
    }

    /** The time that it was made with, for an error: {@code 250 ms}. */
    @Override
    public String toString() {
        return timeout.toMillis() + " ms";
    }
}
