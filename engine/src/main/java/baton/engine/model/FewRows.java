package baton.engine.model;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Norms and rotations of a few rows in plain Java. For a handful of rows LibTorch spends far more time on calling its
 * operators than the arithmetic takes; for many rows its vectors and threads win. Computes in fp32 and rounds once, to nearest even.
 */
final class FewRows {
    /** As many rows as are worth it: one thread of scalar code against all of LibTorch's. */
    static final int MOST = 16;

    private final DType dtype;

    /** @param dtype bf16 or fp32, the type of all rows */
    FewRows(DType dtype) {
        this.dtype = dtype;
    }

    /**
     * Divides each row by its root mean square, and multiplies it by {@code weight}.
     *
     * @param from rows of {@code width} elements each
     * @param weight [width]
     * @param to as {@code from}, and may be the same
     */
    void norm(MemorySegment from, MemorySegment to, int rows, int width, float[] weight, double eps) {
        float[] row = new float[width];
        for (int i = 0; i < rows; i++) {
            long start = (long) i * width;
            float squares = 0;
            for (int j = 0; j < width; j++) {
                float value = get(from, start + j);
                row[j] = value;
                squares += value * value;
            }
            float scale = (float) (1 / Math.sqrt(squares / width + eps));
            for (int j = 0; j < width; j++) {
                set(to, start + j, row[j] * scale * weight[j]);
            }
        }
    }

    /**
     * Turns the pairs of a head, element i with element i + D/2, by the angles of the row's position.
     *
     * @param from the heads of a row start at {@code offset + row * rowStride}, {@code headStride} elements apart
     * @param table by row: D cosines, D/2 sines, D/2 negated sines
     * @param to [rows, heads, D], or, if it is {@code from}, the same places
     */
    void rotate(
            MemorySegment from,
            MemorySegment to,
            MemorySegment table,
            int rows,
            long offset,
            long rowStride,
            int heads,
            long headStride,
            int headDim) {
        int half = headDim / 2;
        boolean inPlace = from.address() == to.address();
        float[] angles = new float[headDim + half];
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < angles.length; i++) {
                angles[i] = get(table, 2L * row * headDim + i);
            }
            for (int head = 0; head < heads; head++) {
                long source = offset + row * rowStride + head * headStride;
                long target = inPlace ? source : ((long) row * heads + head) * headDim;
                for (int i = 0; i < half; i++) {
                    float first = get(from, source + i);
                    float second = get(from, source + half + i);
                    set(to, target + i, first * angles[i] - second * angles[headDim + i]);
                    set(to, target + half + i, second * angles[half + i] + first * angles[headDim + i]);
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
