package baton.engine;

import java.util.Optional;
import java.util.OptionalDouble;

/**
 * Times of one sequence, in seconds since it came to the engine.
 *
 * @param load the load by a connector
 * @param scheduled the first step that computed something of it began
 * @param firstToken it had its first token
 * @param ended it had its last token, or was given up
 * @param preemptions times that it lost its blocks to other requests
 */
public record RequestTimes(
        Optional<KvLoad> load, OptionalDouble scheduled, OptionalDouble firstToken, double ended, int preemptions) {
    /** The times of a request that the engine did not take. */
    public static final RequestTimes NONE =
            new RequestTimes(Optional.empty(), OptionalDouble.empty(), OptionalDouble.empty(), 0, 0);

    /**
     * Keys and values of a prompt from elsewhere.
     *
     * @param started the last load began
     * @param ended it was over, well or badly; empty if it was not, and if the load was part of the first step
     * @param tokens that it was to bring
     * @param blocks for these
     * @param bytes of these blocks, in all ranks
     * @param attempts loads, with those that were begun again
     * @param failures loads of which a part did not come
     */
    public record KvLoad(
            double started, OptionalDouble ended, int tokens, int blocks, long bytes, int attempts, int failures) {}
}
