package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.ModelKernels.Heads;
import baton.engine.model.ModelKernels.Norm;

/** Subtracts the mean of a row, divides by the standard deviation, multiplies by weights and adds a bias, in fp32. */
record CenteredNorm(float[] weights, float[] bias, double eps, ParallelFor threads) implements Norm {
    @Override
    public void apply(Heads from, Heads to) {
        Matrix source = rows(from);
        Matrix target = rows(to);
        threads.parallelFor(source.rows(), Matrix.PIECE, (_, first, end) -> {
            RowBuffer row = new RowBuffer(weights.length);
            for (int i = first; i < end; i++) {
                row.load(source, i, 0, weights.length);
                norm(row.values());
                row.store(target, i, 0, weights.length);
            }
        });
    }

    private void norm(float[] x) {
        double sum = 0;
        for (float each : x) {
            sum += each;
        }
        float mean = (float) (sum / x.length);
        double squares = 0;
        for (float each : x) {
            squares += (each - mean) * (each - mean);
        }
        float scale = (float) (1 / Math.sqrt(squares / x.length + eps));
        for (int i = 0; i < x.length; i++) {
            x[i] = (x[i] - mean) * scale * weights[i] + bias[i];
        }
    }

    /** Whole rows. */
    private Matrix rows(Heads heads) {
        if (heads.heads() != 1 || heads.offset() != 0) {
            throw new IllegalArgumentException("a norm with a bias is of whole rows");
        }
        return new Matrix(heads.memory(), heads.rows(), weights.length, heads.rowStride(), heads.type());
    }
}
