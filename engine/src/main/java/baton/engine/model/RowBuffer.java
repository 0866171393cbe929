package baton.engine.model;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Elements of a row as fp32, which come from memory of any type and go into memory of any type, rounded to nearest even. Used by one thread. */
final class RowBuffer {
    private final float[] values;
    private final short[] halves;

    /** @param size most elements at once */
    RowBuffer(int size) {
        values = new float[size];
        halves = new short[size];
    }

    /** The elements that were loaded last. */
    float[] values() {
        return values;
    }

    void load(Matrix from, int row, int column, int count) {
        load(from.memory(), offset(from, row, column), from.type(), count);
    }

    /** @param start of the first element, in bytes */
    void load(MemorySegment from, long start, DType type, int count) {
        switch (type) {
            case F32 -> MemorySegment.copy(from, ValueLayout.JAVA_FLOAT_UNALIGNED, start, values, 0, count);
            case BF16 -> {
                MemorySegment.copy(from, ValueLayout.JAVA_SHORT_UNALIGNED, start, halves, 0, count);
                for (int i = 0; i < count; i++) {
                    values[i] = Float.intBitsToFloat(halves[i] << 16);
                }
            }
            case F16 -> {
                MemorySegment.copy(from, ValueLayout.JAVA_SHORT_UNALIGNED, start, halves, 0, count);
                for (int i = 0; i < count; i++) {
                    values[i] = Float.float16ToFloat(halves[i]);
                }
            }
            case F8_E4M3 -> {
                for (int i = 0; i < count; i++) {
                    values[i] = type.get(from, start + i);
                }
            }
        }
    }

    void store(Matrix to, int row, int column, int count) {
        long start = offset(to, row, column);
        switch (to.type()) {
            case F32 -> MemorySegment.copy(values, 0, to.memory(), ValueLayout.JAVA_FLOAT_UNALIGNED, start, count);
            case BF16 -> {
                for (int i = 0; i < count; i++) {
                    halves[i] = DType.bf16(values[i]);
                }
                MemorySegment.copy(halves, 0, to.memory(), ValueLayout.JAVA_SHORT_UNALIGNED, start, count);
            }
            case F16 -> {
                for (int i = 0; i < count; i++) {
                    halves[i] = Float.floatToFloat16(values[i]);
                }
                MemorySegment.copy(halves, 0, to.memory(), ValueLayout.JAVA_SHORT_UNALIGNED, start, count);
            }
            case F8_E4M3 -> throw notComputed(to.type());
        }
    }

    /** Adds another's elements to these. */
    void add(RowBuffer other, int count) {
        for (int i = 0; i < count; i++) {
            values[i] += other.values[i];
        }
    }

    void multiply(float factor, int count) {
        for (int i = 0; i < count; i++) {
            values[i] *= factor;
        }
    }

    /** Rounds elements to a type's. */
    void round(DType type, int count) {
        for (int i = 0; type != DType.F32 && i < count; i++) {
            values[i] = rounded(type, values[i]);
        }
    }

    /** The nearest number of a type. */
    static float rounded(DType type, float value) {
        return switch (type) {
            case F32 -> value;
            case BF16 -> Float.intBitsToFloat(DType.bf16(value) << 16);
            case F16 -> Float.float16ToFloat(Float.floatToFloat16(value));
            case F8_E4M3 -> throw notComputed(type);
        };
    }

    private static IllegalArgumentException notComputed(DType type) {
        return new IllegalArgumentException("nothing is computed in " + type.torchName());
    }

    private static long offset(Matrix matrix, int row, int column) {
        return (row * matrix.stride() + column) * matrix.type().bytes();
    }
}
