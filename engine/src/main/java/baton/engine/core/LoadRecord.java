package baton.engine.core;

import baton.engine.RequestTimes.KvLoad;
import java.util.Optional;
import java.util.OptionalDouble;

/** A connector's load for one sequence, for its explanation. Owned by the core's thread. */
final class LoadRecord {
    private long startedNanos;
    private long endedNanos;
    private int tokens;
    private int attempts;
    private int failures;
    private boolean failed;

    /** A load of so many tokens begins. */
    void begin(long now, int count) {
        startedNanos = now;
        endedNanos = 0;
        tokens = count;
        attempts++;
        failed = false;
    }

    /** The load is over. */
    void end(long now) {
        endedNanos = now;
    }

    /** A part of the load did not come; of one load that may be said bit by bit. */
    void fail() {
        if (attempts > 0 && !failed) {
            failed = true;
            failures++;
        }
    }

    /**
     * All that is known; empty if there was no load.
     *
     * @param arrival of the sequence
     */
    Optional<KvLoad> times(long arrival, int blockSize, long blockBytes) {
        if (attempts == 0) {
            return Optional.empty();
        }
        int blocks = Math.ceilDiv(tokens, blockSize);
        return Optional.of(new KvLoad(
                (startedNanos - arrival) / 1e9,
                endedNanos == 0 ? OptionalDouble.empty() : OptionalDouble.of((endedNanos - arrival) / 1e9),
                tokens,
                blocks,
                blocks * blockBytes,
                attempts,
                failures));
    }
}
