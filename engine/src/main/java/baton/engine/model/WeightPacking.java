package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.kv.DType;
import java.util.List;
import java.util.Optional;

/**
 * Keeps the weights that {@link Weights} reads, in the way that a device computes with them. The memory of the matrices it is given is valid
 * until it returns, if nothing else is said.
 *
 * @param <L> a matrix of weights
 * @param <N> a norm
 */
public interface WeightPacking<L, N> {
    /** The threads that unpack and convert weights. */
    ParallelFor threads();

    /** Type of the cosines and sines of rotations. */
    DType rotations();

    /**
     * Packs a matrix of weights.
     *
     * @param operator name of the product
     * @param parts its rows, one part below the other, of any type
     * @param bias that is added to each product, one number for each of the matrix' rows
     */
    L linear(String operator, List<Matrix> parts, Optional<float[]> bias);

    /** Packs a matrix in the type of computation, whatever the quantisation. */
    L unquantised(String operator, List<Matrix> parts, Optional<float[]> bias);

    /** Packs a matrix that stays in memory anyway. */
    L shared(String operator, Matrix matrix);

    /**
     * @param weights as many as a head or a hidden state has elements
     * @param bias of a norm that subtracts the mean
     */
    N norm(float[] weights, Optional<float[]> bias, double eps);
}
