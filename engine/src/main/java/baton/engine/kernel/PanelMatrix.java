package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/*
 * Layout. A panel has the weights of as many neighbouring outputs as two vectors have lanes, [input][output]: what a product loads for one
 * input is one or two vectors. Panels follow each other; the last one is filled up with zeros. In bf16 the 32 bits of a lane are two
 * weights, the lower of an output of the first vector and the upper of one of the second, so that one shift and one mask make fp32
 * of both. As pairs they are two inputs of one output, the lower 16 bits the first.
 *
 * Products. Few rows take the weights as they are: each is read once, at the memory's speed, and becomes fp32 in registers. Many rows
 * go block by block, and of the inputs some at a time: weights become fp32 once for a block and stay in the first cache, while the rows' elements,
 * which some panels use one after the other, stay in the second. See K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication", ACM TOMS 34(3), 2008. Pairs of bf16 are used as they are, those of 8 bits become bf16, and so do the rows' elements first, in memory of the thread's
 * own. Sums are kept in tiles of the thread's own until all inputs are taken. Few rows or many, a row's sums are the same bits.
 */

/**
 * A matrix of weights [outputs, inputs] in panels, which rows [m, inputs] of fp32 are multiplied by: {@code rows * transposed matrix}, [m,
 * outputs]. Used by one thread at a time, which divides the work among the team's threads.
 */
public final class PanelMatrix {
    /** Row groups of a block; the rows of a group are multiplied together. */
    private static final int BLOCK_GROUPS = 18;

    /** Number of panels that use the same rows one after the other, while these are in the cache. */
    private static final int TOGETHER = 8;

    /** Inputs that are multiplied at a time if there are many rows; their weights are expanded to fp32 for that time. */
    private static final int EXPANDED_INPUTS = 256;

    /** Bytes between the rows converted to bf16: not a multiple of 4 KiB, since such rows compete for the same few cache lines. */
    private static final long NARROWED_STRIDE = EXPANDED_INPUTS * (long) Short.BYTES + 64;

    /** Inputs that are converted to bf16 at once. */
    private static final int NARROWED_TOGETHER = 8;

    /** Row groups up to which the weights are used as they are, without expansion. */
    private static final int DIRECT_GROUPS = 2;

    private static final int PIECES_PER_THREAD = 8;

    private final Kernels kernels;
    private final ParallelFor threads;
    private final Scratch scratch;
    private final WeightType type;
    private final MemorySegment panels;
    private final MemorySegment scales;
    private final int outputs;
    private final int inputs;
    private final int panelCount;
    private final long panelBytes;

    /** Working memory of each thread, shared by all matrices, of which the products are computed one after the other. */
    public static final class Scratch {
        private final List<MemorySegment> tiles = new ArrayList<>();
        private final List<MemorySegment> expanded = new ArrayList<>();
        private final List<MemorySegment> narrowed = new ArrayList<>();
        private final Arena arena;
        private final int fewRows;
        private MemorySegment few = MemorySegment.NULL;

        public Scratch(Kernels kernels, int threads, Arena arena) {
            long width = kernels.panelWidth() * (long) Float.BYTES;
            for (int i = 0; i < threads; i++) {
                // One more: the last panel's columns are finished there.
                tiles.add(arena.allocate((TOGETHER + 1) * tileBytes(kernels), 64));
                expanded.add(arena.allocate(EXPANDED_INPUTS * width, 64));
                narrowed.add(arena.allocate(NARROWED_STRIDE * BLOCK_GROUPS * kernels.productRows(), 64));
            }
            this.arena = arena;
            fewRows = DIRECT_GROUPS * kernels.productRows();
        }

        /** Reserves memory for few rows in bf16, which all threads read. */
        private void reserve(int inputs) {
            long bytes = fewRows * narrowedStride(inputs);
            if (few.byteSize() < bytes) {
                few = arena.allocate(bytes, 64);
            }
        }

        private static long narrowedStride(int inputs) {
            return (long) inputs * Short.BYTES + 64;
        }

        private static long tileBytes(Kernels kernels) {
            return tileBytes(kernels.width());
        }

        /** Bytes from a panel's tile to the next panel's. */
        static long tileBytes(Width width) {
            return (long) BLOCK_GROUPS * ProductCode.mostRows(width) * ProductCode.VECTORS * width.bytes();
        }
    }

