package baton.engine.model;

import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * A matrix of weights, [out, in], that rows [m, in] are multiplied by: the product with the transposed matrix is [m, out]. Rows lie in memory
 * from {@link ModelKernels#inputs}, or have its type; results have that of activations. What is returned belongs to the caller's scope.
 */
sealed interface Linear permits Linear.Dense, Linear.Packed, Linear.Biased, PanelLinear, OperatorTimes.TimedLinear {
    Matrix apply(Matrix rows);

    /** As {@link #apply}, of the first rows, as many as {@code out} [n, out] of fp32 has. */
    default void applyTo(Matrix out, Matrix rows) {
        out.tensor().copy_(apply(rows).part(0, out.rows()).tensor());
    }

    /**
     * The product, times x * sigmoid(x), element by element, where x is the product with {@code gate}; in the type of activations or of
     * {@link ModelKernels#inputs}.
     */
    default Matrix applyGated(Linear gate, Matrix rows) {
        Matrix product = gate.apply(rows);
        torch.silu_(product.tensor()).mul_(apply(rows).tensor());
        return product;
    }

    /** Adds the product to {@code x} [m, out]. */
    void addTo(Matrix x, Matrix rows);

    /** Row by row, as a checkpoint has it. */
    record Dense(Tensor matrix, Blas blas) implements Linear {
        @Override
        public Matrix apply(Matrix rows) {
            return Matrix.of(blas.product(() -> torch.linear(rows.tensor(), matrix)));
        }

        /** The sum is part of the multiplication, which saves a pass over memory. */
        @Override
        public void addTo(Matrix x, Matrix rows) {
            Tensor sum = x.tensor();
            blas.product(() -> torch.addmm_out(sum, sum, rows.tensor(), matrix.t()));
        }
    }

    /** In oneDNN's layout: products of many rows are faster, and a single row's reads the weights at the memory's speed. */
    record Packed(OneDnn oneDnn, IValue matrix) implements Linear {
        @Override
        public Matrix apply(Matrix rows) {
            return Matrix.of(oneDnn.linear(rows.tensor(), matrix));
        }

        @Override
        public Matrix applyGated(Linear gate, Matrix rows) {
            if (!(gate instanceof Packed packed)) {
                return Linear.super.applyGated(gate, rows);
            }
            Tensor tensor = rows.tensor();
            return Matrix.of(oneDnn.linearTimes(tensor, oneDnn.linearSilu(tensor, packed.matrix), matrix));
        }

        @Override
        public void addTo(Matrix x, Matrix rows) {
            Tensor before = x.tensor();
            before.copy_(oneDnn.linearPlus(rows.tensor(), before, matrix));
        }
    }

    /** What {@code matrix} gives, and a bias [out] added to each row. */
    record Biased(Linear matrix, Tensor bias) implements Linear {
        @Override
        public Matrix apply(Matrix rows) {
            Matrix product = matrix.apply(rows);
            product.tensor().add_(bias);
            return product;
        }

        @Override
        public void addTo(Matrix x, Matrix rows) {
            matrix.addTo(x, rows);
            x.tensor().add_(bias);
        }
    }
}
