package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;
import static baton.memory.Assembler.Reg.RSP;

import baton.kv.DType;
import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;

/** Norms, rotations, conversions, and the stores of a product's tile. Counts are of elements, strides in bytes. */
final class RowCode {
    private static final int BF16_BITS = 16;

    /** The operation on a tile's elements on their way to the output. */
    enum Finish {
        STORE,
        /** Added to the row. */
        ADD,
        /** Multiplied with the activation of the gate's element. */
        SILU,
        GELU_TANH,
        CLAMPED_SWIGLU,
        /** The same, to bf16; with AVX512_BF16. */
        NARROW_SILU,
        NARROW_GELU_TANH,
        NARROW_CLAMPED_SWIGLU;

        static Finish gated(Activation activation, boolean narrow) {
            return switch (activation) {
                case SILU -> narrow ? NARROW_SILU : SILU;
                case GELU_TANH -> narrow ? NARROW_GELU_TANH : GELU_TANH;
                case CLAMPED_SWIGLU -> narrow ? NARROW_CLAMPED_SWIGLU : CLAMPED_SWIGLU;
            };
        }

        boolean narrows() {
            return this == NARROW_SILU || this == NARROW_GELU_TANH || this == NARROW_CLAMPED_SWIGLU;
        }

        private boolean isGated() {
            return this != STORE && this != ADD;
        }
    }

    private final Assembler code;
    private final int vector;

    private RowCode(Width width) {
        code = new Assembler(width);
        vector = width.bytes();
    }

    /** {@code (from, to, count)}: elements of a type to fp32, a multiple of the lanes. */
    static byte[] widen(Width width, DType type) {
        RowCode row = new RowCode(width);
        ElementCode elements = new ElementCode(row.code, type, RAX, 1);
        row.vectors(RDX, () -> {
            elements.load(0, at(RDI, 0));
            row.code.store(at(RSI, 0), 0);
            row.code.add(RDI, width.lanes() * type.bytes());
            row.code.add(RSI, row.vector);
        });
        return row.end();
    }

    /**
     * {@code (panel, to, k count)}: a panel of weights as fp32, or pairs as those of bf16, of each k two vectors; those of 8 bits without their
     * scales.
     */
    static byte[] expand(Width width, WeightType type) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        switch (type) {
            case FP32, BF16_PAIRS -> throw new IllegalArgumentException("panels of " + type + " are used as they are");
            case BF16 -> {
                code.move(RAX, Constants.address(Constants.UPPER_HALF));
                code.load(2, at(RAX, 0));
            }
            case FP16, INT8, INT8_PAIRS -> {}
            case MXFP4_PAIRS -> {
                return expandMxfp4();
            }
        }
        Label loop = code.label();
        code.bind(loop);
        code.prefetch(at(RDI, ProductCode.AHEAD_BYTES));
        if (type == WeightType.BF16) {
            code.load(0, at(RDI, 0));
            code.op(Binary.AND_BITS, 1, 0, 2);
            code.shiftLeft(0, 0, BF16_BITS);
            code.add(RDI, row.vector);
        } else if (type == WeightType.FP16) {
            code.op(Unary.HALVES_TO_FLOATS, 0, at(RDI, 0));
            code.op(Unary.HALVES_TO_FLOATS, 1, at(RDI, row.vector / 2));
            code.add(RDI, row.vector);
        } else if (type == WeightType.INT8_PAIRS) {
            for (int i = 0; i < ProductCode.VECTORS; i++) {
                ProductCode.pairs(code, i, 2, RDI, i * row.vector / 2);
            }
            code.add(RDI, ProductCode.VECTORS * row.vector / 2);
        } else {
            for (int i = 0; i < ProductCode.VECTORS; i++) {
                code.op(Unary.BYTES_TO_INTS, i, at(RDI, i * width.lanes()));
                code.op(Unary.TO_FLOATS, i, i);
            }
            code.add(RDI, ProductCode.VECTORS * width.lanes());
        }
        code.store(at(RSI, 0), 0);
        code.store(at(RSI, row.vector), 1);
        code.add(RSI, ProductCode.VECTORS * row.vector);
        code.subtract(RDX, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        return row.end();
    }

