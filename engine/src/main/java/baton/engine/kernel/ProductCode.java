package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R12;
import static baton.memory.Assembler.Reg.R13;
import static baton.memory.Assembler.Reg.R14;
import static baton.memory.Assembler.Reg.R15;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RBP;
import static baton.memory.Assembler.Reg.RBX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;
import static baton.memory.Assembler.Reg.RSP;

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;
import java.util.stream.IntStream;

/**
 * The product of rows with a panel of weights: {@code tile[r][n] = sum over k of a[r][k] * panel[k][n]}.
 *
 * <p>A panel is two vectors wide. As many rows are taken together as their sums fit into registers, so that each vector of weights is
 * loaded once for all of them and each element of the rows once for both vectors. The products of a sum are added in the order of k, one
 * after the other, also where k comes in parts and the tile keeps their sums: so a row's result does not depend on the rows beside it.
 *
 * <p>Function: {@code (a, row stride, panel, k count, tile, rows, ahead)}, of elements of fp32. Strides are in bytes; that of k is part of the
 * code, where several k are taken in a row, so that few instructions are spent on addresses. For {@link WeightType#inPairs} an
 * element is two inputs in bf16, and so is a lane of the weights.
 *
 * <p>Memory at {@code ahead} is fetched into the second cache. A group of rows, or two, fetch as many bytes as the panel has. Each further
 * group fetches a line for some of the k; groups of narrow vectors are so many that they fetch none. Rows that add to sums have other
 * groups before them.
 *
 * <p>A sum takes one product in the time that an addition lasts, some cycles. A few rows have so few sums that the processor would wait for
 * them, and not for the weights: they are multiplied with several panels side by side.
 */
final class ProductCode {
    /** Vectors of a panel's width. */
    static final int VECTORS = 2;

    /** Rows that are addressed by one pointer: an index can be scaled by 1 and by 2. */
    private static final int ROWS_OF_POINTER = 3;

    private static final int BF16_BITS = 16;
    private static final int CACHE_LINE = 64;

    private static final Reg A = RDI;
    private static final Reg ROW_STRIDE = RSI;
    private static final Reg PANEL = RDX;
    private static final Reg K_COUNT = RCX;
    private static final Reg TILE = R8;
    private static final Reg ROWS_LEFT = R9;
    private static final List<Reg> POINTERS = List.of(RAX, R10, R11, RBX, RBP);
    /**
     * Pointers into panels that are multiplied side by side: up to four with three rows. The pointers of three rows leave RBX and RBP free.
     */
    private static final List<Reg> WEIGHTS = List.of(R12, R14, R15, RBX);

    private static final Reg PANEL_BYTES = RBP;
    private static final Reg K_LEFT = R13;
    /** Rows that are taken next: the register is {@link #K_LEFT} as soon as that is known. */
    private static final Reg PART = K_LEFT;
    /** Address of the bytes that are fetched ahead, where there is one panel. */
    private static final Reg AHEAD = R14;

    private static final List<Reg> SAVED = List.of(RBX, RBP, R12, R13, R14, R15);

    /** Values of k that are taken in a row. */
    private static final int UNROLLED = 4;

    /** Prefetch distance of weights in bytes; the processor's own prefetching does not reach far enough. */
    static final int AHEAD_BYTES = 4096;

    /** The prefetches beside the products of some k. */
    private enum Fetch {
        /** Fetches as many lines from {@link #AHEAD} on as the weights take. */
        AS_READ,
        /** Half of them. */
        HALF,
        /** One line of them, for {@link #UNROLLED} of k. */
        LINE,
        /** Lines of each panel that is multiplied. */
        OF_PANELS,
        NOTHING;

        /** The fetching for a single k. */
        Fetch ofSingle() {
            return switch (this) {
                case AS_READ, OF_PANELS -> this;
                case HALF, LINE, NOTHING -> NOTHING;
            };
        }
    }

