package baton.engine.kernel;

import baton.kv.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Constants that kernels load from memory, each as a whole vector. */
final class Constants {
    private static final int VECTOR = 64;

    static final int UPPER_HALF = 0;
    static final int ONE = 1;
    static final int LOWEST_EXPONENT = 2;
    static final int HIGHEST_EXPONENT = 3;
    /** -log2(e). */
    static final int NEGATED_LOG2_E = 4;

    static final int LOWEST_BIT = 5;
    static final int HALF_OF_BF16 = 6;
    static final int ZERO = 7;
    static final int MASKED = 8;

    /** Coefficients of 2^x for |x| up to 1/2, that of x^6 first: the largest relative error is the smallest that there is, and 2^0 is 1. */
    static final int POWER = 9;

    static final int POWER_TERMS = 7;

    /** Coefficients of 2^x for x from 0 to 1, that of x^5 first, likewise. */
    static final int FRACTION_POWER = POWER + POWER_TERMS;

    static final int FRACTION_TERMS = 6;

    /** Indices of shorts: 0 and 16, 1 and 17, and so on. */
    static final int INTERLEAVED = FRACTION_POWER + FRACTION_TERMS;

    /** Two to the power of {@link #LOWEST_EXPONENT}. */
    static final int LEAST_POWER = INTERLEAVED + 1;

    static final int NEGATIVE_INFINITY = LEAST_POWER + 1;

    /** {@link PagedAttention#NO_SCORE}. */
    static final int NO_SCORE = NEGATIVE_INFINITY + 1;

    /** The exponent of two in GeLU's sigmoid of x: this times x, and the next one times its cube. */
    static final int GELU_LINE = NO_SCORE + 1;

    static final int GELU_CUBE = GELU_LINE + 1;

    /** The exponent of two in the sigmoid of {@link Activation#CLAMPED_SWIGLU}: this times x. */
    static final int SWIGLU_LINE = GELU_CUBE + 1;

    static final int SWIGLU_LIMIT = SWIGLU_LINE + 1;
    static final int NEGATIVE_SWIGLU_LIMIT = SWIGLU_LIMIT + 1;

    /** The bits of fp16 without the highest of the exponent. */
    static final int E4M3_IN_F16 = NEGATIVE_SWIGLU_LIMIT + 1;

    /** Makes infinity of e4m3's NaN, as fp16 reads it, and of none of its numbers. */
    static final int E4M3_OVERFLOW = E4M3_IN_F16 + 1;

    static final int E4M3_OF_F16 = E4M3_OVERFLOW + 1;

    static final int MAGNITUDE = E4M3_OF_F16 + 1;
    static final int E4M3_LARGEST = MAGNITUDE + 1;

    /** The smallest normal number of e4m3, two to the power of -6. */
    static final int E4M3_NORMAL = E4M3_LARGEST + 1;

    /** A number with e4m3's smallest number as its last place. */
    static final int E4M3_SMALL = E4M3_NORMAL + 1;

    static final int HALF_OF_E4M3 = E4M3_SMALL + 1;

    /** The addend to the codes of {@link #E4M3_NORMAL} or above, and {@link #E4M3_SMALL} or above, for e4m3's. */
    static final int E4M3_BIAS = HALF_OF_E4M3 + 1;

    static final int E4M3_NAN = E4M3_BIAS + 1;
    static final int E4M3_SIGN = E4M3_NAN + 1;

    /** E2M1 as bf16, by the lower four bits of an index of {@code permuteShorts}. */
    static final int E2M1 = E4M3_SIGN + 1;

    /** All bits of those that are not zero. */
    static final int E2M1_NOT_ZERO = E2M1 + 1;

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
        MemorySegment memory = Arena.global().allocate((E2M1_NOT_ZERO + 1L) * VECTOR, VECTOR);
        bits(memory, UPPER_HALF, 0xffff_0000);
        number(memory, ONE, 1);
        number(memory, LOWEST_EXPONENT, -100);
        number(memory, HIGHEST_EXPONENT, 127);
        number(memory, LEAST_POWER, Math.scalb(1f, -100));
        number(memory, NEGATIVE_INFINITY, Float.NEGATIVE_INFINITY);
        number(memory, NO_SCORE, PagedAttention.NO_SCORE);
        number(memory, NEGATED_LOG2_E, -1.442695f);
        double line = -2 * Math.sqrt(2 / Math.PI) / Math.log(2);
        number(memory, GELU_LINE, (float) line);
        number(memory, GELU_CUBE, (float) (0.044715 * line));
        number(memory, SWIGLU_LINE, (float) (-Activation.SWIGLU_SLOPE / Math.log(2)));
        number(memory, SWIGLU_LIMIT, Activation.SWIGLU_LIMIT);
        number(memory, NEGATIVE_SWIGLU_LIMIT, -Activation.SWIGLU_LIMIT);
        bits(memory, E4M3_IN_F16, 0xbfff_bfff);
        number(memory, E4M3_OVERFLOW, Float.MAX_VALUE / 1.8f);
        number(memory, E4M3_OF_F16, 256);
        bits(memory, MAGNITUDE, Integer.MAX_VALUE);
        number(memory, E4M3_LARGEST, 448);
        number(memory, E4M3_NORMAL, 0x1p-6f);
        number(memory, E4M3_SMALL, 0x1p14f);
        bits(memory, HALF_OF_E4M3, (1 << 19) - 1);
        bits(memory, E4M3_BIAS, -(127 - 7 << 3) - 8 - Float.floatToRawIntBits(0x1p14f));
        bits(memory, E4M3_NAN, 0x7f);
        bits(memory, E4M3_SIGN, 0x80);
        bits(memory, LOWEST_BIT, 1);
        bits(memory, HALF_OF_BF16, 0x7fff);
        number(memory, ZERO, 0);
        number(memory, MASKED, 1e30f);
        numbers(memory, POWER, 0.00015353362f, 0.0013398875f, 0.009618437f, 0.055503324f, 0.24022648f, 0.6931472f, 1);
        numbers(memory, FRACTION_POWER, 0.0018671303f, 0.00901703f, 0.055799913f, 0.24016444f, 0.6931513f, 1);
        int lanes = VECTOR / Integer.BYTES;
        for (int lane = 0; lane < lanes; lane++) {
            memory.setAtIndex(ValueLayout.JAVA_INT, (long) INTERLEAVED * lanes + lane, lane + lanes << 16 | lane);
        }
        for (int i = 0; i < VECTOR / Short.BYTES; i++) {
            float magnitude = Mxfp4Panels.MAGNITUDES[i % 8];
            short number = DType.bf16(i % 16 < 8 ? magnitude : -magnitude);
            memory.setAtIndex(ValueLayout.JAVA_SHORT, (long) E2M1 * VECTOR / Short.BYTES + i, number);
            memory.setAtIndex(ValueLayout.JAVA_SHORT, (long) E2M1_NOT_ZERO * VECTOR / Short.BYTES + i, (short)
                    (magnitude == 0 ? 0 : -1));
        }
        return memory;
    }

    private static void numbers(MemorySegment memory, int first, float... values) {
        for (int i = 0; i < values.length; i++) {
            number(memory, first + i, values[i]);
        }
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