    /** The code of {@link #expand} for whole blocks of {@link Mxfp4Panels}. */
    private static byte[] expandMxfp4() {
        RowCode row = new RowCode(Width.ZMM);
        Assembler code = row.code;
        int pairs = Mxfp4Panels.INPUTS / 2;
        int magnitudes = 4;
        int notZero = 5;
        int added = 6;
        code.move(RAX, Constants.address(Constants.E2M1));
        code.load(magnitudes, at(RAX, 0));
        code.load(notZero, at(RAX, Constants.distance(Constants.E2M1, Constants.E2M1_NOT_ZERO)));
        Label loop = code.label();
        code.bind(loop);
        for (int vector = 0; vector < ProductCode.VECTORS; vector++) {
            code.load(added, at(RDI, vector * row.vector));
            for (int pair = 0; pair < pairs; pair++) {
                int part = pair % Mxfp4Panels.PAIRS_OF_VECTOR;
                int index = (vector * pairs + pair) / Mxfp4Panels.PAIRS_OF_VECTOR;
                if (part == 0) {
                    code.prefetch(at(RDI, Mxfp4Panels.NUMBERS + index * row.vector + ProductCode.AHEAD_BYTES));
                    code.load(0, at(RDI, Mxfp4Panels.NUMBERS + index * row.vector));
                } else {
                    code.shiftShortsRight(0, 0, 4);
                }
                code.permuteShorts(1, 0, magnitudes);
                code.permuteShorts(2, 0, notZero);
                code.op(Binary.AND_BITS, 2, 2, added);
                code.op(Binary.ADD_SHORTS, 1, 1, 2);
                code.store(at(RSI, (pair * ProductCode.VECTORS + vector) * row.vector), 1);
            }
        }
        code.add(RDI, Mxfp4Panels.BYTES);
        code.add(RSI, pairs * ProductCode.VECTORS * row.vector);
        code.subtract(RDX, pairs);
        code.jump(Condition.NOT_EQUAL, loop);
        return row.end();
    }

    /** Elements that {@link #narrow} takes at once. */
    static int narrowed(Width width) {
        return width == Width.XMM ? 8 : 16;
    }

