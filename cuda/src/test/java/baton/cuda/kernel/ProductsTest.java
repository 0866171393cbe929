package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.kv.DType;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Products of each kernel beside sums in fp64. */
class ProductsTest {
    private final Random random = new Random(7);

    @AutoClose
    private final TestDevice device = new TestDevice();

    /** A product with its operands. */
    private record Case(DType type, int rows, int outputs, int inputs, float[] weights, float[] in) {
        static Case of(Random random, DType type, int rows, int outputs, int inputs) {
            return new Case(
                    type,
                    rows,
                    outputs,
                    inputs,
                    TestDevice.numbers(random, type, outputs * inputs),
                    TestDevice.numbers(random, type, rows * inputs));
        }

        void check(float[] results, float[] added, float[] bias) {
            for (int row = 0; row < rows; row++) {
                for (int output = 0; output < outputs; output++) {
                    double sum = bias.length == 0 ? 0 : bias[output];
                    double magnitude = Math.abs(sum);
                    sum += added.length == 0 ? 0 : added[row * outputs + output];
                    for (int i = 0; i < inputs; i++) {
                        double product = (double) weights[output * inputs + i] * in[row * inputs + i];
                        sum += product;
                        magnitude += Math.abs(product);
                    }
                    assertThat(results[row * outputs + output])
                            .as("row %d, output %d of %s", row, output, this)
                            .isCloseTo((float) sum, within((float) (magnitude * 1e-6 + 1e-6)));
                }
            }
        }

