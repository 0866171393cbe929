package baton.bench;

import baton.kv.Percentiles;
import java.util.List;

/**
 * Seconds of one measured operation, over its repetitions.
 *
 * @param repetitions how many were timed
 */
public record Timing(double median, double best, int repetitions) {
    static Timing of(List<Double> seconds) {
        return new Timing(median(seconds), seconds.stream().min(Double::compare).orElseThrow(), seconds.size());
    }

    /** @throws IllegalArgumentException if there are no values */
    public static double median(List<Double> values) {
        return Percentiles.median(values);
    }
}
