package baton.engine.model;

import baton.engine.kernel.Kernels;
import baton.engine.kernel.Mxfp4Panels;
import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.WeightType;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;

/**
 * Lays a matrix out in panels, as {@link baton.engine.kernel.PanelMatrix} describes them. Weights of 8 bits have one scale for each output:
 * {@code weight[o, i] ~ scale[o] * q[o, i]}, q from -127 to 127.
 */
final class PanelPacking {
    /** Inputs of a panel that are laid out together, so that they stay in the first cache. */
    private static final int INPUTS = 128;

    private static final float LEVELS = 127;

    /** Stands for the largest magnitude of zeros. */
    private static final float SMALLEST = 1e-30f;

    private final WeightType type;
    private final DType dtype;
    private final int width;
    private final Matrix[] matrices;
    private final int[] rows;
    private final int inputs;
    private volatile boolean fits = true;

    /**
     * @param parts of the matrix [outputs, inputs], one below the other
     * @param dtype that the parts are rounded to before anything else
     */
    PanelPacking(Kernels kernels, WeightType type, DType dtype, List<Matrix> parts) {
        this.type = type;
        this.dtype = dtype;
        this.width = kernels.panelWidth();
        this.inputs = parts.getFirst().columns();
        int outputs = parts.stream().mapToInt(Matrix::rows).sum();
        matrices = new Matrix[outputs];
        rows = new int[outputs];
        int output = 0;
        for (Matrix part : parts) {
            for (int row = 0; row < part.rows(); row++, output++) {
                matrices[output] = part;
                rows[output] = row;
            }
        }
    }

    /** Whether a matrix' first weights are numbers of MXFP4, and not all zero. */
    static boolean beginsAsMxfp4(Matrix matrix) {
        RowBuffer row = new RowBuffer(Mxfp4Panels.INPUTS);
        row.load(matrix, 0, 0, Mxfp4Panels.INPUTS);
        for (float weight : row.values()) {
            if (weight != 0) {
                return Mxfp4Panels.put(row.values(), 0, new byte[Mxfp4Panels.BYTES], 0, 0);
            }
        }
        return false;
    }

    /**
     * Packs all of it.
     *
     * @param panels of zeros
     * @param scales of outputs, for {@link WeightType#hasScales}
     * @return whether the type has the weights; it has not if they are no numbers of MXFP4
     */
    boolean pack(MemorySegment panels, MemorySegment scales, ParallelFor threads) {
        threads.parallelFor(Math.ceilDiv(rows.length, width), 1, (_, first, end) -> {
            Panel panel = new Panel(panels, scales);
            for (int i = first; i < end && fits; i++) {
                panel.pack(i);
            }
        });
        return fits;
    }

    /** One panel after the other, by one thread. */
    private final class Panel {
        private final MemorySegment panels;
        private final MemorySegment scales;
        private final RowBuffer row = new RowBuffer(INPUTS);
        private final float[] floats = new float[type == WeightType.FP32 ? INPUTS * width : 0];
        private final short[] halves = new short[type.bytes() == Short.BYTES ? INPUTS * width : 0];
        private final byte[] bytes = new byte[Math.toIntExact(type.bytes() > 1 ? 0 : type.bytes(INPUTS, width))];
        private final float[] scaleOf = new float[width];

        Panel(MemorySegment panels, MemorySegment scales) {
            this.panels = panels;
            this.scales = scales;
        }

        void pack(int panel) {
            int first = panel * width;
            int count = Math.min(width, rows.length - first);
            if (count < width) {
                Arrays.fill(floats, 0);
                Arrays.fill(halves, (short) 0);
                Arrays.fill(bytes, (byte) 0);
            }
            for (int i = 0; type.hasScales() && i < count; i++) {
                scaleOf[i] = scale(first + i);
                scales.setAtIndex(ValueLayout.JAVA_FLOAT, first + i, scaleOf[i]);
            }
            for (int input = 0; input < inputs; input += INPUTS) {
                int some = Math.min(INPUTS, inputs - input);
                if (type == WeightType.MXFP4_PAIRS) {
                    Arrays.fill(bytes, (byte) 0);
                }
                for (int i = 0; i < count && fits; i++) {
                    load(first + i, input, some);
                    place(i, some);
                }
                store(panel * type.bytes(inputs, width) + type.bytes(input, width), some);
            }
        }

        private void load(int output, int input, int some) {
            row.load(matrices[output], rows[output], input, some);
            if (matrices[output].type() != dtype) {
                row.round(dtype, some);
            }
        }

        private float scale(int output) {
            float largest = SMALLEST;
            for (int input = 0; input < inputs; input += INPUTS) {
                int some = Math.min(INPUTS, inputs - input);
                load(output, input, some);
                for (int i = 0; i < some; i++) {
                    largest = Math.max(largest, Math.abs(row.values()[i]));
                }
            }
            return largest / LEVELS;
        }

        /** Puts an output's weights where they belong among those of the panel's other outputs. */
        private void place(int output, int some) {
            float[] values = row.values();
            switch (type) {
                case FP32 -> {
                    for (int i = 0; i < some; i++) {
                        floats[i * width + output] = values[i];
                    }
                }
                case BF16 -> {
                    int lanes = width / 2;
                    int lane = 2 * (output % lanes) + output / lanes;
                    for (int i = 0; i < some; i++) {
                        halves[i * width + lane] = bits(values[i]);
                    }
                }
                case FP16 -> {
                    for (int i = 0; i < some; i++) {
                        halves[i * width + output] = Float.floatToFloat16(values[i]);
                    }
                }
                case BF16_PAIRS -> {
                    for (int i = 0; i < some; i += 2) {
                        halves[i * width + 2 * output] = bits(values[i]);
                        halves[i * width + 2 * output + 1] = bits(values[i + 1]);
                    }
                }
                case INT8 -> {
                    for (int i = 0; i < some; i++) {
                        bytes[i * width + output] = quantized(values[i], scaleOf[output]);
                    }
                }
                case INT8_PAIRS -> {
                    for (int i = 0; i < some; i += 2) {
                        bytes[i * width + 2 * output] = quantized(values[i], scaleOf[output]);
                        bytes[i * width + 2 * output + 1] = quantized(values[i + 1], scaleOf[output]);
                    }
                }
                case MXFP4_PAIRS -> {
                    for (int i = 0; i < some && fits; i += Mxfp4Panels.INPUTS) {
                        if (!Mxfp4Panels.put(values, i, bytes, Math.toIntExact(type.bytes(i, width)), output)) {
                            fits = false;
                        }
                    }
                }
            }
        }

        private static short bits(float bf16) {
            return (short) (Float.floatToRawIntBits(bf16) >>> 16);
        }

        private static byte quantized(float weight, float scale) {
            return (byte) Math.rint(weight / scale);
        }

        private void store(long start, int some) {
            int count = some * width;
            switch (type) {
                case FP32 -> MemorySegment.copy(floats, 0, panels, ValueLayout.JAVA_FLOAT, start, count);
                case BF16, BF16_PAIRS, FP16 ->
                    MemorySegment.copy(halves, 0, panels, ValueLayout.JAVA_SHORT, start, count);
                case INT8, INT8_PAIRS, MXFP4_PAIRS ->
                    MemorySegment.copy(
                            bytes, 0, panels, ValueLayout.JAVA_BYTE, start, Math.toIntExact(type.bytes(some, width)));
            }
        }
    }
}
