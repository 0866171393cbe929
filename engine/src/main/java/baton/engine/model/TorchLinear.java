package baton.engine.model;

import baton.engine.kernel.Activation;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Products by LibTorch's operators. */
sealed interface TorchLinear extends Linear {
    Tensor apply(Tensor rows);

    @Override
    default Matrix apply(Matrix rows) {
        return LibTorch.matrix(apply(LibTorch.tensor(rows)));
    }

    @Override
    default void applyTo(Matrix out, Matrix rows) {
        LibTorch.tensor(out).copy_(apply(LibTorch.tensor(rows)).narrow(0, 0, out.rows()));
    }

    @Override
    default Matrix applyGated(Linear gate, Activation activation, Matrix rows) {
        Matrix product = gate.apply(rows);
        Tensor x = LibTorch.tensor(product);
        Tensor other = apply(LibTorch.tensor(rows));
        Tensor activated = switch (activation) {
            case SILU -> torch.silu_(x);
            case GELU_TANH -> torch.gelu_(x, "tanh");
            case CLAMPED_SWIGLU -> {
                Scalar limit = new Scalar(Activation.SWIGLU_LIMIT);
                torch.clamp_max_(x, limit);
                torch.clamp_max_(torch.clamp_min_(other, new Scalar(-Activation.SWIGLU_LIMIT)), limit)
                        .add_(new Scalar(1.0));
                yield x.mul_(x.mul(new Scalar(Activation.SWIGLU_SLOPE)).sigmoid_());
            }
        };
        activated.mul_(other);
        return product;
    }

    /** The matrix row by row, as in a checkpoint. */
    record Dense(Tensor matrix, Blas blas) implements TorchLinear {
        @Override
        public Tensor apply(Tensor rows) {
            return blas.product(() -> torch.linear(rows, matrix));
        }

        /** The sum is part of the multiplication, which saves a pass over memory. */
        @Override
        public void addTo(Matrix x, Matrix rows) {
            Tensor sum = LibTorch.tensor(x);
            blas.product(() -> torch.addmm_out(sum, sum, LibTorch.tensor(rows), matrix.t()));
        }
    }

    /**
     * The matrix in oneDNN's layout: products of many rows are faster, and a single row's product reads the weights at the memory's speed.
     */
    record Packed(OneDnn oneDnn, IValue matrix) implements TorchLinear {
        @Override
        public Tensor apply(Tensor rows) {
            return oneDnn.linear(rows, matrix);
        }

        @Override
        public Matrix applyGated(Linear gate, Activation activation, Matrix rows) {
            if (!(gate instanceof Packed packed) || activation != Activation.SILU) {
                return TorchLinear.super.applyGated(gate, activation, rows);
            }
            Tensor tensor = LibTorch.tensor(rows);
            return LibTorch.matrix(oneDnn.linearTimes(tensor, oneDnn.linearSilu(tensor, packed.matrix), matrix));
        }

        @Override
        public void addTo(Matrix x, Matrix rows) {
            Tensor before = LibTorch.tensor(x);
            before.copy_(oneDnn.linearPlus(LibTorch.tensor(rows), before, matrix));
        }
    }

    /** The product of {@code matrix} with a bias [out] added to each row. */
    record Biased(TorchLinear matrix, Tensor bias) implements TorchLinear {
        @Override
        public Tensor apply(Tensor rows) {
            return matrix.apply(rows).add_(bias);
        }

        @Override
        public void addTo(Matrix x, Matrix rows) {
            matrix.addTo(x, rows);
            LibTorch.tensor(x).add_(bias);
        }
    }
}
