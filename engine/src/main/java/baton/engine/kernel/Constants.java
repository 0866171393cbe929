package baton.engine.kernel;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Constants that kernels load from memory, each as a whole vector. */
final class Constants {
    private static final int VECTOR = 64;

    static final int UPPER_HALF = 0;
    static final int SIGN = 1;
    static final int ONE = 2;
    static final int LOWEST_EXPONENT = 3;
    static final int HIGHEST_EXPONENT = 4;
    static final int LOG2_E = 5;
    /** ln 2 in two parts, the first of which has few bits, so that its multiples are exact. */
    static final int LN_2_HIGH = 6;

    static final int LN_2_LOW = 7;
    static final int LOWEST_BIT = 8;
    static final int HALF_OF_BF16 = 9;
    static final int ZERO = 10;
    static final int MASKED = 11;

    /**
     * Coefficients of e^x for |x| up to ln(2)/2, that of x^7 first, by Cephes' expf.
     *
     * @see <a href="https://www.netlib.org/cephes/">Cephes</a>
     */
    static final int EXP = 12;

    static final int EXP_TERMS = 8;

    private static final MemorySegment MEMORY = make();

    private Constants() {}

    static long address(int constant) {
        return MEMORY.address() + (long) constant * VECTOR;
    }

    /** Bytes from one constant to the next. */
    static int distance(int from, int to) {
        return (to - from) * VECTOR;
    }

    private static MemorySegment make() {
        MemorySegment memory = Arena.global().allocate((long) (EXP + EXP_TERMS) * VECTOR, VECTOR);
        bits(memory, UPPER_HALF, 0xffff_0000);
        bits(memory, SIGN, 0x8000_0000);
        number(memory, ONE, 1);
        number(memory, LOWEST_EXPONENT, -87);
        number(memory, HIGHEST_EXPONENT, 88);
        number(memory, LOG2_E, 1.442695f);
        number(memory, LN_2_HIGH, 0.6933594f);
        number(memory, LN_2_LOW, -2.12194440e-4f);
        bits(memory, LOWEST_BIT, 1);
        bits(memory, HALF_OF_BF16, 0x7fff);
        number(memory, ZERO, 0);
        number(memory, MASKED, 1e30f);
        float[] terms = {0.00019875691f, 0.0013981999f, 0.008333452f, 0.041665796f, 0.16666666f, 0.5f, 1, 1};
        for (int i = 0; i < terms.length; i++) {
            number(memory, EXP + i, terms[i]);
        }
        return memory;
    }

    private static void number(MemorySegment memory, int constant, float value) {
        bits(memory, constant, Float.floatToRawIntBits(value));
    }

    private static void bits(MemorySegment memory, int constant, int value) {
        for (long at = 0; at < VECTOR; at += Integer.BYTES) {
            memory.set(ValueLayout.JAVA_INT, (long) constant * VECTOR + at, value);
        }
    }
}
