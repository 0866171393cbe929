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
     * Divides each head of {@code width} elements by its root mean square, and multiplies it by {@code weight}.
     *
     * @param to as many heads as {@code from}, and may be the same
     */
    void norm(Heads from, Heads to, int width, float[] weight, double eps) {
        float[] values = new float[width];
        for (int row = 0; row < from.rows; row++) {
            for (int head = 0; head < from.heads; head++) {
                long source = from.start(row, head);
                long target = to.start(row, head);
                float squares = 0;
                for (int i = 0; i < width; i++) {
                    float value = get(from.memory, source + i);
                    values[i] = value;
                    squares += value * value;
                }
                float scale = (float) (1 / Math.sqrt(squares / width + eps));
                for (int i = 0; i < width; i++) {
                    set(to.memory, target + i, values[i] * scale * weight[i]);
                }
            }
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
