package baton.engine.model;

import baton.engine.kernel.Activation;

/**
 * A matrix of weights, [out, in], that rows [m, in] are multiplied by: the product with the transposed matrix is [m, out], its bias added if it
 * has one. Rows lie in memory from {@link ModelKernels#inputs}, or have its type; results have that of activations. A result belongs to
 * the caller's scope.
 */
sealed interface Linear permits TorchLinear, PanelLinear, OperatorTimes.TimedLinear {
    Matrix apply(Matrix rows);

    /** As {@link #apply}, of the first rows, as many as {@code out} [n, out] of fp32 has. */
    void applyTo(Matrix out, Matrix rows);

    /**
     * The product, times the activation of x, element by element, where x is the product with {@code gate}; in the type of activations or of
     * {@link ModelKernels#inputs}.
     *
     * @param gate of the same shape, made by the same kernels
     */
    Matrix applyGated(Linear gate, Activation activation, Matrix rows);

    /** Adds the product to {@code x} [m, out]. */
    void addTo(Matrix x, Matrix rows);
}