    private final Assembler code;
    private final WeightType type;
    private final int kStride;
    private final boolean adds;
    private final boolean fetches;
    private final int panels;
    private final Binary multiplication;
    private final int weights;
    private final int element;
    private final int upperHalf;

    private ProductCode(Width width, WeightType type, int kStride, boolean adds, boolean fetches, int panels) {
        this.code = new Assembler(width);
        this.type = type;
        this.kStride = kStride;
        this.adds = adds;
        this.fetches = fetches;
        this.panels = panels;
        this.multiplication = type.inPairs() ? Binary.DOT_BF16 : Binary.FMA;
        this.weights = VECTORS * mostRows(width);
        this.element = weights + VECTORS;
        this.upperHalf = element + 1;
    }

    /** Rows that are multiplied together. */
    static int mostRows(Width width) {
        // The other registers have two vectors of weights, an element of a row in each lane, and a mask.
        return (width.registers() - VECTORS - 2) / VECTORS;
    }

    /**
     * @param kStride bytes from an element of a row to the next one
     * @param adds whether sums go on from those in the tile
     */
    static byte[] of(Width width, WeightType type, int kStride, boolean adds) {
        return new ProductCode(width, type, kStride, adds, true, 1).function();
    }

    /** The code for few k, where fetching would take longer than the products. The bytes ahead are not fetched. */
    static byte[] withoutFetching(Width width, WeightType type) {
        return new ProductCode(width, type, Float.BYTES, false, false, 1).function();
    }

    /** Panels that so many rows are multiplied with side by side: as many as there are registers for their sums, and pointers. */
    static int panelsBeside(Width width, int rows) {
        return Math.clamp(mostRows(width) / rows, 1, WEIGHTS.size());
    }

    /**
     * The product of exactly {@code rows} rows with {@link #panelsBeside} panels that follow each other: {@code (a, row stride, first panel,
     * k count, first tile)}. They have more sums to work at, and the processor fetches several panels side by side, more at once than of a single one.
     *
     * @param rows of which more than one panel is taken
     * @param tileStride bytes from a panel's tile to the next panel's
     */
    static byte[] beside(Width width, WeightType type, int rows, int tileStride) {
        ProductCode product = new ProductCode(width, type, Float.BYTES, false, true, panelsBeside(width, rows));
        product.begin();
        product.rows(rows, tileStride, Fetch.OF_PANELS);
        return product.end();
    }

    private byte[] function() {
        begin();
        int most = mostRows(code.width());
        Label twoParts = code.label();
        Label one = code.label();
        Label end = code.label();
        code.load(AHEAD, at(RSP, (SAVED.size() + 1) * Long.BYTES));
        code.compare(ROWS_LEFT, most);
        code.jump(Condition.NOT_GREATER, one);
        Label many = code.label();
        code.bind(many);
        code.compare(ROWS_LEFT, 2 * most);
        code.jump(Condition.NOT_GREATER, twoParts);
        rows(most, 0, fetches && code.width() == Width.ZMM ? Fetch.LINE : Fetch.NOTHING);
        nextRows(most);
        code.jump(many);
        code.bind(twoParts);
        twoParts(most, end);
        code.bind(one);
        for (int rows = most; rows > 0; rows--) {
            Label other = code.label();
            code.compare(ROWS_LEFT, rows);
            code.jump(Condition.NOT_EQUAL, other);
            rows(rows, 0, fetches && !adds ? Fetch.AS_READ : Fetch.NOTHING);
            code.jump(end);
            code.bind(other);
        }
        code.bind(end);
        return end();
    }

    /** The last rows, more than {@code most}: both halves of them. */
    private void twoParts(int most, Label end) {
        Label part = code.label();
        code.address(PART, at(ROWS_LEFT, 1));
        code.shiftRight(PART, 1);
        code.bind(part);
        for (int rows = most; rows >= (most + 1) / 2; rows--) {
            Label other = code.label();
            code.compare(PART, rows);
            code.jump(Condition.NOT_EQUAL, other);
            rows(rows, 0, fetches && !adds ? Fetch.HALF : Fetch.NOTHING);
            nextRows(rows);
            code.move(PART, ROWS_LEFT);
            code.compare(PART, 0);
            code.jump(Condition.NOT_EQUAL, part);
            code.jump(end);
            code.bind(other);
        }
    }

