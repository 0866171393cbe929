package baton.engine.model;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Norms and rotations of rows in plain Java. Computes in fp32 and rounds once, to nearest even. Used by one thread.
 *
 * <p>Norms are loops of a single operation over heap arrays, of which HotSpot makes vector code: it does so neither for conversions
 * between bf16 and fp32 nor for two segments that might overlap. So a pair of neighbours in bf16 is taken as one {@code int}, whose low
 * and high half become fp32 by a shift and by a mask, and even and odd elements are computed apart. That is faster than LibTorch's
 * operators with two threads, the more so since code of theirs comes cold from memory after each product with weights.
 *
 * <p>Rotations are scalar code, for few rows: for a handful LibTorch spends more time on calling its operators than the arithmetic
 * takes.
 */
final class RowMath {
    /** As many rows as are worth rotating here. */
    static final int FEW = 16;

    private final DType dtype;
    private Lanes even = new Lanes(0);
    private Lanes odd = new Lanes(0);
    private int[] pairs = {};
    private float[] squares = {};

    /** @param dtype bf16 or fp32, the type of all rows */
    RowMath(DType dtype) {
        this.dtype = dtype;
    }

    /** Numbers to compute with, also to be seen as bits. */
    private record Lanes(float[] values, MemorySegment bits) {
        Lanes(int count) {
            this(new float[count]);
        }

        Lanes(float[] values) {
            this(values, MemorySegment.ofArray(values));
        }
    }

    /**
     * Weights of a norm.
     *
     * @param even those of elements 0, 2, 4, ...
     * @param odd the others
     */
    record NormWeights(float[] even, float[] odd) {
        /** @throws IllegalArgumentException if they are an odd number */
        static NormWeights of(float[] values) {
            if (values.length % 2 != 0) {
                throw new IllegalArgumentException("a norm over an odd number of elements: " + values.length);
            }
            float[] even = new float[values.length / 2];
            float[] odd = new float[values.length / 2];
            for (int i = 0; i < even.length; i++) {
                even[i] = values[2 * i];
                odd[i] = values[2 * i + 1];
            }
            return new NormWeights(even, odd);
        }

        int width() {
            return 2 * even.length;
        }
    }

    /**
     * Where heads of rows lie: head h of row r begins at element {@code offset + r * rowStride + h * headStride}.
     *
     * @param memory elements of the rows' type
     */
    record Heads(MemorySegment memory, int rows, long offset, long rowStride, int heads, long headStride) {
        long start(int row, int head) {
            return offset + row * rowStride + head * headStride;
        }
    }

    /**
     * Divides each head by its root mean square, and multiplies it by {@code weights}, which are as many as a head's elements:
     * x / sqrt(mean(x * x) + eps) * weight.
     *
     * @param to as many heads as {@code from}, and may be the same
     */
    void norm(Heads from, Heads to, NormWeights weights, double eps) {
        int width = weights.width();
        int half = width / 2;
        if (squares.length < half) {
            even = new Lanes(half);
            odd = new Lanes(half);
            pairs = new int[half];
            squares = new float[half];
        }
        long size = dtype.bytes();
        for (int row = 0; row < from.rows; row++) {
            for (int head = 0; head < from.heads; head++) {
                load(from.memory, from.start(row, head) * size, half);
                multiply(even.values, even.values, squares, half);
                addProducts(odd.values, odd.values, squares, half);
                float scale = (float) (1 / Math.sqrt(sum(squares, half) / width + eps));
                scale(even.values, weights.even, scale, half);
                scale(odd.values, weights.odd, scale, half);
                store(to.memory, to.start(row, head) * size, half);
            }
        }
    }

    private void load(MemorySegment memory, long offset, int half) {
        if (dtype == DType.F32) {
            for (int i = 0; i < half; i++) {
                even.values[i] = memory.get(ValueLayout.JAVA_FLOAT, offset + 8L * i);
                odd.values[i] = memory.get(ValueLayout.JAVA_FLOAT, offset + 8L * i + 4);
            }
            return;
        }
        MemorySegment.copy(memory, ValueLayout.JAVA_INT_UNALIGNED, offset, pairs, 0, half);
        widenLow(pairs, even.bits, half);
        widenHigh(pairs, odd.bits, half);
    }

    private void store(MemorySegment memory, long offset, int half) {
        if (dtype == DType.F32) {
            for (int i = 0; i < half; i++) {
                memory.set(ValueLayout.JAVA_FLOAT, offset + 8L * i, even.values[i]);
                memory.set(ValueLayout.JAVA_FLOAT, offset + 8L * i + 4, odd.values[i]);
            }
            return;
        }
        roundToHigh(odd.bits, pairs, half);
        roundToLow(even.bits, pairs, half);
        MemorySegment.copy(pairs, 0, memory, ValueLayout.JAVA_INT_UNALIGNED, offset, half);
    }

