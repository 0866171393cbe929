package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import baton.kv.DType;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/*
 * Layout. A panel has the weights of as many neighbouring outputs as two vectors have lanes, [input][output]: a product loads one or two
 * vectors for one input. Panels follow each other; the last one is filled up with zeros. In bf16 the 32 bits of a lane are two weights, the
 * lower of an output of the first vector and the upper of one of the second, so that one shift and one mask make fp32 of both. As pairs
 * they are two inputs of one output, the lower 16 bits the first.
 *
 * Products. Few rows take the weights as they are: each is read from memory once, at its speed, and becomes fp32 in registers; rows that are not
 * multiplied together find it in the second cache. Many rows go block by block, and of the inputs some at a time: weights become fp32 once for a block and stay in the first cache, while the rows' elements,
 * which some panels use one after the other, stay in the second. See K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication", ACM TOMS 34(3), 2008. Pairs of bf16 are used as they are, and those of 8 bits become bf16; those of 4 bits become bf16 for few rows too. Sums are kept in tiles of
 * the thread's own until all inputs are taken. Few rows or many, a row's sums are the same bits.
 */

/**
 * A matrix of weights [outputs, inputs] in panels, which rows [m, inputs] are multiplied by: {@code rows * transposed matrix}, [m, outputs].
 * Rows are bf16 for weights in pairs, else fp32. Used by one thread at a time, which divides the work among the team's threads.
 */
public final class PanelMatrix {
    /** Row groups of a block; the rows of a group are multiplied together. */
    private static final int BLOCK_GROUPS = 19;

    /** Number of panels that use the same rows one after the other, while these are in the cache. */
    private static final int TOGETHER = 8;

    /** As {@link #TOGETHER}, for two matrices. */
    private static final int TOGETHER_GATED = TOGETHER / 2;

    /** Inputs that are multiplied at a time if there are many rows; their weights are expanded to fp32 for that time. */
    static final int EXPANDED_INPUTS = 288;

    /** Inputs in pairs are a multiple of it: of a tile, and of the elements that become bf16 at once. */
    static final int PAIRED_INPUTS = TileCode.INPUTS;

    /** Row groups up to which the weights are used as they are, without expansion. */
    private static final int DIRECT_GROUPS = 10;

    /** The number of direct groups for panels that are too long to stay in the second cache for all groups. */
    private static final int DIRECT_GROUPS_OF_LONG = 2;

    /** Bytes of a panel and the next one that stay there. */
    private static final long KEPT_BYTES = 1 << 20;

    /** Rows of a block on the matrix unit: the second cache has room for their sums beside rows and weights. */
    private static final int TILE_BLOCK_ROWS = 512;

    private static final int PIECES_PER_THREAD = 8;

    /** Elements of rows that a product of more than two groups takes in one call, which the JVM waits for: a tenth of a millisecond. */
    private static final int MOST_PRODUCTS = 300_000;

    private final Kernels kernels;
    private final ParallelFor threads;
    private final Scratch scratch;
    private final WeightType type;
    private final MemorySegment panels;
    private final MemorySegment scales;
    private final MemorySegment biases;
    private final int outputs;
    private final int inputs;
    private final int panelCount;
    private final long panelBytes;
    private final DType rowType;

