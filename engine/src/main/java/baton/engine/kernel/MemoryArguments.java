package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;

import baton.memory.Assembler;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import java.util.List;

/**
 * Arguments that machine code takes from memory, as longs: they are more than there are registers, and mostly the same in the next call.
 *
 * @param base register with the address of the first one
 */
record MemoryArguments(Assembler code, Reg base) {
    /** Registers of a function's arguments, in their order. */
    private static final List<Reg> REGISTERS = List.of(RDI, RSI, RDX, RCX, R8, R9);

    /** An argument: a constant of an enum, which has the order of the arguments. */
    interface Argument {
        int ordinal();

        default long offset() {
            return (long) ordinal() * Long.BYTES;
        }
    }

    void load(Reg register, Argument argument) {
        code.load(register, place(argument));
    }

    private Mem place(Argument argument) {
        return at(base, (int) argument.offset());
    }

    /** Loads a function's arguments into their registers. */
    void load(Argument... arguments) {
        loadFrom(0, arguments);
    }

    /** Loads the arguments behind the first one, which is in its register. */
    void loadBehindFirst(Argument... arguments) {
        loadFrom(1, arguments);
    }

    private void loadFrom(int first, Argument... arguments) {
        for (int i = 0; i < arguments.length; i++) {
            load(REGISTERS.get(first + i), arguments[i]);
        }
    }

    /** Calls a function with these arguments. */
    void call(Label function, Argument... arguments) {
        load(arguments);
        code.call(function);
    }
}
