package baton.engine.model;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** A matrix of weights, [out, in], that rows of activations are multiplied by. What it returns belongs to the caller's scope. */
sealed interface Linear permits Linear.Dense, Int8 {
    /** {@code rows} [m, in] times the transposed matrix: [m, out]. */
    Tensor apply(Tensor rows);

    /** Adds {@code rows} [m, in] times the transposed matrix to {@code x} [m, out]. */
    void addTo(Tensor x, Tensor rows);

    /** Weights in the type of the activations. */
    record Dense(Tensor matrix) implements Linear {
        @Override
        public Tensor apply(Tensor rows) {
            return torch.linear(rows, matrix);
        }

        /** The sum is part of the multiplication, which saves a pass over memory. */
        @Override
        public void addTo(Tensor x, Tensor rows) {
            torch.addmm_out(x, x, rows, matrix.t());
        }
    }
}
