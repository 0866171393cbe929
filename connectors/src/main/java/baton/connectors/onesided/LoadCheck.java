package baton.connectors.onesided;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/** The comparison of a load's blocks, which are here, with their owner's description. */
public interface LoadCheck {
    /**
     * Goes on as far as possible.
     *
     * @return true if it is over: nothing reads or writes the blocks any more
     */
    boolean advance();

    /** Why the blocks could not be compared, once it is over. */
    Optional<String> failure();

    /** The blocks without the promised content, once the check is over. */
    default Map<Integer, Rejection> wrong() {
        return Map.of();
    }

    /** False if the owner says nothing of them. */
    boolean isVerified();

    /** Durations of its phases, {@code rearrange}, {@code seals} or {@code check}, once it is over. */
    default Map<String, Duration> durations() {
        return Map.of();
    }

    /** The load is not wanted any more. */
    default void cancel() {}

    /** Returns when nothing reads the blocks any more. The agent is closed. */
    void await();
}
