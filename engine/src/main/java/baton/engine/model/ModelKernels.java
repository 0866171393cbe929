package baton.engine.model;

import baton.engine.kernel.AttentionScores;
import baton.engine.kernel.ParallelFor;
import baton.kv.DType;
import baton.kv.KvCache;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/**
 * The kernels that a rank of a model is computed with; {@link KernelChoice} chooses them. Objects that they make belong together. Used by
 * one thread, which divides the work among threads of the kernels.
 */
sealed interface ModelKernels extends AutoCloseable permits TorchKernels, PanelKernels {
    /** Type of activations: of hidden states, queries and so on. */
    DType activations();

    /** The threads that the kernels divide their work among, for other loops too, with pieces that may differ much. */
    ParallelFor threads();

    /** A number of rows to compute, rounded up if each new number of rows costs time. */
    int padded(int rows);

    /** Begins a forward pass on the calling thread; the result is its scope. */
    RowMemory.Scope pass();

    /** Begins a scope of {@link #rows} and {@link #inputs}. */
    RowMemory.Scope scope();

    /** Memory for activations, with any content, until the scope ends; with a gap between rows if that is faster. */
    Matrix rows(long rows, long columns);

    /** As {@link #rows}, in the type that products with matrices [any, columns] take. */
    Matrix inputs(long rows, long columns);

    /** Converts rows of activations to the type of {@link #inputs}, unless they have that type. */
    Matrix asInputs(Matrix rows);

    /**
     * Packs a matrix of weights.
     *
     * @param parts its rows, one part below the other, of any type
     * @param bias that is added to each product, one number for each of the matrix' rows
     */
    Linear linear(List<Matrix> parts, Optional<float[]> bias);

    /** Packs a matrix in the type of computation, whatever the quantisation. */
    Linear unquantised(List<Matrix> parts, Optional<float[]> bias);

    /** Packs a matrix that stays in memory anyway. */
    Linear shared(Matrix matrix);

    /** @param weights as many as a head or a hidden state has elements */
    Norm norm(float[] weights, double eps);

    /**
     * Turns the pairs of each head, element i with element i + D/2, by the angles of its row's position.
     *
     * @param queries perhaps none
     * @param turned where the queries are written to, as many heads with the same stride; the keys are turned in place
     * @param headDim D, the elements of a head that are turned: the first ones
     * @param table by row: D/2 cosines, D/2 sines
     */
    void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table);

    /**
     * Copies entries into their slots.
     *
     * @param entries of all key/value heads in turn, [rows, G * {@code entryElements}], with a gap between rows perhaps
     * @param first of the batch's rows, the first of {@code entries}
     */
    void save(int layer, Matrix entries, KvCache cache, Batch batch, int first, int count);

    /** The index of each row's largest logit, the first if there are several, 0 if none is a number; {@code logits} are [rows, columns] of fp32. */
    long[] largest(MemorySegment logits, int rows, int columns);

    /** @param reach by layer, how many positions a token attends to */
    Attention attention(ModelConfig config, AttentionScores scores, KvCache cache, int[] reach);

    /** Ends the kernels' threads. Memory is freed with the arena and the objects that the kernels were given. */
    @Override
    void close();

    /** Divides rows or heads by their root mean square, and multiplies them by weights: {@code x / sqrt(mean(x * x) + eps) * weight}. */
    @FunctionalInterface
    interface Norm {
        /** @param to as many heads as {@code from}, and may be the same; or whole rows of {@link #inputs} */
        void apply(Heads from, Heads to);
    }

    /**
     * Where heads of rows lie: head h of row r begins at element {@code offset + r * rowStride + h * headStride}.
     *
     * @param memory open to all threads
     * @param type of the elements
     */
    record Heads(MemorySegment memory, DType type, int rows, long offset, long rowStride, int heads, long headStride) {
        /** A matrix' rows as one head each. */
        static Heads ofRows(Matrix x) {
            return of(x, 0, 1, x.columns());
        }

        /** Heads of a matrix' rows, from {@code offset} in each. */
        static Heads of(Matrix x, long offset, int heads, long headStride) {
            return new Heads(x.memory(), x.type(), x.rows(), offset, x.stride(), heads, headStride);
        }

        long start(int row, int head) {
            return offset + row * rowStride + head * headStride;
        }
    }
}
