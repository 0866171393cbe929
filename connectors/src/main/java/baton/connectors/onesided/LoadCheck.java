package baton.connectors.onesided;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The comparison of a load's blocks, which are here, with what their owner says of them. */
public interface LoadCheck {
    /** How it ended. */
    sealed interface Result {
        record Good() implements Result {}

        /** Some of the blocks do not have what was promised. */
        record Bad(Map<Integer, Rejection> blocks) implements Result {}

        record Failed(String message) implements Result {}
    }

    /**
     * The duration of a phase.
     *
     * @param phase {@code blocks}, {@code rearrange}, {@code seals} or {@code check}
     */
    record Span(String phase, Duration duration) {}

    /**
     * Goes on as far as possible.
     *
     * @param timeout of transfers that begin
     * @return the result, once nothing reads or writes the blocks any more
     */
    Optional<Result> advance(Duration timeout);

    /** False if the owner says nothing of them. */
    boolean isVerified();

    /** Durations of its phases, when it is over. */
    List<Span> spans();

    /** The load is not wanted any more. */
    default void cancel() {}

    /** Returns when nothing reads the blocks any more. The agent is closed. */
    void await();
}
