package baton.cuda.sim;

/** The result of an instruction in one lane. Instructions with fewer operands do not look at the later ones. */
sealed interface LaneFunction {
    /** Of operands of 32 bits or fewer; results of fewer bits are extended as their type says. */
    @FunctionalInterface
    non-sealed interface Words extends LaneFunction {
        int apply(int a, int b, int c);
    }

    /** Of operands of which one has 64 bits. Those of 32 bits are extended with their sign. */
    @FunctionalInterface
    non-sealed interface Wide extends LaneFunction {
        long apply(long a, long b, long c);
    }
}
