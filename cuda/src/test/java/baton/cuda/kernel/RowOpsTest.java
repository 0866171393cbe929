package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Plain.Function;
import baton.kv.DType;
import java.util.Random;
import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Functions of rows beside the same in fp64. */
class RowOpsTest {
    private final Random random = new Random(5);

    @AutoClose
    private final TestDevice device = new TestDevice();

    private static void assertClose(float[] results, DType type, double[] expected) {
        // Half a unit in the last place, and the error of fp32 before it is rounded.
        double ofType = switch (type) {
            case BF16 -> 0x1p-8;
            case F16 -> 0x1p-11;
            default -> 0;
        };
        assertThat(results).hasSameSizeAs(expected);
        for (int i = 0; i < results.length; i++) {
            double error = Math.abs(expected[i]) * (ofType + 2e-6) + 1e-6;
            assertThat((double) results[i]).as("element %d", i).isCloseTo(expected[i], within(error));
        }
    }

    private float[] numbers(DType type, int count, float factor) {
        float[] numbers = TestDevice.numbers(random, type, count);
        for (int i = 0; i < count; i++) {
            numbers[i] *= factor;
        }
        return numbers;
    }

    @ParameterizedTest
    @CsvSource({
        "BF16, BF16, 3, 20",
        "BF16, F32, 2, 7",
        "F16, F32, 1, 64",
        "F32, F32, 5, 33",
        "F32, F32, 1, 1024",
    })
    void embeddingsAndGatheredRows(DType computed, DType to, int rows, int columns) {
        float[] table = TestDevice.numbers(random, computed, 9 * columns);
        int[] ids = random.ints(rows, 0, 9).toArray();
        try (GpuKernels kernels = new GpuKernels(device.gpu(), computed)) {
            DeviceRows all = device.put(computed, 9, 1, columns, table);
            DeviceRows x = device.room(to, rows, 1, columns);
            kernels.rows().embed(device.stream(), device.put(ids), all, 1.5f, x);
            assertClose(
                    device.floats(x),
                    to,
                    IntStream.range(0, rows * columns)
                            .mapToDouble(i -> 1.5 * table[ids[i / columns] * columns + i % columns])
                            .toArray());
            DeviceRows same = device.room(computed, rows, 1, columns);
            kernels.rows().gather(device.stream(), all, device.put(ids), same);
            float[] gathered = device.floats(same);
            for (int i = 0; i < gathered.length; i++) {
                assertThat(gathered[i]).isEqualTo(table[ids[i / columns] * columns + i % columns]);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "F32, F32, 1, 1, 48, false, false", "F32, BF16, 3, 1, 2048, false, false", "BF16, BF16, 2, 3, 64, false, true",
        "F32, F16, 5, 1, 1000, true, true", "F32, F32, 2, 5, 7, true, false", "F32, F32, 9, 2, 128, false, false",
        "F32, F32, 1, 1, 515, true, true",
    })
    void norms(DType from, DType to, int rows, int heads, int columns, boolean centered, boolean biased) {
        float[] in = TestDevice.numbers(random, from, rows * heads * columns);
        float[] weights = TestDevice.numbers(random, DType.F32, columns);
        float[] bias = TestDevice.numbers(random, DType.F32, columns);
        double[] expected = new double[in.length];
        for (int start = 0; start < in.length; start += columns) {
            double mean = centered
                    ? IntStream.range(start, start + columns)
                            .mapToDouble(i -> in[i])
                            .average()
                            .orElseThrow()
                    : 0;
            double square = IntStream.range(start, start + columns)
                    .mapToDouble(i -> (in[i] - mean) * (in[i] - mean))
                    .average()
                    .orElseThrow();
            for (int i = 0; i < columns; i++) {
                expected[start + i] =
                        (in[start + i] - mean) / Math.sqrt(square + 1e-5) * weights[i] + (biased ? bias[i] : 0);
            }
        }
        try (GpuKernels kernels = new GpuKernels(device.gpu(), to == DType.F32 ? from : to)) {
            DeviceRows source = device.put(from, rows, heads, columns, in);
            DeviceRows target = device.room(to, rows, heads, columns);
            long weight = device.put(weights);
            long added = biased ? device.put(bias) : 0;
            kernels.rows().norm(device.stream(), source, weight, added, 1e-5, centered, target);
            assertClose(device.floats(target), to, expected);
            if (from == to) {
                kernels.rows().norm(device.stream(), source, weight, added, 1e-5, centered, source);
                assertThat(device.floats(source)).isEqualTo(device.floats(target));
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "F32, F32, 1, 2, 16, 16, false",
        "F32, BF16, 3, 5, 24, 12, false",
        "BF16, BF16, 2, 1, 64, 64, true",
        "F32, F16, 4, 3, 20, 8, true",
        "F32, F32, 7, 4, 128, 128, false",
    })
    void rotations(DType from, DType to, int rows, int heads, int columns, int rotated, boolean neighbours) {
        int pairs = rotated / 2;
        float[] in = TestDevice.numbers(random, from, rows * heads * columns);
        float[] table = TestDevice.numbers(random, DType.F32, 11 * rotated);
        int[] positions = random.ints(rows, 0, 11).toArray();
        double[] expected =
                IntStream.range(0, in.length).mapToDouble(i -> in[i]).toArray();
        for (int head = 0; head < rows * heads; head++) {
            for (int pair = 0; pair < pairs; pair++) {
                int x = head * columns + (neighbours ? 2 * pair : pair);
                int y = x + (neighbours ? 1 : pairs);
                int angle = positions[head / heads] * rotated + pair;
                double cosine = table[angle];
                double sine = table[angle + pairs];
                expected[x] = in[x] * cosine - in[y] * sine;
                expected[y] = in[y] * cosine + in[x] * sine;
            }
        }
        try (GpuKernels kernels = new GpuKernels(device.gpu(), to == DType.F32 ? from : to)) {
            DeviceRows source = device.put(from, rows, heads, columns, in);
            DeviceRows target = device.room(to, rows, heads, columns);
            long at = device.put(positions);
            long angles = device.put(table);
            kernels.rows().rotate(device.stream(), source, at, angles, rotated, neighbours, target);
            assertClose(device.floats(target), to, expected);
            if (from == to) {
                kernels.rows().rotate(device.stream(), source, at, angles, rotated, neighbours, source);
                assertThat(device.floats(source)).isEqualTo(device.floats(target));
            }
        }
    }

    private static double sigmoid(double x) {
        return 1 / (1 + Math.exp(-x));
    }

    private static double gelu(double x) {
        return x * sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x));
    }

