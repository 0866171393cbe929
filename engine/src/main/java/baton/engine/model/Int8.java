package baton.engine.model;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Weights as 8-bit integers with one scale for each output channel: {@code weight[o, i] ~ scale[o] * q[o, i]}, q from -127 to 127.
 */
final class Int8 {
    private static final double LEVELS = 127;

    /** Stands for the largest magnitude of zeros. */
    private static final double SMALLEST = 1e-30;

    /** Rows of a matrix that are quantised together, so that what that takes beside stays small. */
    private static final int QUANTIZED_ROWS = 4096;

    private Int8() {}

    /** Rounds a matrix [out, in] into {@code quantized}, of as many integers, and {@code scales}, [out]. */
    static void quantize(Tensor matrix, Tensor quantized, Tensor scales) {
        long outputs = matrix.size(0);
        for (long first = 0; first < outputs; first += QUANTIZED_ROWS) {
            try (PointerScope _ = new PointerScope()) {
                long rows = Math.min(QUANTIZED_ROWS, outputs - first);
                Tensor part = matrix.narrow(0, first, rows);
                Tensor scale = largest(part).div(new Scalar(LEVELS));
                quantized.narrow(0, first, rows).copy_(part.div(scale).round_());
                scales.narrow(0, first, rows).copy_(scale.view(rows));
            }
        }
    }

    /** The largest magnitude of each row, [rows, 1] in fp32, and not zero. */
    private static Tensor largest(Tensor rows) {
        try (ScalarTypeOptional type = new ScalarTypeOptional(ScalarType.Float)) {
            return torch.linalg_vector_norm(rows, new Scalar(Double.POSITIVE_INFINITY), new long[] {1}, true, type)
                    .clamp_min_(new Scalar(SMALLEST));
        }
    }
}
