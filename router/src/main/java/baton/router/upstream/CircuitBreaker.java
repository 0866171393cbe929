package baton.router.upstream;

import com.google.errorprone.annotations.concurrent.GuardedBy;

/**
 * Keeps requests away from an instance that fails them while its health probes succeed. After {@value #FAILURES} failures in a row it opens;
 * after some successful probes, more each time, one request is let through: if it succeeds the breaker closes. Any thread.
 */
final class CircuitBreaker {
    static final int FAILURES = 5;
    static final int MOST_PROBES = 16;

    private enum State {
        CLOSED,
        OPEN,
        HALF_OPEN
    }

    @GuardedBy("this")
    private State state = State.CLOSED;

    @GuardedBy("this")
    private int failures;

    /** Probes from opening to the trial, and those that are left. */
    @GuardedBy("this")
    private int probes = 1;

    @GuardedBy("this")
    private int left;

    /** Whether the one request is under way. */
    @GuardedBy("this")
    private boolean trial;

    synchronized boolean allows() {
        return state == State.CLOSED || (state == State.HALF_OPEN && !trial);
    }

    /**
     * A request is sent.
     *
     * @return whether it is the one that is let through
     */
    synchronized boolean began() {
        boolean isTrial = state == State.HALF_OPEN;
        trial |= isTrial;
        return isTrial;
    }

    /** The request that is let through is over, with a result or without. */
    synchronized void trialEnded() {
        trial = false;
    }

    /**
     * An answer has begun. A long one need not end before other requests are sent.
     *
     * @return whether it closes
     */
    synchronized boolean answered() {
        boolean closes = state == State.HALF_OPEN;
        if (closes) {
            state = State.CLOSED;
            failures = 0;
            probes = 1;
        }
        return closes;
    }

    /** An answer has come to its end. */
    synchronized void succeeded() {
        boolean _ = answered();
        if (state == State.CLOSED) {
            failures = 0;
        }
    }

    /** @return whether it opens */
    synchronized boolean failed() {
        failures++;
        boolean opens = switch (state) {
            case CLOSED -> failures >= FAILURES;
            case HALF_OPEN -> true;
            // Requests that were sent before.
            case OPEN -> false;
        };
        if (opens) {
            probes = state == State.HALF_OPEN ? Math.min(2 * probes, MOST_PROBES) : probes;
            state = State.OPEN;
            left = probes;
        }
        return opens;
    }

    /** A health probe has succeeded. */
    synchronized void probed() {
        if (state == State.OPEN && --left <= 0) {
            state = State.HALF_OPEN;
        }
    }

    /** The instance was down: another engine may answer now. */
    synchronized void reset() {
        state = State.CLOSED;
        failures = 0;
        probes = 1;
    }

    /** Why requests are kept away; empty if they are not. */
    @Override
    public synchronized String toString() {
        return state == State.CLOSED ? "" : failures + " requests in a row failed";
    }
}
