package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;

/**
 * Emits e^x of a vector: x is a multiple n of ln 2 and a remainder, of which e^ is a polynomial, whose exponent n is added to. Relative
 * error below 2e-7 between -87 and 88, to which x is limited.
 *
 * @param constants register that points to {@link Constants}
 * @param multiple vector register to work with
 * @param remainder likewise
 * @param spare likewise
 */
record Exponential(Assembler code, Reg constants, int multiple, int remainder, int spare) {
    /** Prepares the register of constants. */
    void begin() {
        code.move(constants, Constants.address(0));
    }

    Mem constant(int constant) {
        return at(constants, Constants.distance(0, constant));
    }

    /** Replaces x. */
    void of(int x) {
        code.op(Binary.MAX, x, x, constant(Constants.LOWEST_EXPONENT));
        code.op(Binary.MIN, x, x, constant(Constants.HIGHEST_EXPONENT));
        code.op(Binary.MUL, multiple, x, constant(Constants.LOG2_E));
        code.op(Unary.TO_INTS, multiple, multiple);
        code.op(Unary.TO_FLOATS, spare, multiple);
        code.op(Unary.LOAD, remainder, x);
        code.op(Binary.NEGATED_FMA, remainder, spare, constant(Constants.LN_2_HIGH));
        code.op(Binary.NEGATED_FMA, remainder, spare, constant(Constants.LN_2_LOW));
        code.op(Unary.LOAD, x, constant(Constants.EXP));
        for (int i = 1; i < Constants.EXP_TERMS; i++) {
            code.op(Binary.FMA_TO_PRODUCT, x, remainder, constant(Constants.EXP + i));
        }
        code.shiftLeft(multiple, multiple, 23);
        code.op(Binary.ADD_INTS, x, x, multiple);
    }
}
