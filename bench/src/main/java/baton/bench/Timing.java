package baton.bench;

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

    /** @throws IndexOutOfBoundsException if there are no values */
    public static double median(List<Double> values) {
        List<Double> sorted = values.stream().sorted().toList();
        int middle = sorted.size() / 2;
        return sorted.size() % 2 == 1 ? sorted.get(middle) : (sorted.get(middle - 1) + sorted.get(middle)) / 2;
    }
}
