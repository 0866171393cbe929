package baton.engine.model;

import baton.engine.kernel.Activation;
import java.util.List;
import java.util.Optional;

/**
 * A matrix of weights, [out, in], that rows [m, in] are multiplied by: the product with the transposed matrix is [m, out], its bias added if it
 * has one. Rows lie in memory from {@link ModelKernels#inputs}, or have its type; results have that of activations. A result belongs to
 * the caller's scope.
 */
sealed interface Linear permits TorchLinear, PanelLinear, OperatorTimes.TimedLinear {
    Matrix apply(Matrix rows);

    /** As {@link #apply}, of the first rows; their number is that of {@code out} [n, out] of fp32. */
    void applyTo(Matrix out, Matrix rows);

    /** The last columns of the result of {@link #apply}. The others are not computed where the kernels can do so. */
    default Matrix applyLast(int columns, Matrix rows) {
        Matrix all = apply(rows);
        return all.columns(all.columns() - columns, columns);
    }

    /**
     * The product, times the activation of x, element by element, where x is the product with {@code gate}; in the type of activations or of
     * {@link ModelKernels#inputs}.
     *
     * @param gate of the same shape, made by the same kernels
     */
    Matrix applyGated(Linear gate, Activation activation, Matrix rows);

    /**
     * The results of several products, which are computed together where the kernels can do so.
     *
     * @param products with matrices of the same kernels as this one, of which each has rows of its own
     */
    default List<Matrix> applyAll(List<Product> products) {
        return products.stream()
                .map(product -> product.gate
                        .map(gate -> product.matrix.applyGated(gate.matrix, gate.activation, product.rows))
                        .orElseGet(() -> product.matrix.apply(product.rows)))
                .toList();
    }

    /** The product of {@link #apply} or, with a gate, of {@link #applyGated}. */
    record Product(Linear matrix, Optional<Gate> gate, Matrix rows) {}

    /** See {@link #applyGated}. */
    record Gate(Linear matrix, Activation activation) {}

    /** Adds the product to {@code x} [m, out]. */
    void addTo(Matrix x, Matrix rows);
}
