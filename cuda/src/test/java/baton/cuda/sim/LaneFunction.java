package baton.cuda.sim;

/** The result of an instruction in one lane. Instructions with fewer operands do not look at the later ones. */
sealed interface LaneFunction {
    /** A function of operands of 32 bits or fewer; results of fewer bits are extended by their type. */
    @FunctionalInterface
    non-sealed interface Words extends LaneFunction {
        int apply(int a, int b, int c);
    }

    /** A function with an operand of 64 bits. Operands of 32 bits are extended with their sign. */
    @FunctionalInterface
    non-sealed interface Wide extends LaneFunction {
        long apply(long a, long b, long c);
    }
}
