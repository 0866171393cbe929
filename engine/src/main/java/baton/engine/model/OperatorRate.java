package baton.engine.model;

import java.util.Locale;

/**
 * The best rate that an operator of a model has reached.
 *
 * @param operator as checkpoints name it, e.g. {@code gate_proj}; {@code attention}
 * @param bound its limit
 * @param perThread operations, or bytes of weights or of keys and values, a second and thread
 */
public record OperatorRate(String operator, Bound bound, double perThread) {
    /**
     * The limit of an operator: arithmetic if there are many rows, else reading. Vector code of any processor is above the floors by far,
     * scalar loops are below them.
     */
    public enum Bound {
        ARITHMETIC(4e9, "Gflop/s"),
        READING(1e9, "GB/s");

        private final double floor;
        private final String unit;

        Bound(double floor, String unit) {
            this.floor = floor;
            this.unit = unit;
        }
    }

    /** Whether the operator probably runs in a scalar or reference loop of a library. */
    public boolean isSlow() {
        return perThread < bound.floor;
    }

    /** The rate as text for logs, e.g. {@code attention: 0.6 Gflop/s per thread, vector code reaches more than 4.0}. */
    public String describe() {
        return String.format(
                Locale.ROOT,
                "%s: %.1f %s per thread, vector code reaches more than %.1f",
                operator,
                perThread / 1e9,
                bound.unit,
                bound.floor / 1e9);
    }
}