    /** {@code (from, from stride, to, to stride, rows, count)}: fp32 to bf16, to nearest even; a multiple of {@link #narrowed}. */
    static byte[] narrow(Width width) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        code.move(RAX, Constants.address(Constants.LOWEST_BIT));
        code.load(4, at(RAX, 0));
        code.load(5, at(RAX, Constants.distance(Constants.LOWEST_BIT, Constants.HALF_OF_BF16)));
        row.narrowed(DType.BF16, narrowed(width), () -> {
            for (int i = 0; i < narrowed(width) / width.lanes(); i++) {
                code.load(i, at(RAX, i * row.vector));
                // Half of the last place, less one if it is even, carries where rounding goes up.
                code.shiftRight(2, i, BF16_BITS);
                code.op(Binary.AND_BITS, 2, 2, 4);
                code.op(Binary.ADD_INTS, i, i, 5);
                code.op(Binary.ADD_INTS, i, i, 2);
                code.shiftRight(i, i, BF16_BITS);
            }
            switch (width) {
                case ZMM -> code.storeShorts(at(R10, 0), 0);
                case YMM -> {
                    code.op(Binary.PACK_SHORTS, 0, 0, 1);
                    code.swapInnerQuarters(0, 0);
                    code.store(at(R10, 0), 0);
                }
                case XMM -> {
                    code.op(Binary.PACK_SHORTS, 0, 0, 1);
                    code.store(at(R10, 0), 0);
                }
            }
        });
        return row.end();
    }

    /** {@code (from, from stride, to, to stride, rows, count)}: fp32 to fp16, to nearest even; a multiple of the lanes. */
    static byte[] halve(Width width) {
        RowCode row = new RowCode(width);
        row.narrowed(DType.F16, width.lanes(), () -> {
            row.code.load(0, at(RAX, 0));
            row.code.storeHalves(at(R10, 0), 0);
        });
        return row.end();
    }

    /** {@code (from, from stride, to, to stride, rows, count)}: fp32 to e4m3, a multiple of {@link ElementCode#ENCODED}. */
    static byte[] encode(Width width) {
        RowCode row = new RowCode(width);
        row.code.push(Reg.RBX);
        ElementCode elements = new ElementCode(row.code, DType.F8_E4M3, Reg.RBX, 5);
        elements.beginEncoding();
        row.narrowed(DType.F8_E4M3, ElementCode.ENCODED, () -> elements.encode(at(RAX, 0), at(R10, 0)));
        row.code.pop(Reg.RBX);
        return row.end();
    }

    /** The code of {@link #narrow} by AVX512_BF16's own instruction; for a multiple of two vectors. */
    static byte[] narrowPairs() {
        RowCode row = new RowCode(Width.ZMM);
        Assembler code = row.code;
        row.narrowed(DType.BF16, 2 * code.width().lanes(), () -> {
            code.load(0, at(RAX, row.vector));
            code.op(Binary.NARROW_PAIR, 0, 0, at(RAX, 0));
            code.store(at(R10, 0), 0);
        });
        return row.end();
    }

    /** Runs the body for each row and as many elements of it, fp32 at RAX, those of the type at R10. */
    private void narrowed(DType type, int elements, Runnable body) {
        Label rows = code.label();
        code.bind(rows);
        code.move(RAX, RDI);
        code.move(R10, RDX);
        code.move(R11, R9);
        Label loop = code.label();
        code.bind(loop);
        body.run();
        code.add(RAX, elements * Float.BYTES);
        code.add(R10, elements * type.bytes());
        code.subtract(R11, elements);
        code.jump(Condition.NOT_EQUAL, loop);
        code.add(RDI, RSI);
        code.add(RDX, RCX);
        code.subtract(R8, 1);
        code.jump(Condition.NOT_EQUAL, rows);
    }

    /**
     * {@code (from, to, weights, count, numbers)}: {@code x / sqrt(mean(x * x) + eps) * weight}, of a multiple of the lanes. The numbers are
     * 1 / count and eps.
     */
    static byte[] norm(Width width) {
        RowCode row = new RowCode(width);
        row.rootMeanSquare();
        row.vectors(RCX, () -> {
            row.normed(1, 0);
            row.code.store(at(RSI, 0), 1);
            row.code.add(RDI, row.vector);
            row.code.add(RSI, row.vector);
            row.code.add(RDX, row.vector);
        });
        return row.end();
    }

    /** The code of {@link #norm} to bf16 with AVX512_BF16; for a multiple of two vectors. */
    static byte[] normNarrow() {
        RowCode row = new RowCode(Width.ZMM);
        Assembler code = row.code;
        row.rootMeanSquare();
        Label loop = code.label();
        code.bind(loop);
        row.normed(1, 0);
        row.normed(2, row.vector);
        code.op(Binary.NARROW_PAIR, 1, 2, 1);
        code.store(at(RSI, 0), 1);
        code.add(RDI, 2 * row.vector);
        code.add(RSI, row.vector);
        code.add(RDX, 2 * row.vector);
        code.subtract(RCX, 2 * code.width().lanes());
        code.jump(Condition.NOT_EQUAL, loop);
        return row.end();
    }

    /** Register 0 becomes the reciprocal of a norm's divisor, in each lane. */
    private void rootMeanSquare() {
        code.clear(0);
        code.move(RAX, RDI);
        code.move(R10, RCX);
        vectors(R10, () -> {
            code.load(1, at(RAX, 0));
            code.op(Binary.FMA, 0, 1, 1);
            code.add(RAX, vector);
        });
        code.sumLanes(0, 1);
        code.firstLane(Binary.MUL, 0, 0, at(R8, 0));
        code.firstLane(Binary.ADD, 0, 0, at(R8, Float.BYTES));
        code.firstLane(Unary.SQRT, 0, 0);
        code.move(RAX, Constants.address(Constants.ONE));
        code.load(1, at(RAX, 0));
        code.firstLane(Binary.DIV, 1, 1, 0);
        code.op(Unary.BROADCAST, 0, 1);
    }

    private void normed(int register, int offset) {
        code.op(Binary.MUL, register, 0, at(RDI, offset));
        code.op(Binary.MUL, register, register, at(RDX, offset));
    }

    /**
     * {@code (from, from stride, to, to stride, heads, table, half)}: turns the pairs of each head, element i with element i + half,
     * by angles: the table has their cosines, then their sines. Half is a multiple of the lanes; {@code to} may be {@code from}.
     */
    static byte[] rotate(Width width) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        Label heads = code.label();
        code.bind(heads);
        code.load(RAX, at(RSP, Long.BYTES));
        code.shiftLeft(RAX, 2);
        code.move(R10, RAX);
        // Downwards from the last vector of the half, by offsets from the head's beginning.
        Label loop = code.label();
        code.bind(loop);
        code.subtract(R10, row.vector);
        code.address(R11, at(R10, RAX, 1, 0));
        code.load(0, at(RDI, R10, 1, 0));
        code.load(1, at(RDI, R11, 1, 0));
        code.load(2, at(R9, R10, 1, 0));
        code.load(3, at(R9, R11, 1, 0));
        code.op(Binary.MUL, 4, 0, 2);
        code.op(Binary.NEGATED_FMA, 4, 1, 3);
        code.op(Binary.MUL, 5, 1, 2);
        code.op(Binary.FMA, 5, 0, 3);
        code.store(at(RDX, R10, 1, 0), 4);
        code.store(at(RDX, R11, 1, 0), 5);
        code.compare(R10, 0);
        code.jump(Condition.NOT_EQUAL, loop);
        code.add(RDI, RSI);
        code.add(RDX, RCX);
        code.subtract(R8, 1);
        code.jump(Condition.NOT_EQUAL, heads);
        return row.end();
    }

    /**
     * {@code (tiles, out, out stride, rows, tile stride, tiles count)}: tiles of a panel's width, side by side, to a matrix. Row by row, so that
     * neighbouring lines are written together.
     *
     * @param gate bytes from a tile to that of the gate
     */
    static byte[] finish(Width width, Finish finish, int gate) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        PowerOfTwo power = new PowerOfTwo(code, R10, 4, 5, 6);
        boolean narrow = finish.narrows();
        if (finish.isGated()) {
            power.begin();
        }
        List<Reg> saved = List.of(Reg.RBX, Reg.RBP, Reg.R12);
        saved.forEach(code::push);
        Reg tile = Reg.RBX;
        Reg out = Reg.RBP;
        Reg tilesLeft = Reg.R12;
        int tileRow = ProductCode.VECTORS * row.vector;
        Label rows = code.label();
        code.bind(rows);
        code.move(tile, RDI);
        code.move(out, RSI);
        code.move(tilesLeft, R9);
        Label tiles = code.label();
        code.bind(tiles);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            int at = i * row.vector;
            code.load(0, at(tile, at));
            switch (finish) {
                case STORE -> {}
                case ADD -> code.op(Binary.ADD, 0, 0, at(out, at));
                case SILU, NARROW_SILU, GELU_TANH, NARROW_GELU_TANH, CLAMPED_SWIGLU, NARROW_CLAMPED_SWIGLU -> {
                    code.load(1, at(tile, gate + at));
                    switch (finish) {
                        case GELU_TANH, NARROW_GELU_TANH -> {
                            code.op(Binary.MUL, 2, 1, 1);
                            code.op(Binary.MUL, 2, 2, power.constant(Constants.GELU_CUBE));
                            code.op(Binary.ADD, 2, 2, power.constant(Constants.GELU_LINE));
                            code.op(Binary.MUL, 2, 2, 1);
                        }
                        case CLAMPED_SWIGLU, NARROW_CLAMPED_SWIGLU -> {
                            // Of two numbers of which one is none, the second is the result.
                            code.load(7, power.constant(Constants.SWIGLU_LIMIT));
                            code.op(Binary.MIN, 1, 7, 1);
                            code.op(Binary.MIN, 0, 7, 0);
                            code.load(7, power.constant(Constants.NEGATIVE_SWIGLU_LIMIT));
                            code.op(Binary.MAX, 0, 7, 0);
                            code.op(Binary.ADD, 0, 0, power.constant(Constants.ONE));
                            code.op(Binary.MUL, 2, 1, power.constant(Constants.SWIGLU_LINE));
                        }
                        default -> code.op(Binary.MUL, 2, 1, power.constant(Constants.NEGATED_LOG2_E));
                    }
                    power.of(2);
                    code.op(Binary.ADD, 2, 2, power.constant(Constants.ONE));
                    code.op(Binary.DIV, 1, 1, 2);
                    code.op(Binary.MUL, narrow && i == 0 ? 3 : 0, 0, 1);
                }
            }
            if (!narrow) {
                code.store(at(out, at), 0);
            }
        }
        if (narrow) {
            code.op(Binary.NARROW_PAIR, 0, 0, 3);
            code.store(at(out, 0), 0);
        }
        code.add(tile, R8);
        code.add(out, narrow ? tileRow / 2 : tileRow);
        code.subtract(tilesLeft, 1);
        code.jump(Condition.NOT_EQUAL, tiles);
        code.add(RDI, tileRow);
        code.add(RSI, RDX);
        code.subtract(RCX, 1);
        code.jump(Condition.NOT_EQUAL, rows);
        saved.reversed().forEach(code::pop);
        return row.end();
    }

    /**
     * {@code (from, vectors, chunks, to)}: the largest number of each chunk of so many vectors, in all lanes of a vector for each; NaN counts as
     * negative infinity.
     */
    static byte[] largest(Width width) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        code.move(RAX, Constants.address(Constants.NEGATIVE_INFINITY));
        Label chunks = code.label();
        code.bind(chunks);
        code.load(0, at(RAX, 0));
        code.move(R10, RSI);
        Label loop = code.label();
        code.bind(loop);
        code.load(1, at(RDI, 0));
        // If one is no number, the second operand is taken.
        code.op(Binary.MAX, 0, 1, 0);
        code.add(RDI, row.vector);
        code.subtract(R10, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        code.largestLane(0, 1);
        code.op(Unary.BROADCAST, 0, 0);
        code.store(at(RCX, 0), 0);
        code.add(RCX, row.vector);
        code.subtract(RDX, 1);
        code.jump(Condition.NOT_EQUAL, chunks);
        return row.end();
    }

    /** {@code (tile, numbers, rows)}: multiplies each column of a tile by its number, or adds that. */
    static byte[] columns(Width width, Binary op) {
        RowCode row = new RowCode(width);
        Assembler code = row.code;
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.load(2 + i, at(RSI, i * row.vector));
        }
        Label loop = code.label();
        code.bind(loop);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.op(op, i, 2 + i, at(RDI, i * row.vector));
            code.store(at(RDI, i * row.vector), i);
        }
        code.add(RDI, ProductCode.VECTORS * row.vector);
        code.subtract(RDX, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        return row.end();
    }

    /** Runs the body once for each vector of {@code count} elements, which it leaves at zero. */
    private void vectors(Reg count, Runnable body) {
        Label loop = code.label();
        code.bind(loop);
        body.run();
        code.subtract(count, code.width().lanes());
        code.jump(Condition.NOT_EQUAL, loop);
    }

    private byte[] end() {
        code.returnFromVectors();
        return code.code();
    }
}