    private static DoubleBinaryOperator function(Activation kind) {
        return switch (kind) {
            case SILU -> (gate, up) -> gate * sigmoid(gate) * up;
            case GELU_TANH -> (gate, up) -> gelu(gate) * up;
            case CLAMPED_SWIGLU ->
                (gate, up) -> {
                    double below = Math.min(gate, 7);
                    return below * sigmoid(1.702 * below) * (1 + Math.clamp(up, -7, 7));
                };
        };
    }

    @ParameterizedTest
    @EnumSource(Activation.class)
    void activations(Activation kind) {
        for (DType to : new DType[] {DType.F16, DType.F32}) {
            for (int columns : new int[] {24, 13}) {
                float[] gate = numbers(DType.F32, 3 * columns, 12);
                float[] up = numbers(DType.F32, 3 * columns, 12);
                gate[5] = Float.NaN;
                up[6] = Float.NaN;
                try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.F16)) {
                    DeviceRows result = device.room(to, 3, 1, columns);
                    DeviceRows left = device.put(DType.F32, 3, 1, columns, gate);
                    DeviceRows right = device.put(DType.F32, 3, 1, columns, up);
                    kernels.rows().activate(device.stream(), left, right, kind, result);
                    float[] results = device.floats(result);
                    assertThat(results[5]).isNaN();
                    assertThat(results[6]).isNaN();
                    results[5] = 0;
                    results[6] = 0;
                    double[] expected = IntStream.range(0, gate.length)
                            .mapToDouble(i -> function(kind).applyAsDouble(gate[i], up[i]))
                            .toArray();
                    expected[5] = 0;
                    expected[6] = 0;
                    assertClose(results, to, expected);
                }
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Function.class)
    void functions(Function kind) {
        DoubleUnaryOperator expected = switch (kind) {
            case GELU_TANH -> RowOpsTest::gelu;
            case RELU_SQUARED -> x -> x < 0 ? 0 : x * x;
        };
        float[] up = numbers(DType.F32, 5 * 24, 9);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.BF16)) {
            DeviceRows in = device.put(DType.F32, 5, 1, 24, up);
            DeviceRows out = device.room(DType.BF16, 5, 1, 24);
            kernels.rows().function(device.stream(), in, kind, out);
            assertClose(
                    device.floats(out),
                    DType.BF16,
                    IntStream.range(0, up.length)
                            .mapToDouble(i -> expected.applyAsDouble(up[i]))
                            .toArray());
        }
    }

    @ParameterizedTest
    @CsvSource({"BF16, 24", "F32, 7", "F16, 260"})
    void sums(DType type, int columns) {
        float[] before = TestDevice.numbers(random, DType.F32, 3 * columns);
        float[] addend = TestDevice.numbers(random, type, 3 * columns);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            DeviceRows x = device.put(DType.F32, 3, 1, columns, before);
            kernels.rows().add(device.stream(), device.put(type, 3, 1, columns, addend), 0.25f, x);
            assertClose(
                    device.floats(x),
                    DType.F32,
                    IntStream.range(0, before.length)
                            .mapToDouble(i -> before[i] + 0.25 * addend[i])
                            .toArray());
        }
    }

    /** Between heads of different strides. */
    @ParameterizedTest
    @CsvSource({"BF16, 8", "F16, 5"})
    void conversions(DType type, int columns) {
        float[] numbers = numbers(DType.F32, 2 * 3 * columns, 1000);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            DeviceRows from = device.put(DType.F32, 2, 3, columns, numbers);
            DeviceRows wide = device.put(type, 2, 3, 2 * columns, new float[2 * 3 * 2 * columns]);
            DeviceRows left = new DeviceRows(wide.address(), type, 2, wide.rowStride(), 3, 2L * columns, columns);
            DeviceRows back = device.room(DType.F32, 2, 3, columns);
            kernels.rows().convert(device.stream(), from, left);
            kernels.rows().convert(device.stream(), left, back);
            float[] rounded = device.floats(back);
            assertClose(
                    rounded,
                    type,
                    IntStream.range(0, numbers.length)
                            .mapToDouble(i -> numbers[i])
                            .toArray());
            float[] all = device.floats(wide);
            for (int i = 0; i < all.length; i++) {
                boolean written = i % (2 * columns) < columns;
                assertThat(all[i]).isEqualTo(written ? rounded[i / (2 * columns) * columns + i % (2 * columns)] : 0);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"1, 30", "0.5, 0", "0.125, 50"})
    void scaledAndCappedLogits(float factor, float cap) {
        float[] logits = numbers(DType.F32, 2 * 37, 90);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.F32)) {
            DeviceRows rows = device.put(DType.F32, 2, 1, 37, logits);
            kernels.rows().scaleAndCap(device.stream(), rows, factor, cap);
            double[] expected = IntStream.range(0, logits.length)
                    .mapToDouble(i -> cap == 0 ? logits[i] * factor : cap * Math.tanh(logits[i] * factor / cap))
                    .toArray();
            float[] results = device.floats(rows);
            for (int i = 0; i < results.length; i++) {
                assertThat((double) results[i]).isCloseTo(expected[i], within(1e-6 * Math.max(cap, 1) + 1e-6));
            }
        }
    }
}
