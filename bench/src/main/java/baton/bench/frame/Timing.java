package baton.bench.frame;

import baton.kv.Percentiles;
import java.util.List;
import tools.jackson.databind.node.ObjectNode;

/**
 * Seconds of one measured operation, over its repetitions.
 *
 * @param repetitions how many were timed
 */
public record Timing(double median, double best, int repetitions) {
    public static Timing of(List<Double> seconds) {
        return new Timing(median(seconds), seconds.stream().min(Double::compare).orElseThrow(), seconds.size());
    }

    /** @throws IllegalArgumentException if there are no values */
    public static double median(List<Double> values) {
        return Percentiles.median(values);
    }

    public ObjectNode writeTo(ObjectNode node) {
        return node.put("median_seconds", median).put("best_seconds", best).put("repetitions", repetitions);
    }

    /** The rate of an operation that moves so many bytes. */
    public ObjectNode writeTo(ObjectNode node, long bytes) {
        return node.put("bytes", bytes)
                .put("best_seconds", best)
                .put("bytes_per_second", bytes / best)
                .put("median_bytes_per_second", bytes / median);
    }
}