    private void nextRows(int rows) {
        for (int i = 0; i < rows; i++) {
            code.add(A, ROW_STRIDE);
        }
        code.add(TILE, rows * VECTORS * code.width().bytes());
        code.subtract(ROWS_LEFT, rows);
    }

    private void begin() {
        SAVED.forEach(code::push);
        if (type == WeightType.BF16) {
            code.move(RAX, Constants.address(Constants.UPPER_HALF));
            code.load(upperHalf, at(RAX, 0));
        }
    }

    private byte[] end() {
        SAVED.reversed().forEach(code::pop);
        code.returnFromVectors();
        return code.code();
    }

    private void rows(int rows, int tileStride, Fetch fetch) {
        int pointers = Math.ceilDiv(rows, ROWS_OF_POINTER);
        code.move(POINTERS.getFirst(), A);
        for (int i = 1; i < pointers; i++) {
            code.address(POINTERS.get(i), at(POINTERS.get(i - 1), ROW_STRIDE, 1, 0));
            code.address(POINTERS.get(i), at(POINTERS.get(i), ROW_STRIDE, 2, 0));
        }
        code.move(WEIGHTS.getFirst(), PANEL);
        if (panels > 1) {
            code.move(PANEL_BYTES, K_COUNT);
            code.shiftLeft(PANEL_BYTES, Integer.numberOfTrailingZeros(kBytes()));
        }
        for (int i = 1; i < panels; i++) {
            code.address(WEIGHTS.get(i), at(WEIGHTS.get(i - 1), PANEL_BYTES, 1, 0));
        }
        for (int i = 0; i < panels * rows * VECTORS; i++) {
            if (adds) {
                code.load(i, at(TILE, i * code.width().bytes()));
            } else {
                code.clear(i);
            }
        }
        code.move(K_LEFT, K_COUNT);
        Label some = code.label();
        Label end = code.label();
        Label loop = code.label();
        code.bind(loop);
        code.subtract(K_LEFT, UNROLLED);
        code.jump(Condition.LESS, some);
        steps(rows, pointers, UNROLLED, fetch);
        code.jump(loop);
        code.bind(some);
        code.add(K_LEFT, UNROLLED);
        Label single = code.label();
        code.bind(single);
        code.subtract(K_LEFT, 1);
        code.jump(Condition.LESS, end);
        steps(rows, pointers, 1, fetch.ofSingle());
        code.jump(single);
        code.bind(end);
        for (int panel = 0; panel < panels; panel++) {
            for (int i = 0; i < rows * VECTORS; i++) {
                code.store(at(TILE, panel * tileStride + i * code.width().bytes()), panel * rows * VECTORS + i);
            }
        }
    }

    /** Emits the products of that many k for all rows. */
    private void steps(int rows, int pointers, int count, Fetch fetch) {
        for (int k = 0; k < count; k++) {
            for (int panel = 0; panel < panels; panel++) {
                step(k, panel, rows);
                fetch(fetch, k, panel);
            }
        }
        for (int i = 0; i < pointers; i++) {
            code.add(POINTERS.get(i), count * kStride);
        }
        for (int i = 0; i < panels; i++) {
            code.add(WEIGHTS.get(i), count * kBytes());
        }
        switch (fetch) {
            case AS_READ -> code.add(AHEAD, count * kBytes());
            case HALF -> code.add(AHEAD, count * kBytes() / 2);
            case LINE -> code.add(AHEAD, CACHE_LINE);
            case OF_PANELS, NOTHING -> {}
        }
    }

