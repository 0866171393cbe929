package baton.pipe.p2p;

import java.time.Duration;

/** A moment by which something of several parts has to be over. */
record Until(long nanos) {
    private static final Duration LONGEST = Duration.ofDays(1);

    static Until in(Duration time) {
        return new Until(System.nanoTime() + (time.compareTo(LONGEST) > 0 ? LONGEST : time).toNanos());
    }

    /** For something that each of its parts limits. */
    static Until itsPartsEnd() {
        return in(LONGEST);
    }

    /** What is left, but no more than that. */
    Duration within(Duration most) {
        Duration left = Duration.ofNanos(Math.max(0, nanos - System.nanoTime()));
        return left.compareTo(most) < 0 ? left : most;
    }

    boolean isOver() {
        return nanos - System.nanoTime() <= 0;
    }
}
