package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;

import baton.kv.DType;
import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;
import java.util.stream.IntStream;

/** Conversion between fp32 in registers and elements of a type in memory: the only place where a type of keys and values has code of its own. */
final class ElementCode {
    private static final int BF16_BITS = 16;

    /** Bits of fp32's fraction behind those of e4m3. */
    private static final int E4M3_SHIFT = 20;

    /** Elements that {@link #encode} takes at once. */
    static final int ENCODED = 16;

    private static final List<Integer> ENCODING = List.of(
            Constants.MAGNITUDE,
            Constants.E4M3_LARGEST,
            Constants.E4M3_NORMAL,
            Constants.E4M3_SMALL,
            Constants.LOWEST_BIT,
            Constants.HALF_OF_E4M3,
            Constants.E4M3_BIAS,
            Constants.E4M3_NAN,
            Constants.E4M3_SIGN);

    private final Assembler code;
    private final DType type;
    private final Reg constants;
    private final int spare;

    /**
     * Emits the code that comes before the others.
     *
     * @param constants a register that keeps their address
     * @param spare a vector register that is lost; of {@link #encode} it and those behind it are kept
     */
    ElementCode(Assembler code, DType type, Reg constants, int spare) {
        this.code = code;
        this.type = type;
        this.constants = constants;
        this.spare = spare;
        if (type == DType.F8_E4M3) {
            code.move(constants, Constants.address(0));
        }
    }

    /** Loads as many elements as a vector has lanes into a register, which is below 16. */
    void load(int to, Mem from) {
        switch (type) {
            case F32 -> code.load(to, from);
            case BF16 -> {
                code.op(Unary.SHORTS_TO_INTS, to, from);
                code.shiftLeft(to, to, BF16_BITS);
            }
            case F16 -> code.op(Unary.HALVES_TO_FLOATS, to, from);
            case F8_E4M3 -> {
                // As fp16 it has an exponent that is 8 too small. NaN has become a number, which becomes NaN again.
                code.bytesToShorts(to, from, 7);
                code.op(Binary.AND_BITS, to, to, constant(Constants.E4M3_IN_F16));
                code.op(Unary.HALVES_TO_FLOATS, to, to);
                code.op(Binary.MUL, spare, to, constant(Constants.E4M3_OVERFLOW));
                code.op(Binary.MUL, to, to, constant(Constants.E4M3_OF_F16));
                code.op(Binary.FMA, to, spare, constant(Constants.ZERO));
            }
        }
    }

    private Mem constant(int constant) {
        return at(constants, Constants.distance(0, constant));
    }

    /** Loads the constants of {@link #encode} into {@code spare} and the registers behind it. */
    void beginEncoding() {
        IntStream.range(0, ENCODING.size()).forEach(i -> code.load(spare + i, constant(ENCODING.get(i))));
    }

    private int held(int constant) {
        return spare + ENCODING.indexOf(constant);
    }

    /** Stores {@link #ENCODED} elements of e4m3, to nearest even, at most the largest; registers 0 to 4 are lost. */
    void encode(Mem from, Mem to) {
        int vectors = ENCODED / code.width().lanes();
        for (int i = 0; i < vectors; i++) {
            code.load(i, at(from.base(), from.offset() + i * code.width().bytes()));
            encode(i, 2, 3, 4);
        }
        if (code.width() == Width.ZMM) {
            code.storeBytes(to, 0);
            return;
        }
        code.op(Binary.PACK_SHORTS, 0, 0, 1);
        code.swapInnerQuarters(0, 0);
        code.op(Binary.PACK_BYTES, 0, 0, 0);
        code.swapInnerQuarters(0, 0);
        code.storePart(to, 0);
    }

    /**
     * The sum of two codes, of which one is that of {@link Constants#E4M3_NORMAL}: that of the number if its exponent is its own, and that of
     * one without, which is a multiple of the smallest.
     */
    private void encode(int number, int small, int sign, int even) {
        code.shiftRight(sign, number, 24);
        code.op(Binary.AND_BITS, sign, sign, held(Constants.E4M3_SIGN));
        code.op(Binary.AND_BITS, number, number, held(Constants.MAGNITUDE));
        // If one is no number, the second operand is taken.
        code.op(Binary.MIN, number, held(Constants.E4M3_LARGEST), number);
        code.op(Binary.MIN, small, number, held(Constants.E4M3_NORMAL));
        code.op(Binary.ADD, small, small, held(Constants.E4M3_SMALL));
        code.op(Binary.MAX, number, held(Constants.E4M3_NORMAL), number);
        code.shiftRight(even, number, E4M3_SHIFT);
        code.op(Binary.AND_BITS, even, even, held(Constants.LOWEST_BIT));
        code.op(Binary.ADD_INTS, number, number, held(Constants.HALF_OF_E4M3));
        code.op(Binary.ADD_INTS, number, number, even);
        code.shiftRight(number, number, E4M3_SHIFT);
        code.op(Binary.ADD_INTS, number, number, small);
        code.op(Binary.ADD_INTS, number, number, held(Constants.E4M3_BIAS));
        code.op(Binary.MIN_INTS, number, number, held(Constants.E4M3_NAN));
        code.op(Binary.ADD_INTS, number, number, sign);
    }
}
