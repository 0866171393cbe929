package baton.kv;

import java.util.Collection;

/** Percentiles of exact values, as NumPy computes them by default: between two values they are interpolated. */
public final class Percentiles {
    private Percentiles() {}

    /**
     * @param sorted in ascending order, at least one
     * @param rank from 0, the least value, to 100, the greatest
     */
    public static double of(double[] sorted, double rank) {
        if (sorted.length == 0) {
            throw new IllegalArgumentException("there are no values");
        }
        double at = rank / 100 * (sorted.length - 1);
        int below = Math.clamp((long) Math.floor(at), 0, sorted.length - 1);
        int above = Math.min(sorted.length - 1, below + 1);
        return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
    }

    /** @param values in any order, at least one */
    public static double median(Collection<Double> values) {
        return of(values.stream().mapToDouble(each -> each).sorted().toArray(), 50);
    }
}