    /**
     * A matrix [outputs, inputs] in memory.
     *
     * @param panels the weights in the layout of this class, {@link #bytes}
     * @param scales of outputs, filled up to whole panels, for {@link WeightType#hasScales}; else empty
     */
    public record Weights(WeightType type, MemorySegment panels, MemorySegment scales, int outputs, int inputs) {}

    /** @throws IllegalArgumentException if the weights have another size than their shape says, or there are no such products */
    public PanelMatrix(Kernels kernels, ParallelFor threads, Scratch scratch, Weights weights) {
        this.kernels = kernels;
        this.threads = threads;
        this.scratch = scratch;
        this.type = weights.type;
        this.panels = weights.panels;
        this.scales = weights.scales;
        this.outputs = weights.outputs;
        this.inputs = weights.inputs;
        this.panelCount = Math.ceilDiv(outputs, kernels.panelWidth());
        this.panelBytes = (long) inputs * kernels.panelWidth() * type.bytes();
        if (type.inPairs()) {
            if (!takesPairs(kernels, inputs)) {
                throw new IllegalArgumentException(
                        "inputs: are %d for vectors of %d bytes, pairs take a multiple of %d and 64 bytes"
                                .formatted(inputs, kernels.width().bytes(), NARROWED_TOGETHER));
            }
            scratch.reserve(inputs);
        }
        if (panels.byteSize() != bytes(kernels, type, outputs, inputs)) {
            throw new IllegalArgumentException("panels: are %d bytes, a matrix [%d, %d] of %s has %d"
                    .formatted(panels.byteSize(), outputs, inputs, type, bytes(kernels, type, outputs, inputs)));
        }
    }

    /** Whether a matrix can be kept in pairs, on a processor with AVX512_BF16. */
    public static boolean takesPairs(Kernels kernels, int inputs) {
        return kernels.width() == Width.ZMM && inputs % NARROWED_TOGETHER == 0;
    }

    /** Bytes of a matrix' panels. */
    public static long bytes(Kernels kernels, WeightType type, int outputs, int inputs) {
        return Math.ceilDiv(outputs, kernels.panelWidth()) * (long) kernels.panelWidth() * inputs * type.bytes();
    }

    public int outputs() {
        return outputs;
    }

    public int inputs() {
        return inputs;
    }

    /** {@code out = product}. Strides in bytes; both matrices are fp32 and do not overlap. */
    public void multiply(MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride) {
        multiply(Finish.STORE, rows, rowStride, count, out, outStride);
    }

    /** {@code out += product}. */
    public void add(MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride) {
        multiply(Finish.ADD, rows, rowStride, count, out, outStride);
    }

    /** {@code out = product * sigmoid(product)}. */
    public void silu(MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride) {
        multiply(Finish.SILU, rows, rowStride, count, out, outStride);
    }

    /** {@code out *= product}. */
    public void times(MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride) {
        multiply(Finish.MULTIPLY, rows, rowStride, count, out, outStride);
    }

    private void multiply(
            Finish finish, MemorySegment rows, long rowStride, int count, MemorySegment out, long outStride) {
        if (count == 0) {
            return;
        }
        int group = kernels.productRows();
        boolean direct = count <= DIRECT_GROUPS * group;
        int beside = kernels.panelsBeside(type, count);
        int together = !direct
                ? Math.clamp(panelCount / (2L * threads.size()), 1, TOGETHER)
                : panelCount >= beside * threads.size() ? beside : 1;
        int blocks = Math.ceilDiv(count, BLOCK_GROUPS * group);
        int blockRows = blocks == 1 ? count : Math.ceilDiv(Math.ceilDiv(count, blocks), group) * group;
        int columns = Math.ceilDiv(panelCount, together);
        boolean narrows = direct && type.inPairs();
        long few = scratch.few.address();
        long fewStride = Scratch.narrowedStride(inputs);
        if (narrows) {
            kernels.narrowForPairs(rows.address(), rowStride, few, fewStride, count, inputs);
        }
        int piece = direct ? Math.clamp(columns / (threads.size() * PIECES_PER_THREAD), 1, PIECES_PER_THREAD) : 1;
        threads.parallelFor(Math.ceilDiv(count, blockRows) * columns, piece, (member, first, end) -> {
            MemorySegment tiles = scratch.tiles.get(member);
            for (int task = first; task < end; task++) {
                int row = task / columns * blockRows;
                int panel = task % columns * together;
                int some = Math.min(blockRows, count - row);
                int panels = Math.min(together, panelCount - panel);
                long from = rows.address() + row * rowStride;
                if (narrows) {
                    direct(few + row * fewStride, fewStride, some, panel, panels, tiles.address());
                } else if (direct) {
                    direct(from, rowStride, some, panel, panels, tiles.address());
                } else {
                    expanded(from, rowStride, some, panel, panels, tiles.address(), member);
                }
                for (int i = 0; i < panels; i++) {
                    if (type.hasScales()) {
                        long tile = tiles.address() + i * Scratch.tileBytes(kernels);
                        kernels.scaleColumns(tile, scalesOf(panel + i), some);
                    }
                    finish(finish, panel + i, tiles, i, some, out, row * outStride, outStride);
                }
            }
        });
    }

