package baton.bench.serve;

import baton.kv.Percentiles;
import java.util.Arrays;
import java.util.List;

/**
 * Of exact values, as NumPy computes them: percentiles between two values are interpolated, the deviation is that of a population.
 *
 * @param std standard deviation
 * @param percentiles in the order asked for
 */
public record Statistics(double mean, double median, double std, List<Percentile> percentiles) {
    /** @param rank from 0 to 100 */
    public record Percentile(double rank, double value) {
        /** The label, such as {@code p99} and {@code p99.9}. */
        public String label() {
            return "p" + (rank == Math.rint(rank) ? Long.toString((long) rank) : Double.toString(rank));
        }
    }

    /** All zero for no values. */
    public static Statistics of(double[] values, List<Double> ranks) {
        double[] sorted = values.length == 0 ? new double[1] : values.clone();
        Arrays.sort(sorted);
        double mean = Arrays.stream(sorted).average().orElse(0);
        double variance = Arrays.stream(sorted)
                .map(each -> (each - mean) * (each - mean))
                .average()
                .orElse(0);
        return new Statistics(
                mean,
                Percentiles.of(sorted, 50),
                Math.sqrt(variance),
                ranks.stream()
                        .map(rank -> new Percentile(rank, Percentiles.of(sorted, rank)))
                        .toList());
    }

    /** The value at a rank asked for. */
    public double percentile(double rank) {
        return percentiles.stream()
                .filter(each -> each.rank == rank)
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException("no percentile " + rank))
                .value;
    }
}
