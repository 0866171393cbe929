package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;

/**
 * Emits 2^x of a vector: x is an integer n and a remainder, up to 1/2 or, with 512 bits, from 0 to 1. 2^remainder is a polynomial; n is
 * added to the exponent of its result. The relative error is below 1.5e-7, and none for integers from -75 on. It is 0 for x up to -100,
 * which is nothing beside 1: products with smaller numbers would be subnormal, and each operation on one of these takes a hundred times as
 * long. With fewer than 512 bits x is limited to 127 as well.
 *
 * @param constants register that points to {@link Constants}
 * @param multiple vector register to work with
 * @param remainder likewise
 * @param spare likewise
 */
record PowerOfTwo(Assembler code, Reg constants, int multiple, int remainder, int spare) {
    /** The first of the registers for the polynomial with 512 bits. */
    private static final int FIRST_TERM = 24;

    private static final int LOWEST = FIRST_TERM + Constants.FRACTION_TERMS;
    private static final int LEAST = FIRST_TERM - 1;

    /** Prepares the registers of constants. */
    void begin() {
        code.move(constants, Constants.address(0));
        if (hasMoreRegisters()) {
            for (int i = 0; i < Constants.FRACTION_TERMS; i++) {
                code.load(FIRST_TERM + i, constant(Constants.FRACTION_POWER + i));
            }
            code.load(LOWEST, constant(Constants.LOWEST_EXPONENT));
            code.load(LEAST, constant(Constants.LEAST_POWER));
        }
    }

    Mem constant(int constant) {
        return at(constants, Constants.distance(0, constant));
    }

    /** Replaces x. */
    void of(int x) {
        if (hasMoreRegisters()) {
            code.op(Binary.MAX, multiple, x, LOWEST);
            code.fraction(remainder, multiple);
            code.op(Unary.LOAD, x, FIRST_TERM);
            for (int i = 1; i < Constants.FRACTION_TERMS; i++) {
                code.op(Binary.FMA_TO_PRODUCT, x, remainder, FIRST_TERM + i);
            }
            code.op(Binary.TIMES_POWER, x, x, multiple);
            code.op(Binary.SUB, x, x, LEAST);
            return;
        }
        code.op(Binary.MAX, x, x, constant(Constants.LOWEST_EXPONENT));
        code.op(Binary.MIN, x, x, constant(Constants.HIGHEST_EXPONENT));
        code.op(Unary.TO_INTS, multiple, x);
        code.op(Unary.TO_FLOATS, spare, multiple);
        code.op(Binary.SUB, remainder, x, spare);
        code.op(Unary.LOAD, x, constant(Constants.POWER));
        for (int i = 1; i < Constants.POWER_TERMS; i++) {
            code.op(Binary.FMA_TO_PRODUCT, x, remainder, constant(Constants.POWER + i));
        }
        code.shiftLeft(multiple, multiple, 23);
        code.op(Binary.ADD_INTS, x, x, multiple);
        code.op(Binary.SUB, x, x, constant(Constants.LEAST_POWER));
    }

    private boolean hasMoreRegisters() {
        return code.width() == Width.ZMM;
    }
}