    /** Working memory of each thread, shared by all matrices, of which the products are computed one after the other. */
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
            return tileBytes(kernels.width(), kernels.hasTiles());
        }

        /** Bytes from a panel's sums to the next panel's. */
        static long tileBytes(Width width, boolean onMatrixUnit) {
            return (long) blockRows(width, onMatrixUnit) * ProductCode.VECTORS * width.bytes();
        }

        /** Bytes from a panel's sums to those of the gate's. */
        static long gateOffset(Width width, boolean onMatrixUnit) {
            return TOGETHER_GATED * tileBytes(width, onMatrixUnit);
        }

        private static int blockRows(Kernels kernels, boolean pairs) {
            return blockRows(kernels.width(), kernels.hasTiles() && pairs);
        }

        private static int blockRows(Width width, boolean onMatrixUnit) {
            return onMatrixUnit ? TILE_BLOCK_ROWS : BLOCK_GROUPS * ProductCode.mostRows(width);
        }
    }

    /**
     * A matrix [outputs, inputs] in memory.
     *
     * @param panels the weights in the layout of this class, {@link #bytes}
     * @param scales of outputs, filled up to whole panels, for {@link WeightType#hasScales}; else empty
     * @param biases of outputs, filled up to whole panels, which are added to each row's product; empty: none are
     */
    public record Weights(
            WeightType type,
            MemorySegment panels,
            MemorySegment scales,
            MemorySegment biases,
            int outputs,
            int inputs) {}

    /** @throws IllegalArgumentException if the weights have another size than their shape says, or there are no such products */
    public PanelMatrix(Kernels kernels, ParallelFor threads, Scratch scratch, Weights weights) {
        this.kernels = kernels;
        this.threads = threads;
        this.scratch = scratch;
        this.type = weights.type;
        this.panels = weights.panels;
        this.scales = weights.scales;
        this.biases = weights.biases;
        this.outputs = weights.outputs;
        this.inputs = weights.inputs;
        this.panelCount = Math.ceilDiv(outputs, kernels.panelWidth());
        this.panelBytes = type.bytes(inputs, kernels.panelWidth());
        this.rowType = type.inPairs() ? DType.BF16 : DType.F32;
        if (type.inPairs() && !takesPairs(kernels, inputs)) {
            throw new IllegalArgumentException(
                    "inputs: are %d for vectors of %d bytes, pairs take a multiple of %d and 64 bytes"
                            .formatted(inputs, kernels.width().bytes(), PAIRED_INPUTS));
        }
        if (panels.byteSize() != bytes(kernels, type, outputs, inputs)) {
            throw new IllegalArgumentException("panels: are %d bytes, a matrix [%d, %d] of %s has %d"
                    .formatted(panels.byteSize(), outputs, inputs, type, bytes(kernels, type, outputs, inputs)));
        }
    }

    /** Whether a matrix can be kept in pairs, on a processor with AVX512_BF16. */
    public static boolean takesPairs(Kernels kernels, int inputs) {
        return kernels.width() == Width.ZMM && inputs % PAIRED_INPUTS == 0;
    }

    /** Bytes of a matrix' panels. */
    public static long bytes(Kernels kernels, WeightType type, int outputs, int inputs) {
        return Math.ceilDiv(outputs, kernels.panelWidth()) * type.bytes(inputs, kernels.panelWidth());
    }

    public int outputs() {
        return outputs;
    }

    /** The last outputs: so many, and those before them that share their first panel. */
    public PanelMatrix last(int count) {
        int first = (outputs - count) / kernels.panelWidth();
        int before = first * kernels.panelWidth();
        return new PanelMatrix(
                kernels,
                threads,
                scratch,
                new Weights(
                        type,
                        panels.asSlice(first * panelBytes),
                        numbersFrom(scales, before),
                        numbersFrom(biases, before),
                        outputs - before,
                        inputs));
    }

    private static MemorySegment numbersFrom(MemorySegment numbers, int output) {
        return numbers.asSlice(Math.min(numbers.byteSize(), (long) output * Float.BYTES));
    }

    /**
     * {@code out = product}.
     *
     * @param rows of bf16 for weights in pairs, else of fp32
     * @param out of fp32, which does not overlap the rows
     */
    public void multiply(Rows rows, int count, Rows out) {
        compute(List.of(product(rows, count, out)));
    }

    /** {@code out += product}. */
    public void add(Rows rows, int count, Rows out) {
        compute(List.of(new Product(Finish.ADD, Optional.empty(), rows, count, out)));
    }

    /**
     * {@code out = product * activation(x)}, where x is the product with the gate.
     *
     * @param gate for which {@link #takesGate} holds
     * @param out of fp32 or, with vectors of 64 bytes and on a processor with AVX512_BF16, bf16
     */
    public void multiplyGated(PanelMatrix gate, Activation activation, Rows rows, int count, Rows out) {
        compute(List.of(gatedProduct(gate, activation, rows, count, out)));
    }

    /** The product of {@link #multiply}, for {@link #compute}. */
    public Product product(Rows rows, int count, Rows out) {
        return new Product(Finish.STORE, Optional.empty(), rows, count, out);
    }

    /** The product of {@link #multiplyGated}, for {@link #compute}. */
    public Product gatedProduct(PanelMatrix gate, Activation activation, Rows rows, int count, Rows out) {
        if (!takesGate(gate)) {
            throw new IllegalArgumentException("gate: is [%d, %d] of %s, the matrix is [%d, %d] of %s"
                    .formatted(gate.outputs, gate.inputs, gate.type, outputs, inputs, type));
        }
        return new Product(Finish.gated(activation, out.isNarrow()), Optional.of(gate), rows, count, out);
    }

    /** Whether a gate has this matrix' shape, its type of rows and its working memory. The types of weights may differ. */
    public boolean takesGate(PanelMatrix gate) {
        return gate.outputs == outputs && gate.inputs == inputs && gate.rowType == rowType && gate.scratch == scratch;
    }

    /**
     * Computes products in one loop, so that threads wait for each other once.
     *
     * @param products of matrices with the same threads and working memory, at least one, none of which uses the result of another
     */
    public static void compute(List<Product> products) {
        int[] ends = new int[products.size()];
        int tasks = 0;
        int piece = Integer.MAX_VALUE;
        for (int i = 0; i < ends.length; i++) {
            tasks += products.get(i).tasks;
            ends[i] = tasks;
            piece = Math.min(piece, products.get(i).piece);
        }
        products.getFirst().threads().parallelFor(tasks, piece, (member, first, end) -> {
            int index = 0;
            for (int task = first; task < end; task++) {
                while (task >= ends[index]) {
                    index++;
                }
                Product product = products.get(index);
                product.compute(member, task - ends[index] + product.tasks);
            }
        });
    }

    /** Rows times this matrix, which {@link #compute} computes. */
    public final class Product {
        private final Finish finish;
        private final Optional<PanelMatrix> gate;
        private final Rows rows;
        private final int count;
        private final Rows out;
        private final boolean direct;
        private final int together;
        private final int columns;
        private final int blockRows;
        /** Blocks, which threads compute one by one. */
        private final int tasks;

        /** Tasks that a thread takes at once. */
        private final int piece;

        private Product(Finish finish, Optional<PanelMatrix> gate, Rows rows, int count, Rows out) {
            if (rows.type() != rowType) {
                throw new IllegalArgumentException(
                        "rows: are %s, products with %s take rows of %s".formatted(rows.type(), type, rowType));
            }
            boolean narrows = finish.narrows();
            if (out.isNarrow() != narrows || narrows && kernels.width() != Width.ZMM) {
                throw new IllegalArgumentException(
                        "out: is of %s, which only products with a gate and vectors of 64 bytes can be"
                                .formatted(out.type()));
            }
            this.finish = finish;
            this.gate = gate;
            this.rows = rows;
            this.count = count;
            this.out = out;
            direct = count
                    <= Math.min(directRows(), gate.orElse(PanelMatrix.this).directRows());
            int beside = direct ? kernels.panelsBeside(type, Math.max(1, count)) : 1;
            together = !direct
                    ? Math.clamp(panelCount / (2L * threads.size()), 1, gate.isPresent() ? TOGETHER_GATED : TOGETHER)
                    : panelCount >= beside * threads.size() ? beside : 1;
            columns = Math.ceilDiv(panelCount, together);
            blockRows = blockRows(count);
            tasks = count == 0 ? 0 : Math.ceilDiv(count, blockRows) * columns;
            piece = direct ? Math.clamp(columns / (threads.size() * PIECES_PER_THREAD), 1, PIECES_PER_THREAD) : 1;
        }

        private ParallelFor threads() {
            return threads;
        }

        private void compute(int member, int task) {
            int row = task / columns * blockRows;
            int panel = task % columns * together;
            Block block = new Block(
                    rows.address(row),
                    rows.stride(),
                    Math.min(blockRows, count - row),
                    panel,
                    Math.min(together, panelCount - panel),
                    member,
                    0);
            PanelMatrix.this.compute(block, direct);
            gate.ifPresent(matrix -> matrix.compute(block.ofGate(), direct));
            finish(finish, block, out, row);
        }
    }

    /**
     * The rows and columns that a thread computes at once.
     *
     * @param from address of the first row
     * @param member of the team
     * @param firstTile of the sums
     */
    private record Block(long from, long rowStride, int rows, int firstPanel, int panels, int member, int firstTile) {
        Block ofGate() {
            return new Block(from, rowStride, rows, firstPanel, panels, member, TOGETHER_GATED);
        }
    }

    /** The sums of a block, times the outputs' scales, and the outputs' biases added. */
    private void compute(Block block, boolean direct) {
        if (direct) {
            direct(block);
        } else {
            slices(block);
        }
        for (int i = 0; type.hasScales() && i < block.panels; i++) {
            kernels.get(Kernel.SCALE_COLUMNS).call(sums(block, i), ofPanel(scales, block.firstPanel + i), block.rows);
        }
        for (int i = 0; biases.byteSize() > 0 && i < block.panels; i++) {
            kernels.get(Kernel.ADD_TO_COLUMNS).call(sums(block, i), ofPanel(biases, block.firstPanel + i), block.rows);
        }
    }

    /** Rows up to which weights are used as they are. */
    private int directRows() {
        if (type == WeightType.MXFP4_PAIRS) {
            return 0;
        }
        if (kernels.onTiles(type)) {
            return TileCode.MOST_ROWS;
        }
        int groups = 2 * panelBytes <= KEPT_BYTES ? DIRECT_GROUPS : DIRECT_GROUPS_OF_LONG;
        return groups * kernels.productRows();
    }

    /** Blocks of vectors are equally long, so that threads have equal work. Their last groups of rows share the remainder. */
    private int blockRows(int count) {
        int group = kernels.onTiles(type) ? TileCode.MOST_ROWS : 1;
        int blocks = Math.ceilDiv(count, Scratch.blockRows(kernels, type.inPairs()));
        return blocks <= 1 ? count : Math.ceilDiv(Math.ceilDiv(count, blocks), group) * group;
    }

    private long weights(int panel, int input) {
        return panels.address() + panel * panelBytes + type.bytes(input, kernels.panelWidth());
    }

    /** Address of the sums of a block's panel. */
    private long sums(Block block, int index) {
        return scratch.tiles.get(block.member).address() + (block.firstTile + index) * Scratch.tileBytes(kernels);
    }

    /** Weights are read from memory once, as they are. */
    private void direct(Block block) {
        if (block.panels > 1 && block.panels == kernels.panelsBeside(type, block.rows)) {
            // More rows than a tile has find the panels in the second cache.
            int most = kernels.onTiles(type) ? TileCode.ROWS : block.rows;
            for (int row = 0; row < block.rows; row += most) {
                kernels.productBeside(
                        type,
                        block.from + row * block.rowStride,
                        block.rowStride,
                        weights(block.firstPanel, 0),
                        elements(inputs),
                        sums(block, 0) + (long) row * kernels.panelWidth() * Float.BYTES,
                        Math.min(most, block.rows - row));
            }
            return;
        }
        for (int i = 0; i < block.panels; i++) {
            long weights = weights(block.firstPanel + i, 0);
            if (kernels.onTiles(type) && type.hasScales()) {
                long expanded = scratch.expanded.get(block.member).address();
                kernels.get(Kernel.FEW_EXPANDING_BY_TILES)
                        .call(
                                block.from,
                                block.rowStride,
                                weights,
                                elements(inputs),
                                sums(block, i),
                                block.rows,
                                expanded);
            } else if (kernels.onTiles(type)) {
                long ahead = weights + TileCode.AHEAD_BYTES;
                kernels.get(Kernel.FEW_BY_TILES)
                        .call(
                                block.from,
                                block.rowStride,
                                weights,
                                elements(inputs),
                                sums(block, i),
                                block.rows,
                                ahead);
            } else {
                direct(block, weights, sums(block, i));
            }
        }
    }

    private void direct(Block block, long weights, long tile) {
        // Rows in several parts find the weights in the second cache.
        long ahead = weights + (block.rows > kernels.productRows() ? panelBytes : ProductCode.AHEAD_BYTES);
        int most = Math.max(2 * kernels.productRows(), MOST_PRODUCTS / inputs);
        int calls = Math.ceilDiv(block.rows, most);
        for (int call = 0; call < calls; call++) {
            int first = block.rows * call / calls;
            int some = block.rows * (call + 1) / calls - first;
            kernels.get(Kernel.PRODUCT, type)
                    .call(
                            block.from + first * block.rowStride,
                            block.rowStride,
                            weights,
                            elements(inputs),
                            tile + (long) first * kernels.panelWidth() * Float.BYTES,
                            some,
                            ahead);
        }
    }

    /** Multiplies slice by slice of the inputs: a slice's weights stay in the first cache for all rows. */
    private void slices(Block block) {
        WeightType used = type.inPairs() ? WeightType.BF16_PAIRS : WeightType.FP32;
        long stride = block.rowStride;
        int slice = sliceInputs();
        for (int input = 0; input < inputs; input += slice) {
            int some = elements(Math.min(slice, inputs - input));
            long from = block.from + (long) input * rowType.bytes();
            for (int i = 0; i < block.panels; i++) {
                long weights = weights(block.firstPanel + i, input);
                long ahead = i + 1 < block.panels
                        ? weights(block.firstPanel + i + 1, input)
                        : weights(block.firstPanel, input + slice);
                if (type != used) {
                    long place = scratch.expanded.get(block.member).address();
                    kernels.get(Kernel.EXPAND, type).call(weights, place, some);
                    weights = place;
                }
                long sums = sums(block, i);
                if (kernels.onTiles(type)) {
                    kernels.manyByTiles(input > 0, block.rows)
                            .call(from, stride, weights, some, sums, block.rows, ahead);
                } else if (input == 0) {
                    kernels.get(Kernel.PRODUCT, used).call(from, stride, weights, some, sums, block.rows, ahead);
                } else {
                    kernels.get(Kernel.ADDED_PRODUCT, used).call(from, stride, weights, some, sums, block.rows, ahead);
                }
            }
        }
    }

    /** Slices are equally long: short ones spend much of their time on loading and storing sums. */
    private int sliceInputs() {
        int slices = Math.ceilDiv(inputs, EXPANDED_INPUTS);
        return Math.ceilDiv(Math.ceilDiv(inputs, slices), PAIRED_INPUTS) * PAIRED_INPUTS;
    }

    /** A row's elements, as the product's code counts them. */
    private int elements(int inputs) {
        return type.inPairs() ? inputs / 2 : inputs;
    }

    /** Address of a panel's numbers, one for each output. */
    private long ofPanel(MemorySegment numbers, int panel) {
        return numbers.address() + (long) panel * kernels.panelWidth() * Float.BYTES;
    }

    private void finish(Finish finish, Block block, Rows out, int row) {
        int width = kernels.panelWidth();
        int whole = Math.min(block.panels, outputs / width - block.firstPanel);
        if (whole > 0) {
            long to = out.address(row)
                    + (long) block.firstPanel * width * out.type().bytes();
            long tileStride = Scratch.tileBytes(kernels);
            kernels.get(Kernel.FINISH, finish).call(sums(block, 0), to, out.stride(), block.rows, tileStride, whole);
        }
        if (whole < block.panels) {
            finishLast(finish, block, out, row);
        }
    }

    /** The last panel is padded: its trailing columns belong to no output. */
    private void finishLast(Finish finish, Block block, Rows out, int firstRow) {
        int width = kernels.panelWidth();
        int last = outputs / width;
        int elementBytes = out.type().bytes();
        long start = firstRow * out.stride() + (long) last * width * elementBytes;
        long bytes = (long) (outputs - last * width) * elementBytes;
        long stride = (long) width * elementBytes;
        MemorySegment copy = scratch.tiles.get(block.member).asSlice(TOGETHER * Scratch.tileBytes(kernels));
        for (int row = 0; row < block.rows && finish == Finish.ADD; row++) {
            MemorySegment.copy(out.memory(), start + row * out.stride(), copy, row * stride, bytes);
        }
        kernels.get(Kernel.FINISH, finish)
                .call(sums(block, last - block.firstPanel), copy.address(), stride, block.rows, 0, 1);
        for (int row = 0; row < block.rows; row++) {
            MemorySegment.copy(copy, row * stride, out.memory(), start + row * out.stride(), bytes);
        }
    }
}