        @Override
        public String toString() {
            return "%s %d x %d x %d".formatted(type, rows, outputs, inputs);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "BF16, 1, 1, 8",
        "BF16, 1, 17, 264",
        "BF16, 1, 17, 2568",
        "F16, 12, 5, 2568",
        "F16, 1, 40, 1032",
        "BF16, 3, 33, 520",
        "F16, 8, 16, 1024",
        "BF16, 9, 5, 72",
        "BF16, 17, 70, 200",
        "F16, 40, 33, 136",
        "BF16, 2, 8450, 16",
        "BF16, 12, 8450, 16",
        "BF16, 30, 8450, 16",
        "BF16, 65, 65, 72",
        "F16, 70, 130, 712",
        "BF16, 150, 3, 8",
        "BF16, 2, 5, 33",
        "F16, 37, 70, 7",
        "F32, 1, 70, 100",
        "F32, 4, 64, 32",
        "F32, 37, 129, 45",
        "F32, 5, 1, 1",
    })
    void areThoseInFp64(DType type, int rows, int outputs, int inputs) {
        Case some = Case.of(random, type, rows, outputs, inputs);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            float[] bias = TestDevice.numbers(random, DType.F32, outputs);
            float[] added = TestDevice.numbers(random, DType.F32, rows * outputs);
            DeviceRows weights = device.put(type, outputs, 1, inputs, some.weights);
            DeviceRows in = device.put(type, rows, 1, inputs, some.in);

            DeviceRows out = device.room(DType.F32, rows, 1, outputs);
            Weight plain = new Weight(weights.address(), type, outputs, inputs, 0);
            kernels.products().product(device.stream(), plain, in, out, false);
            some.check(device.floats(out), new float[0], new float[0]);

            DeviceRows sums = device.put(DType.F32, rows, 1, outputs, added);
            Weight biased = new Weight(weights.address(), type, outputs, inputs, device.put(bias));
            kernels.products().product(device.stream(), biased, in, sums, true);
            some.check(device.floats(sums), added, bias);
        }
    }

    /** Enough blocks to take the tiles of 128 outputs and 128 rows. */
    @Test
    void largeTiles() {
        Case some = Case.of(random, DType.BF16, 10 * 128 + 3, 12 * 128 - 5, 136);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.BF16)) {
            DeviceRows weights = device.put(DType.BF16, some.outputs, 1, some.inputs, some.weights);
            DeviceRows in = device.put(DType.BF16, some.rows, 1, some.inputs, some.in);
            DeviceRows out = device.room(DType.F32, some.rows, 1, some.outputs);
            Weight weight = new Weight(weights.address(), DType.BF16, some.outputs, some.inputs, 0);
            kernels.products().product(device.stream(), weight, in, out, false);
            some.check(device.floats(out), new float[0], new float[0]);
            // The first rows alone, by other kernels.
            assertFirstRowsAreTheSame(kernels, weight, in, device.floats(out), 1, 70);
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"BF16", "F16", "F32"})
    void aRowsResultDoesNotDependOnTheRowsBesideIt(DType type) {
        int rows = 100;
        Case some = Case.of(random, type, rows, 50, 1160);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            DeviceRows weights = device.put(type, some.outputs, 1, some.inputs, some.weights);
            DeviceRows in = device.put(type, rows, 1, some.inputs, some.in);
            DeviceRows out = device.room(DType.F32, rows, 1, some.outputs);
            Weight weight = new Weight(weights.address(), type, some.outputs, some.inputs, 0);
            kernels.products().product(device.stream(), weight, in, out, false);
            assertFirstRowsAreTheSame(kernels, weight, in, device.floats(out), 1, 9, 30, 64);
        }
    }

    private void assertFirstRowsAreTheSame(
            GpuKernels kernels, Weight weight, DeviceRows in, float[] all, int... counts) {
        for (int count : counts) {
            DeviceRows out = device.room(DType.F32, count, 1, weight.outputs());
            kernels.products().product(device.stream(), weight, in.rows(0, count), out, false);
            assertThat(device.floats(out)).isEqualTo(Arrays.copyOf(all, count * weight.outputs()));
        }
    }

    /** Heads lie between others in the rows of inputs and of results. */
    @ParameterizedTest
    @CsvSource({"BF16, 1, 16, 40", "BF16, 20, 33, 16", "F16, 70, 24, 72", "F32, 5, 7, 12", "BF16, 3, 5, 9"})
    void ofHeads(DType type, int rows, int outputs, int inputs) {
        int heads = 3;
        int width = heads * (inputs + 8);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            Case[] all = new Case[heads];
            long[] addresses = new long[heads];
            float[] wide = TestDevice.numbers(random, type, rows * width);
            for (int head = 0; head < heads; head++) {
                all[head] = Case.of(random, type, rows, outputs, inputs);
                addresses[head] =
                        device.put(type, outputs, 1, inputs, all[head].weights).address();
                for (int row = 0; row < rows; row++) {
                    System.arraycopy(all[head].in, row * inputs, wide, row * width + head * (inputs + 8), inputs);
                }
            }
            Weight weights = new Weight(device.put(addresses), type, outputs, inputs, 0);
            DeviceRows in = device.put(type, rows, 1, width, wide)
                    .heads(heads, inputs + 8)
                    .columns(0, inputs);
            DeviceRows out = device.room(DType.F32, rows, 1, heads * outputs);
            kernels.products().productOfHeads(device.stream(), weights, in, out.heads(heads, outputs));
            float[] results = device.floats(out);
            for (int head = 0; head < heads; head++) {
                float[] own = new float[rows * outputs];
                for (int row = 0; row < rows; row++) {
                    System.arraycopy(results, (row * heads + head) * outputs, own, row * outputs, outputs);
                }
                all[head].check(own, new float[0], new float[0]);
            }
        }
    }

    /** Rows are some columns of others, and results go into some columns of others. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"BF16", "F32"})
    void rowsMayHaveGaps(DType type) {
        int inputs = 40;
        int outputs = 24;
        Case some = Case.of(random, type, 3, outputs, inputs);
        float[] wide = TestDevice.numbers(random, type, 3 * 72);
        float[] before = TestDevice.numbers(random, DType.F32, 3 * 72);
        for (int row = 0; row < 3; row++) {
            System.arraycopy(some.in, row * inputs, wide, row * 72 + 16, inputs);
        }
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            DeviceRows weights = device.put(type, outputs, 1, inputs, some.weights);
            DeviceRows in = device.put(type, 3, 1, 72, wide).columns(16, inputs);
            DeviceRows all = device.put(DType.F32, 3, 1, 72, before);
            Weight weight = new Weight(weights.address(), type, outputs, inputs, 0);
            kernels.products().product(device.stream(), weight, in, all.columns(7, outputs), false);
            float[] after = device.floats(all);
            float[] results = new float[3 * outputs];
            for (int row = 0; row < 3; row++) {
                System.arraycopy(after, row * 72 + 7, results, row * outputs, outputs);
                System.arraycopy(after, row * 72 + 7, before, row * 72 + 7, outputs);
            }
            some.check(results, new float[0], new float[0]);
            assertThat(after).isEqualTo(before);
        }
    }
}
