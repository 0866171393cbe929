package baton.engine.kernel;

import java.util.function.LongSupplier;

/**
 * How many threads take part in a team's loops. Where other processes compute on the same processors, a thread too many costs more than it
 * computes: it takes a processor from one that the loop waits for. So the time is counted in which the calling thread has no processor, or
 * waits for a worker that has lost its own in the middle of a piece.
 *
 * <p>Where that is a fifth of the time in two windows that follow each other, an eighth of the threads is left out, at least one; of few
 * threads one is a larger part, and so has to cost more time. One comes back after a pause, which gets longer each time that the threads
 * prove to be too many again, and ends when they do not. Used by the thread that calls the loops.
 */
final class TeamSize {
    /**
     * Of a team that has not been too large, and of few threads, which a wrong decision costs most: long enough that a slice of the scheduler's for
     * another thread is a small part of it.
     */
    private static final long LONG_WINDOW_NANOS = 12_000_000;
    /** The window of a larger size, so that its attempts are short. */
    private static final long WINDOW_NANOS = 4_000_000;
    /** A window so many times as long had no loops in most of it. */
    private static final int IDLE = 10;

    /** The last pieces may be waited for as long as this. */
    private static final long PATIENCE_NANOS = 50_000;

    private static final long SHORTEST_PAUSE_NANOS = 4_000_000;
    private static final long LONGEST_PAUSE_NANOS = 256_000_000;
    /** Share of the time that may be lost in any case. */
    private static final double LOST = 0.2;
    /** Share of the time that may be lost, as a part of the share of the threads that would be left out. */
    private static final double WORTH = 0.8;
    /** One part of so many of the threads is left out at a time. */
    private static final int LEFT_OUT = 8;

    private final int most;
    private final LongSupplier runDelay;
    private int size;
    private long pause;
    private long resumeAt;
    private long windowStart;
    private long delayBefore;
    private long heldUp;
    private boolean lostBefore;

    /**
     * @param most threads; all of them take part at first
     * @param runDelay nanoseconds that the calling thread has waited for a processor until now; asked at most once a window
     */
    TeamSize(int most, LongSupplier runDelay) {
        this.most = most;
        this.runDelay = runDelay;
        this.size = most;
    }

    /** The size of the team for a loop that begins now. */
    int at(long nanos) {
        if (size < most && nanos - resumeAt >= 0) {
            size++;
            resumeAt = nanos + pause;
            begin(nanos, runDelay.getAsLong());
        } else if (size > 1 && nanos - windowStart >= window()) {
            long elapsed = nanos - windowStart;
            long delay = runDelay.getAsLong();
            long lost = heldUp + delay - delayBefore;
            boolean loses = elapsed < IDLE * window() && lost > elapsed * mostLost();
            boolean again = loses && lostBefore;
            begin(nanos, delay);
            lostBefore = loses;
            if (again) {
                size -= leftOut();
                pause = Math.clamp(2 * pause, SHORTEST_PAUSE_NANOS, LONGEST_PAUSE_NANOS);
                resumeAt = nanos + pause;
            } else if (!loses && size == most && nanos - resumeAt >= pause) {
                pause = 0;
            }
        }
        return size;
    }

    /** The size of the team in the last loop. */
    int last() {
        return size;
    }

    private long window() {
        return pause == 0 || size < LEFT_OUT ? LONG_WINDOW_NANOS : WINDOW_NANOS;
    }

    private int leftOut() {
        return Math.max(1, size / LEFT_OUT);
    }

    /** The share of the time that may be lost; below it, the threads that would be left out compute more than they cost. */
    private double mostLost() {
        return Math.max(LOST, WORTH * leftOut() / size);
    }

    private void begin(long nanos, long delay) {
        windowStart = nanos;
        delayBefore = delay;
        heldUp = 0;
        lostBefore = false;
    }

    /** The calling thread has waited for the last pieces of a loop. */
    void waited(long nanos) {
        heldUp += Math.max(0, nanos - PATIENCE_NANOS);
    }
}
