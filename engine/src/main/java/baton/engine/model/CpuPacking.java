package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * Packs weights for the processor's kernels and times their products.
 *
 * @param dtype of weights that are not quantised
 */
record CpuPacking(DType dtype, ModelKernels kernels, OperatorTimes times, Owned owned)
        implements WeightPacking<Linear, Norm> {
    @Override
    public ParallelFor threads() {
        return kernels.threads();
    }

    @Override
    public DType rotations() {
        return kernels.activations();
    }

    @Override
    public Linear linear(String operator, List<Matrix> parts, Optional<float[]> bias) {
        return timed(operator, parts, () -> kernels.linear(parts, bias));
    }

    @Override
    public Linear unquantised(String operator, List<Matrix> parts, Optional<float[]> bias) {
        return timed(operator, parts, () -> kernels.unquantised(parts, bias));
    }

    @Override
    public Linear shared(String operator, Matrix matrix) {
        return timed(operator, List.of(matrix), () -> kernels.shared(matrix));
    }

    private Linear timed(String name, List<Matrix> parts, Supplier<Linear> maker) {
        long before = owned.bytes();
        Linear matrix = maker.get();
        long bytes = owned.bytes() - before;
        long elements = parts.stream()
                .mapToLong(part -> (long) part.rows() * part.columns())
                .sum();
        return times.timed(name, matrix, elements, bytes > 0 ? bytes : elements * dtype.bytes());
    }

    @Override
    public Norm norm(float[] weights, Optional<float[]> bias, double eps) {
        return bias.<Norm>map(each -> new CenteredNorm(weights, each, eps, kernels.threads()))
                .orElseGet(() -> kernels.norm(weights, eps));
    }
}