    private void direct(long from, long rowStride, int rows, int firstPanel, int panelsTogether, long tiles) {
        if (panelsTogether > 1 && panelsTogether == kernels.panelsBeside(type, rows)) {
            long weights = panels.address() + firstPanel * panelBytes;
            kernels.productBeside(type, from, rowStride, weights, elements(inputs), tiles, rows);
            return;
        }
        for (int i = 0; i < panelsTogether; i++) {
            direct(from, rowStride, rows, firstPanel + i, tiles + i * Scratch.tileBytes(kernels));
        }
    }

    private void direct(long from, long rowStride, int rows, int panel, long tile) {
        long weights = panels.address() + panel * panelBytes;
        int calls = Math.ceilDiv(rows, kernels.productRows());
        long tileRow = kernels.panelWidth() * (long) Float.BYTES;
        for (int call = 0; call < calls; call++) {
            int first = rows * call / calls;
            int some = rows * (call + 1) / calls - first;
            kernels.product(
                    type, from + first * rowStride, rowStride, weights, elements(inputs), tile + first * tileRow, some);
        }
    }

    private void expanded(
            long from, long rowStride, int rows, int firstPanel, int panelsTogether, long tiles, int member) {
        long inputBytes = (long) kernels.panelWidth() * type.bytes();
        boolean pairs = type.inPairs();
        WeightType used = pairs ? WeightType.BF16_PAIRS : WeightType.FP32;
        long stride = pairs ? NARROWED_STRIDE : rowStride;
        for (int input = 0; input < inputs; input += EXPANDED_INPUTS) {
            int some = Math.min(EXPANDED_INPUTS, inputs - input);
            long elements = from + (long) input * Float.BYTES;
            if (pairs) {
                long narrowed = scratch.narrowed.get(member).address();
                kernels.narrowForPairs(elements, rowStride, narrowed, stride, rows, some);
                elements = narrowed;
            }
            for (int i = 0; i < panelsTogether; i++) {
                int panel = firstPanel + i;
                long weights = panels.address() + panel * panelBytes + input * inputBytes;
                if (type != used) {
                    long place = scratch.expanded.get(member).address();
                    kernels.expand(type, weights, place, elements(some));
                    weights = place;
                }
                long tile = tiles + i * Scratch.tileBytes(kernels);
                if (input == 0) {
                    kernels.product(used, elements, stride, weights, elements(some), tile, rows);
                } else {
                    kernels.addProduct(used, elements, stride, weights, elements(some), tile, rows);
                }
            }
        }
    }

    /** Of a row, as the product's code counts them. */
    private int elements(int inputs) {
        return type.inPairs() ? inputs / 2 : inputs;
    }

    private long scalesOf(int panel) {
        return scales.address() + (long) panel * kernels.panelWidth() * Float.BYTES;
    }

    /** @param index of the panel's tile */
    private void finish(
            Finish finish,
            int panel,
            MemorySegment tiles,
            int index,
            int rows,
            MemorySegment out,
            long start,
            long outStride) {
        int width = kernels.panelWidth();
        long column = (long) panel * width * Float.BYTES;
        long tile = tiles.address() + index * Scratch.tileBytes(kernels);
        int columns = Math.min(width, outputs - panel * width);
        if (columns == width) {
            kernels.finish(finish, tile, out.address() + start + column, outStride, rows);
            return;
        }
        long bytes = (long) columns * Float.BYTES;
        long stride = (long) width * Float.BYTES;
        MemorySegment whole = tiles.asSlice(TOGETHER * Scratch.tileBytes(kernels));
        for (int row = 0; row < rows; row++) {
            MemorySegment.copy(out, start + row * outStride + column, whole, row * stride, bytes);
        }
        kernels.finish(finish, tile, whole.address(), stride, rows);
        for (int row = 0; row < rows; row++) {
            MemorySegment.copy(whole, row * stride, out, start + row * outStride + column, bytes);
        }
    }
}
