package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/*
 * Layout. A panel has the weights of as many neighbouring outputs as two vectors have lanes, [input][output]: what a product loads for one
 * input is one or two vectors. Panels follow each other; the last one is filled up with zeros. In bf16 the 32 bits of a lane are two
 * weights, the lower of an output of the first vector and the upper of one of the second, so that one shift and one mask make fp32
 * of both.
 *
 * Products. Few rows take the weights as they are: each is read once, at the memory's speed, and becomes fp32 in registers. Many rows
 * go block by block, and of the inputs some at a time: weights become fp32 once for a block and stay in the first cache, while the rows' elements,
 * which some panels use one after the other, stay in the second. See K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication", ACM TOMS 34(3), 2008. Sums are kept in tiles of the thread's own until all inputs are taken.
 */

/**
 * A matrix of weights [outputs, inputs] in panels, which rows [m, inputs] of fp32 are multiplied by: {@code rows * transposed matrix}, [m,
 * outputs]. Used by one thread at a time, which calls others.
 */
public final class PanelMatrix {
    /** Rows of a block, in groups that are multiplied together. */
    private static final int BLOCK_GROUPS = 18;

    /** Panels that use the same rows one after the other. */
    private static final int TOGETHER = 8;

    /** Inputs whose weights are fp32 at a time. */
    private static final int EXPANDED_INPUTS = 256;

    /** Few rows, in groups that are multiplied together. */
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

    /** What each thread works with. Of one size for all matrices, whose products come one after the other. */
    public static final class Scratch {
        private final List<MemorySegment> tiles = new ArrayList<>();
        private final List<MemorySegment> expanded = new ArrayList<>();

        public Scratch(Kernels kernels, int threads, Arena arena) {
            long width = kernels.panelWidth() * (long) Float.BYTES;
            for (int i = 0; i < threads; i++) {
                // One more: the last panel's columns are finished there.
                tiles.add(arena.allocate((TOGETHER + 1) * tileBytes(kernels), 64));
                expanded.add(arena.allocate(EXPANDED_INPUTS * width, 64));
            }
        }

        private static long tileBytes(Kernels kernels) {
            return (long) BLOCK_GROUPS * kernels.productRows() * kernels.panelWidth() * Float.BYTES;
        }
    }

    /**
     * @param panels the weights in the layout of this class, {@link #bytes}
     * @param scales of outputs, filled up to whole panels, for {@link WeightType#INT8}; else empty
     */
    public PanelMatrix(
            Kernels kernels,
            ParallelFor threads,
            Scratch scratch,
            WeightType type,
            MemorySegment panels,
            MemorySegment scales,
            int outputs,
            int inputs) {
        this.kernels = kernels;
        this.threads = threads;
        this.scratch = scratch;
        this.type = type;
        this.panels = panels;
        this.scales = scales;
        this.outputs = outputs;
        this.inputs = inputs;
        this.panelCount = Math.ceilDiv(outputs, kernels.panelWidth());
        this.panelBytes = (long) inputs * kernels.panelWidth() * type.bytes();
        if (panels.byteSize() != bytes(kernels, type, outputs, inputs)) {
            throw new IllegalArgumentException("panels: are %d bytes, a matrix [%d, %d] of %s has %d"
                    .formatted(panels.byteSize(), outputs, inputs, type, bytes(kernels, type, outputs, inputs)));
        }
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
        int together = direct ? 1 : Math.clamp(panelCount / (2L * threads.size()), 1, TOGETHER);
        int blocks = Math.ceilDiv(count, BLOCK_GROUPS * group);
        int blockRows = blocks == 1 ? count : Math.ceilDiv(Math.ceilDiv(count, blocks), group) * group;
        int columns = Math.ceilDiv(panelCount, together);
        int piece = direct ? Math.clamp(panelCount / (threads.size() * PIECES_PER_THREAD), 1, PIECES_PER_THREAD) : 1;
        threads.share(Math.ceilDiv(count, blockRows) * columns, piece, (member, first, end) -> {
            MemorySegment tiles = scratch.tiles.get(member);
            for (int task = first; task < end; task++) {
                int row = task / columns * blockRows;
                int panel = task % columns * together;
                int some = Math.min(blockRows, count - row);
                int panels = Math.min(together, panelCount - panel);
                long from = rows.address() + row * rowStride;
                if (direct) {
                    direct(from, rowStride, some, panel, tiles.address());
                } else {
                    expanded(from, rowStride, some, panel, panels, tiles.address(), member);
                }
                for (int i = 0; i < panels; i++) {
                    finish(finish, panel + i, tiles, i, some, out, row * outStride, outStride);
                }
            }
        });
    }

    private void direct(long from, long rowStride, int rows, int panel, long tile) {
        long weights = panels.address() + panel * panelBytes;
        int calls = Math.ceilDiv(rows, kernels.productRows());
        long tileRow = kernels.panelWidth() * (long) Float.BYTES;
        for (int call = 0; call < calls; call++) {
            int first = rows * call / calls;
            int some = rows * (call + 1) / calls - first;
            kernels.product(type, from + first * rowStride, rowStride, weights, inputs, tile + first * tileRow, some);
        }
        if (type == WeightType.INT8) {
            kernels.scaleColumns(tile, scalesOf(panel), rows);
        }
    }

    private void expanded(
            long from, long rowStride, int rows, int firstPanel, int panelsTogether, long tiles, int member) {
        long inputBytes = (long) kernels.panelWidth() * type.bytes();
        for (int input = 0; input < inputs; input += EXPANDED_INPUTS) {
            int some = Math.min(EXPANDED_INPUTS, inputs - input);
            long elements = from + (long) input * Float.BYTES;
            for (int i = 0; i < panelsTogether; i++) {
                int panel = firstPanel + i;
                long weights = panels.address() + panel * panelBytes + input * inputBytes;
                if (type != WeightType.FP32) {
                    long place = scratch.expanded.get(member).address();
                    kernels.expand(type, weights, place, some, type == WeightType.INT8 ? scalesOf(panel) : 0);
                    weights = place;
                }
                long tile = tiles + i * Scratch.tileBytes(kernels);
                if (input == 0) {
                    kernels.product(WeightType.FP32, elements, rowStride, weights, some, tile, rows);
                } else {
                    kernels.addProduct(elements, rowStride, weights, some, tile, rows);
                }
            }
        }
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
