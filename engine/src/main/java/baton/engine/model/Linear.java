package baton.engine.model;

import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * A matrix of weights, [out, in], that rows [m, in] are multiplied by: the product with the transposed matrix is [m, out]. Rows lie in memory
 * from {@link ModelKernels#inputs}, or have its type; results have that of activations. What is returned belongs to the caller's scope.
 */
sealed interface Linear permits Linear.Dense, Linear.Packed, Linear.Biased, PanelLinear, OperatorTimes.TimedLinear {
    Tensor apply(Tensor rows);

    /** As {@link #apply}, of the first rows, as many as {@code out} [n, out] of fp32 has. */
    default void applyTo(Tensor out, Tensor rows) {
        out.copy_(apply(rows).narrow(0, 0, out.size(0)));
    }

    /**
     * The product, times x * sigmoid(x), element by element, where x is the product with {@code gate}; in the type of activations or of
     * {@link ModelKernels#inputs}.
     */
    default Tensor applyGated(Linear gate, Tensor rows) {
        Tensor product = gate.apply(rows);
        return torch.silu_(product).mul_(apply(rows));
    }

    /**
     * Adds the product to {@code x} [m, out]. If that is no view of a part of a tensor, its memory may be another afterwards, which
     * views of it have no part in.
     */
    void addTo(Tensor x, Tensor rows);

    /** Row by row, as a checkpoint has it. */
    record Dense(Tensor matrix, Blas blas) implements Linear {
        @Override
        public Tensor apply(Tensor rows) {
            return blas.product(() -> torch.linear(rows, matrix));
        }

        /** The sum is part of the multiplication, which saves a pass over memory. */
        @Override
        public void addTo(Tensor x, Tensor rows) {
            blas.product(() -> torch.addmm_out(x, x, rows, matrix.t()));
        }
    }

    /** In oneDNN's layout: products of many rows are faster, and a single row's reads the weights at the memory's speed. */
    record Packed(OneDnn oneDnn, IValue matrix) implements Linear {
        @Override
        public Tensor apply(Tensor rows) {
            return oneDnn.linear(rows, matrix);
        }

        @Override
        public Tensor applyGated(Linear gate, Tensor rows) {
            return gate instanceof Packed packed
                    ? oneDnn.linearTimes(rows, oneDnn.linearSilu(rows, packed.matrix), matrix)
                    : Linear.super.applyGated(gate, rows);
        }

        @Override
        public void addTo(Tensor x, Tensor rows) {
            Tensor sum = oneDnn.linearPlus(rows, x, matrix);
            if (x.numel() * x.element_size() == x.storage().nbytes()) {
                x.set_(sum);
            } else {
                x.copy_(sum);
            }
        }
    }

    /** What {@code matrix} gives, and a bias [out] added to each row. */
    record Biased(Linear matrix, Tensor bias) implements Linear {
        @Override
        public Tensor apply(Tensor rows) {
            return matrix.apply(rows).add_(bias);
        }

        @Override
        public void addTo(Tensor x, Tensor rows) {
            matrix.addTo(x, rows);
            x.add_(bias);
        }
    }
}
