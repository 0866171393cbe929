package baton.router.policy;

import baton.router.metrics.RouterMetrics;

/**
 * A {@link GoalModel}'s predictions for a prompt: computed by a prefill instance, and by the decode instance.
 *
 * @param local whether the decode instance is to compute it
 * @param remoteFeatures of the request on the way over the prefill instance
 * @param localFeatures of the request at the decode instance alone
 * @param localBytes of the prompt, as JSON, that the decode instance would compute alone
 * @param restBytes that it would compute beside a prefill instance: of a prompt in two parts
 * @param words in numbers
 */
public record Forecast(
        boolean local,
        Why why,
        double[] remoteFeatures,
        double[] localFeatures,
        int localBytes,
        int restBytes,
        String words) {
    /** The reason of the decision. */
    public enum Why implements RouterMetrics.Label {
        /** Only this way keeps the goals. */
        KEEPS,
        /** Both ways keep the goals, and the first token comes sooner on this one. */
        SOONER,
        /** No way keeps the goals, and this one misses them by less. */
        MISSES_LESS,
        /** There are too few measurements of this way, or they are old. */
        LEARNING
    }
}