    /** Fetches for one k. */
    private void fetch(Fetch fetch, int k, int panel) {
        switch (fetch) {
            case AS_READ -> linesOf(k).forEach(line -> code.prefetchToSecondCache(at(AHEAD, line)));
            case HALF -> {
                if (k % 2 == 0) {
                    linesOf(k / 2).forEach(line -> code.prefetchToSecondCache(at(AHEAD, line)));
                }
            }
            case LINE -> {
                if (k == 0) {
                    code.prefetchToSecondCache(at(AHEAD, 0));
                }
            }
            case OF_PANELS -> {
                Reg weights = WEIGHTS.get(panel);
                linesOf(k).forEach(line -> code.prefetch(at(weights, line + AHEAD_BYTES / panels)));
            }
            case NOTHING -> {}
        }
    }

    /** Offsets of the lines that begin in a panel's weights for one k, of those that are taken in a row. */
    private IntStream linesOf(int k) {
        return IntStream.iterate(0, line -> line + CACHE_LINE)
                .dropWhile(line -> line < k * kBytes())
                .takeWhile(line -> line < (k + 1) * kBytes());
    }

    private void step(int k, int panel, int rows) {
        loadWeights(WEIGHTS.get(panel), k * kBytes());
        for (int row = 0; row < rows; row++) {
            Reg pointer = POINTERS.get(row / ROWS_OF_POINTER);
            int index = row % ROWS_OF_POINTER;
            int offset = k * kStride;
            code.op(
                    Unary.BROADCAST,
                    element,
                    index == 0 ? at(pointer, offset) : at(pointer, ROW_STRIDE, index, offset));
            for (int vector = 0; vector < VECTORS; vector++) {
                int sum = (panel * rows + row) * VECTORS + vector;
                code.op(multiplication, sum, element, weights + vector);
            }
        }
    }

    /** The bytes of a panel's weights for one k. */
    private int kBytes() {
        return VECTORS * code.width().lanes() * laneBytes();
    }

    private int laneBytes() {
        return type.inPairs() ? 2 * type.bytes() : type.bytes();
    }

    private void loadWeights(Reg from, int offset) {
        int vector = code.width().bytes();
        switch (type) {
            case FP32, BF16_PAIRS -> {
                code.load(weights, at(from, offset));
                code.load(weights + 1, at(from, offset + vector));
            }
            case BF16 -> {
                code.load(weights, at(from, offset));
                code.op(Binary.AND_BITS, weights + 1, weights, upperHalf);
                code.shiftLeft(weights, weights, BF16_BITS);
            }
            case FP16 -> {
                code.op(Unary.HALVES_TO_FLOATS, weights, at(from, offset));
                code.op(Unary.HALVES_TO_FLOATS, weights + 1, at(from, offset + vector / 2));
            }
            case INT8_PAIRS -> {
                // The register of the mask, which other types have, is the second half's.
                for (int i = 0; i < VECTORS; i++) {
                    pairs(
                            code,
                            weights + i,
                            upperHalf,
                            from,
                            offset + i * code.width().bytes() / 2);
                }
            }
            case INT8 -> {
                for (int i = 0; i < VECTORS; i++) {
                    code.op(
                            Unary.BYTES_TO_INTS,
                            weights + i,
                            at(from, offset + i * code.width().lanes()));
                    code.op(Unary.TO_FLOATS, weights + i, weights + i);
                }
            }
            case MXFP4_PAIRS ->
                throw new IllegalStateException("weights in MXFP4 are expanded before they are multiplied");
        }
    }

    /** Two times as many 8-bit integers as a vector has lanes become as many numbers of bf16. */
    static void pairs(Assembler code, int to, int spare, Reg from, int offset) {
        code.op(Unary.BYTES_TO_INTS, to, at(from, offset));
        code.op(Unary.BYTES_TO_INTS, spare, at(from, offset + code.width().lanes()));
        code.op(Unary.TO_FLOATS, to, to);
        code.op(Unary.TO_FLOATS, spare, spare);
        code.op(Binary.NARROW_PAIR, to, spare, to);
    }
}
