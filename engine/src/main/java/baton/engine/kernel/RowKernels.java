package baton.engine.kernel;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Norms, rotations, copies into the KV cache and largest numbers of rows of fp32. Used by one thread at a time, which divides the work among
 * the team's threads.
 */
public final class RowKernels {
    /** Rows that a thread takes at once. */
    private static final int PIECE = 16;

    /** Numbers of which the largest is found at once. */
    private static final int CHUNK = 1024;

    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;

    private final Kernels kernels;
    private final ParallelFor threads;
    private final Arena arena;
    private MemorySegment maxima = MemorySegment.NULL;

    public RowKernels(Kernels kernels, ParallelFor threads, Arena arena) {
        this.kernels = kernels;
        this.threads = threads;
        this.arena = arena;
    }

    /**
     * Heads of rows.
     *
     * @param start bytes from a row's beginning to its first head
     * @param headStride bytes from a head to the next one
     */
    public record Heads(Rows rows, long start, int heads, long headStride) {
        long address(int row) {
            return rows.address(row) + start;
        }
    }

    /** A norm's weights, a multiple of 4, and its eps. */
    public final class Norm {
        private final int width;
        private final MemorySegment weights;
        private final MemorySegment numbers;

        private Norm(float[] weights, double eps) {
            this.width = weights.length;
            this.weights = arena.allocate((long) width * Float.BYTES, 64);
            this.weights.copyFrom(MemorySegment.ofArray(weights));
            this.numbers = arena.allocate(2L * Float.BYTES, 64);
            numbers.setAtIndex(FLOAT, 0, 1f / width);
            numbers.setAtIndex(FLOAT, 1, (float) eps);
        }

        /**
         * {@code to = from / sqrt(mean(from * from) + eps) * weight}, head by head.
         *
         * @param from of fp32
         * @param to may be {@code from}; or of bf16 on a processor with AVX512_BF16, if the weights are a multiple of 32
         */
        public void apply(Heads from, Heads to, int rows) {
            threads.parallelFor(rows, PIECE, (_, first, end) -> {
                for (int row = first; row < end; row++) {
                    for (int head = 0; head < from.heads; head++) {
                        apply(
                                from.address(row) + head * from.headStride,
                                to.address(row) + head * to.headStride,
                                to.rows);
                    }
                }
            });
        }

        private void apply(long from, long to, Rows target) {
            if (target.isNarrow()) {
                kernels.get(Kernel.NARROW_NORM).call(from, to, weights.address(), width, numbers.address());
            } else {
                kernels.get(Kernel.NORM, kernels.fitting(width))
                        .call(from, to, weights.address(), width, numbers.address());
            }
        }
    }

    public Norm norm(float[] weights, double eps) {
        return new Norm(weights, eps);
    }

    /**
     * Turns the pairs of each head, element i with element i + D/2, by the angles of its row's position.
     *
     * @param queries perhaps none
     * @param turned where the queries are written to; keys are turned in place
     * @param table by row, D/2 cosines and D/2 sines of fp32
     */
    public void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table, int rows) {
        MachineFunction rotate = kernels.get(Kernel.ROTATE, kernels.fitting(headDim / 2));
        threads.parallelFor(rows, PIECE, (_, first, end) -> {
            for (int row = first; row < end; row++) {
                long angles = table.address() + (long) row * headDim * Float.BYTES;
                if (queries.heads > 0) {
                    rotate.call(
                            queries.address(row),
                            queries.headStride,
                            turned.address(row),
                            turned.headStride,
                            queries.heads,
                            angles,
                            headDim / 2);
                }
                long key = keys.address(row);
                rotate.call(key, keys.headStride, key, keys.headStride, keys.heads, angles, headDim / 2);
            }
        });
    }

    /**
     * The index of each row's largest number, the first if there are several; 0 if no number is above negative infinity. NaN is none.
     *
     * @param numbers rows of fp32, one behind the other
     * @param count of a row's numbers
     */
    public long[] largest(MemorySegment numbers, int rows, int count) {
        int chunks = count / CHUNK;
        int lanes = kernels.width().lanes();
        long stride = (long) chunks * kernels.width().bytes();
        MemorySegment maxima = maxima(rows * stride);
        long[] best = new long[rows];
        threads.parallelFor(rows, 1, (_, first, end) -> {
            for (int row = first; row < end; row++) {
                MemorySegment of = numbers.asSlice((long) row * count * Float.BYTES, (long) count * Float.BYTES);
                if (chunks > 0) {
                    kernels.get(Kernel.LARGEST)
                            .call(of.address(), CHUNK / lanes, chunks, maxima.address() + row * stride);
                }
                float largest = Float.NEGATIVE_INFINITY;
                int chunkOfLargest = -1;
                for (int chunk = 0; chunk < chunks; chunk++) {
                    float number = maxima.get(
                            FLOAT, row * stride + (long) chunk * kernels.width().bytes());
                    if (number > largest) {
                        largest = number;
                        chunkOfLargest = chunk;
                    }
                }
                if (chunkOfLargest >= 0) {
                    best[row] = indexOf(largest, of, chunkOfLargest * CHUNK);
                }
                for (int i = chunks * CHUNK; i < count; i++) {
                    float number = of.getAtIndex(FLOAT, i);
                    if (number > largest) {
                        largest = number;
                        best[row] = i;
                    }
                }
            }
        });
        return best;
    }

    /** Working memory, which grows. */
    private MemorySegment maxima(long bytes) {
        if (maxima.byteSize() < bytes) {
            maxima = arena.allocate(Math.max(bytes, 2 * maxima.byteSize()), 64);
        }
        return maxima;
    }

    /** The first index of a number that is there, at {@code from} or behind. */
    private static int indexOf(float number, MemorySegment numbers, int from) {
        int index = from;
        while (numbers.getAtIndex(FLOAT, index) != number) {
            index++;
        }
        return index;
    }

    /** A row's slot in the cache. */
    public interface Slots {
        int block(int row);

        int slot(int row);
    }

    /** Copies entries, those of a row's heads in turn, into their slots. */
    public void save(int layer, Heads pairs, int rows, KvCache cache, Slots slots) {
        KvLayout layout = cache.layout();
        int width = layout.entryElements();
        threads.parallelFor(rows, PIECE, (_, first, end) -> {
            for (int row = first; row < end; row++) {
                long to = cache.layerStart(slots.block(row), layer) + slots.slot(row) * layout.entryBytes();
                if (layout.dtype() != DType.F32) {
                    kernels.narrowing(layout.dtype(), width)
                            .call(
                                    pairs.address(row),
                                    pairs.headStride,
                                    cache.host().address() + to,
                                    layout.headBytes(),
                                    layout.kvHeads(),
                                    width);
                    continue;
                }
                for (int head = 0; head < layout.kvHeads(); head++) {
                    MemorySegment.copy(
                            pairs.rows.memory(),
                            pairs.start + row * pairs.rows.stride() + head * pairs.headStride,
                            cache.host(),
                            to + head * layout.headBytes(),
                            (long) width * Float.BYTES);
                }
            }
        });
    }
}