    private static void widenLow(int[] pairs, MemorySegment bits, int count) {
        for (int i = 0; i < count; i++) {
            bits.set(ValueLayout.JAVA_INT, 4L * i, pairs[i] << 16);
        }
    }

    private static void widenHigh(int[] pairs, MemorySegment bits, int count) {
        for (int i = 0; i < count; i++) {
            bits.set(ValueLayout.JAVA_INT, 4L * i, pairs[i] & 0xffff_0000);
        }
    }

    private static void multiply(float[] x, float[] y, float[] product, int count) {
        for (int i = 0; i < count; i++) {
            product[i] = x[i] * y[i];
        }
    }

    private static void addProducts(float[] x, float[] y, float[] sum, int count) {
        for (int i = 0; i < count; i++) {
            sum[i] += x[i] * y[i];
        }
    }

    private static void scale(float[] x, float[] weights, float scale, int count) {
        for (int i = 0; i < count; i++) {
            x[i] = x[i] * scale * weights[i];
        }
    }

    /** Eight sums side by side, because the order of additions is not the compiler's to change. */
    private static float sum(float[] x, int count) {
        float a = 0;
        float b = 0;
        float c = 0;
        float d = 0;
        float e = 0;
        float f = 0;
        float g = 0;
        float h = 0;
        int i = 0;
        for (; i + 7 < count; i += 8) {
            a += x[i];
            b += x[i + 1];
            c += x[i + 2];
            d += x[i + 3];
            e += x[i + 4];
            f += x[i + 5];
            g += x[i + 6];
            h += x[i + 7];
        }
        for (; i < count; i++) {
            a += x[i];
        }
        return (a + b) + (c + d) + ((e + f) + (g + h));
    }

    // A NaN that comes of bf16 has zeros in its lower half, so that adding does not make a number of it.

    private static void roundToHigh(MemorySegment bits, int[] pairs, int count) {
        for (int i = 0; i < count; i++) {
            int value = bits.get(ValueLayout.JAVA_INT, 4L * i);
            pairs[i] = (value + 0x7fff + ((value >>> 16) & 1)) & 0xffff_0000;
        }
    }

    private static void roundToLow(MemorySegment bits, int[] pairs, int count) {
        for (int i = 0; i < count; i++) {
            int value = bits.get(ValueLayout.JAVA_INT, 4L * i);
            pairs[i] |= (value + 0x7fff + ((value >>> 16) & 1)) >>> 16;
        }
    }

    /**
     * Turns the pairs of each head, element i with element i + D/2, by the angles of its row's position.
     *
     * @param to as many heads as {@code from}, and may be the same
     * @param table by row: D cosines, D/2 sines, D/2 negated sines
     */
    void rotate(Heads from, Heads to, int headDim, MemorySegment table) {
        int half = headDim / 2;
        float[] cos = new float[headDim];
        float[] sin = new float[half];
        for (int row = 0; row < from.rows; row++) {
            long angles = 2L * row * headDim;
            for (int i = 0; i < headDim; i++) {
                cos[i] = get(table, angles + i);
            }
            for (int i = 0; i < half; i++) {
                sin[i] = get(table, angles + headDim + i);
            }
            for (int head = 0; head < from.heads; head++) {
                long source = from.start(row, head);
                long target = to.start(row, head);
                for (int i = 0; i < half; i++) {
                    float first = get(from.memory, source + i);
                    float second = get(from.memory, source + half + i);
                    set(to.memory, target + i, first * cos[i] - second * sin[i]);
                    set(to.memory, target + half + i, second * cos[half + i] + first * sin[i]);
                }
            }
        }
    }

    private float get(MemorySegment memory, long index) {
        return dtype == DType.F32
                ? memory.getAtIndex(ValueLayout.JAVA_FLOAT, index)
                : Float.intBitsToFloat(memory.getAtIndex(ValueLayout.JAVA_SHORT, index) << 16);
    }

    private void set(MemorySegment memory, long index, float value) {
        if (dtype == DType.F32) {
            memory.setAtIndex(ValueLayout.JAVA_FLOAT, index, value);
        } else {
            int bits = Float.floatToRawIntBits(value);
            // Half of the last place, less one if that place is even, carries where rounding goes up. NaN stays NaN.
            int rounded = Float.isNaN(value) ? bits | 0x0040_0000 : bits + 0x7fff + ((bits >>> 16) & 1);
            memory.setAtIndex(ValueLayout.JAVA_SHORT, index, (short) (rounded >>> 16));
        }
    }
}
