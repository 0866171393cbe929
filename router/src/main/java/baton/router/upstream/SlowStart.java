package baton.router.upstream;

import baton.kv.Ticker;
import java.time.Duration;

/**
 * How an instance that is new or has recovered gets its share: a tenth of it at once, all of it when the window is over, evenly more in
 * between.
 *
 * @param window zero: all of it at once
 */
public record SlowStart(Duration window, Ticker ticker) {
    private static final double LEAST = 0.1;

    public static final SlowStart NONE = new SlowStart(Duration.ZERO, () -> 0);

    /** The part of its share, over 0 and at most 1, that an instance gets which came up then. */
    double part(long cameUpNanos) {
        long passed = ticker.nanos() - cameUpNanos;
        return passed >= window.toNanos() ? 1 : Math.max(LEAST, (double) passed / window.toNanos());
    }
}
