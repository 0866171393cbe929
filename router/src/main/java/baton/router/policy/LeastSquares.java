package baton.router.policy;

import com.google.errorprone.annotations.concurrent.GuardedBy;

/**
 * A linear model that is learnt sample by sample: least squares with exponential forgetting and a small ridge, by the normal equations, which are solved by
 * Cholesky's decomposition. The ridge decides where features do not vary, or vary together only. Any thread.
 */
final class LeastSquares {
    /** A sample counts half after some 140 others. */
    private static final double FORGETTING = 0.995;

    /** Small beside the squares of features that are 1 or more. */
    private static final double RIDGE = 1e-4;

    private final int size;

    @GuardedBy("this")
    private final double[] weights;

    /** Sums of the products of two features; the lower triangle. */
    @GuardedBy("this")
    private final double[][] products;

    /** Sums of the products of a feature and the value. */
    @GuardedBy("this")
    private final double[] values;

    /** Whether {@link #weights} are those of all samples; they are computed when they are asked for. */
    @GuardedBy("this")
    private boolean solved = true;

    @GuardedBy("this")
    private long samples;

    /** @param size features of a sample */
    LeastSquares(int size) {
        this.size = size;
        this.weights = new double[size];
        this.products = new double[size][size];
        this.values = new double[size];
    }

    /** A sample that is not finite is left out. */
    synchronized void learn(double[] features, double value) {
        double sum = value;
        for (double feature : features) {
            sum += feature;
        }
        if (!Double.isFinite(sum)) {
            return;
        }
        for (int i = 0; i < size; i++) {
            for (int j = 0; j <= i; j++) {
                products[i][j] = FORGETTING * products[i][j] + features[i] * features[j];
            }
            values[i] = FORGETTING * values[i] + features[i] * value;
        }
        solved = false;
        samples++;
    }

    @GuardedBy("this")
    private void solve() {
        double[][] root = new double[size][size];
        for (int i = 0; i < size; i++) {
            for (int j = 0; j <= i; j++) {
                double rest = products[i][j] + (i == j ? RIDGE : 0);
                for (int k = 0; k < j; k++) {
                    rest -= root[i][k] * root[j][k];
                }
                root[i][j] = i == j ? Math.sqrt(Math.max(rest, RIDGE)) : rest / root[j][j];
            }
        }
        for (int i = 0; i < size; i++) {
            double rest = values[i];
            for (int k = 0; k < i; k++) {
                rest -= root[i][k] * weights[k];
            }
            weights[i] = rest / root[i][i];
        }
        for (int i = size - 1; i >= 0; i--) {
            double rest = weights[i];
            for (int k = i + 1; k < size; k++) {
                rest -= root[k][i] * weights[k];
            }
            weights[i] = rest / root[i][i];
        }
    }

    synchronized double predict(double[] features) {
        if (!solved) {
            solve();
            solved = true;
        }
        double value = 0;
        for (int i = 0; i < size; i++) {
            value += weights[i] * features[i];
        }
        return value;
    }

    synchronized long samples() {
        return samples;
    }
}
