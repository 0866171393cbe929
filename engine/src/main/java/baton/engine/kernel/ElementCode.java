package baton.engine.kernel;

import baton.kv.DType;
import baton.memory.Assembler;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Unary;

/** Conversion between fp32 in registers and elements of each type in memory: the only place where a type of keys and values has code of its own. */
final class ElementCode {
    private static final int BF16_BITS = 16;

    private ElementCode() {}

    /** Loads as many elements as a vector has lanes. */
    static void load(Assembler code, DType type, int to, Mem from) {
        switch (type) {
            case F32 -> code.load(to, from);
            case BF16 -> {
                code.op(Unary.SHORTS_TO_INTS, to, from);
                code.shiftLeft(to, to, BF16_BITS);
            }
            case F16 -> code.op(Unary.HALVES_TO_FLOATS, to, from);
        }
    }
}
