package baton.cuda.ptx;

/** An operand of an instruction: a register of a thread, or a constant. The type is that of Java, so that the compiler checks operands. */
public sealed interface Operand {
    /** The operand as PTX writes it. */
    String text();

    /** Memory that is addressed by this type, if it is an address: global memory by 64 bits, shared memory by 32. */
    sealed interface Address extends Operand {}

    /** A truth value. */
    record Pred(String text) implements Operand {}

    /** 16 bits: a bf16 or f16 number. */
    record B16(String text) implements Operand {}

    /** 32 bits: an integer, two numbers of 16 bits, or an address in shared memory. */
    record U32(String text) implements Address {}

    /** 64 bits: an integer or an address in global memory. */
    record U64(String text) implements Address {}

    record F32(String text) implements Operand {}
}
