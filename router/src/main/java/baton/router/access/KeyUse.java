package baton.router.access;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/** How much one key is used. Any thread. */
final class KeyUse {
    private static final double MINUTE = TimeUnit.MINUTES.toNanos(1);

    @GuardedBy("this")
    private int inFlight;

    /** Requests that may come at once, at most those of a minute. Negative before the first. */
    @GuardedBy("this")
    private double left = -1;

    @GuardedBy("this")
    private long counted;

    /** Tokens that may be taken; negative if more were than a minute gives. */
    @GuardedBy("this")
    private double tokens;

    @GuardedBy("this")
    private OptionalLong tokensCounted = OptionalLong.empty();

    /**
     * Whether tokens are left, which come back evenly over a minute. How many a request takes is known at its end.
     *
     * @return empty if there are; otherwise the nanoseconds until there are
     */
    synchronized OptionalLong waitForTokens(int perMinute, long now) {
        tokens = tokensCounted.isEmpty()
                ? perMinute
                : Math.min(perMinute, tokens + perMinute * ((now - tokensCounted.getAsLong()) / MINUTE));
        tokensCounted = OptionalLong.of(now);
        return tokens >= 1
                ? OptionalLong.empty()
                : OptionalLong.of((long) Math.ceil((1 - tokens) * MINUTE / perMinute));
    }

    synchronized void took(long count) {
        tokens -= count;
    }

    /** Begins a request, unless as many are in flight as allowed. */
    synchronized boolean begin(int most) {
        if (inFlight >= most) {
            return false;
        }
        inFlight++;
        return true;
    }

    synchronized void end() {
        inFlight--;
    }

    synchronized int inFlight() {
        return inFlight;
    }

    /**
     * Takes one of the requests of a minute, which come back evenly over it.
     *
     * @return empty if there was one; otherwise the nanoseconds until there is
     */
    synchronized OptionalLong take(int perMinute, long now) {
        left = left < 0 ? perMinute : Math.min(perMinute, left + perMinute * ((now - counted) / MINUTE));
        counted = now;
        if (left >= 1) {
            left -= 1;
            return OptionalLong.empty();
        }
        return OptionalLong.of((long) Math.ceil((1 - left) * MINUTE / perMinute));
    }
}
