package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.KernelChoice.Kind;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.ModelFingerprint;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Quantised weights against plain arithmetic, and a KV cache of another type than that of computation. */
class Int8Test {
    @TempDir
    Path directory;

    @Tag("named-kernels")
    @ParameterizedTest(name = "{0}: {1} rows, [{2}, {3}] of {4}")
    @CsvSource({
        "AMX, 1, 300, 256, BF16",
        "AMX, 300, 4096, 64, BF16",
        "AMX, 300, 64, 4096, BF16",
        "AVX512_BF16, 1, 300, 256, BF16",
        "AVX512_BF16, 5, 37, 104, BF16",
        "AVX512_BF16, 5, 37, 101, BF16",
        "AVX512_BF16, 300, 64, 4096, BF16",
        "AVX512, 1, 300, 256, BF16",
        "AVX512, 5, 37, 101, F32",
        "AVX512, 300, 64, 4096, BF16",
        "AVX2, 1, 300, 256, BF16",
        "AVX2, 5, 37, 101, F32",
        "AVX2, 300, 64, 4096, BF16"
    })
    void multipliesAsPlainArithmeticDoes(Kind kind, int rows, int outputs, int inputs, DType dtype) {
        ModelKernelsOf.requireProcessor(kind);
        Random random = new Random(17);
        try (Arena arena = Arena.ofShared();
                Owned owned = new Owned();
                ModelKernels kernels =
                        new KernelChoice(kind, List.of()).make(dtype, Quantization.INT8, 1, arena, owned);
                RowMemory.Scope _ = kernels.scope()) {
            DType type = kernels.activations();
            double resolution = kernels.activations() == DType.F32 ? 1e-6 : 1 / 256.0;
            float[] matrix = random(random, outputs * inputs, 0.02);
            Arrays.fill(matrix, inputs, 2 * inputs, 0);
            float[] x = random(random, rows * inputs, 1);
            // An outlier takes resolution from its row alone.
            x[0] = 60;
            float[] before = random(random, rows * outputs, 1);
            Matrix weights = matrix(matrix, dtype, outputs, inputs, arena);
            // Kernels that multiply in bf16 round the rows; these are in bf16 already.
            float[] exactX = floats(matrix(x, dtype, rows, inputs, arena));
            Matrix activations = kernels.asInputs(matrix(exactX, type, rows, inputs, arena));
            float[] exactMatrix = floats(weights);
            Linear quantized = kernels.linear(List.of(weights), Optional.empty());
            float[] product = floats(quantized.apply(activations));
            Matrix sum = matrix(before, type, rows, outputs, arena);
            float[] exactBefore = floats(sum);
            quantized.addTo(sum, activations);
            float[] added = floats(sum);
            double[] quantizedMatrix = new double[outputs * inputs];
            double[] magnitudes = new double[outputs];
            float[] scales = new float[outputs];
            for (int out = 0; out < outputs; out++) {
                // In fp32, as a weight is rounded: it may be near a tie.
                scales[out] = (float) (largest(exactMatrix, out, inputs) / 127);
                for (int at = out * inputs; at < (out + 1) * inputs; at++) {
                    quantizedMatrix[at] = scales[out] == 0 ? 0 : scales[out] * Math.rint(exactMatrix[at] / scales[out]);
                    magnitudes[out] += Math.abs(quantizedMatrix[at]);
                }
            }
            for (int row = 0; row < rows; row++) {
                double largest = largest(exactX, row, inputs);
                for (int out = 0; out < outputs; out++) {
                    double expected = 0;
                    for (int i = 0; i < inputs; i++) {
                        expected += quantizedMatrix[out * inputs + i] * exactX[row * inputs + i];
                    }
                    // Half a step of the second plane for each activation, and half a step of a weight where it is a
                    // tie.
                    double bound = magnitudes[out] * largest / (127 * 127) + 2 * scales[out] * resolution + 1e-6;
                    int at = row * outputs + out;
                    double total = expected + exactBefore[at];
                    // Millions of numbers: only one that is wrong is worth an assertion's time.
                    if (!(Math.abs(product[at] - expected) <= bound + resolution * Math.abs(expected))
                            || !(Math.abs(added[at] - total) <= bound + resolution * Math.abs(total))) {
                        assertThat((double) product[at])
                                .as("row %d output %d", row, out)
                                .isCloseTo(expected, within(bound + resolution * Math.abs(expected)));
                        assertThat((double) added[at]).isCloseTo(total, within(bound + resolution * Math.abs(total)));
                    }
                }
            }
        }
    }

    @Test
    void weightsTakeHalfTheMemory() throws IOException {
        ModelConfig config = new ModelConfig(
                "wide", 128, 512, 2048, 2, 8, 8, 64, 64, 1e-5, 10000, Optional.empty(), false, DType.BF16);
        RandomCheckpoint.write(directory, config, 3);
        try (Checkpoint checkpoint = Checkpoint.open(directory);
                DecoderRunner dense = load(checkpoint, DType.BF16, Quantization.NONE, DType.BF16, 8);
                DecoderRunner int8 = load(checkpoint, DType.BF16, Quantization.INT8, DType.BF16, 8)) {
            assertThat(dense.weightBytes()).isGreaterThanOrEqualTo(2 * config.parameters());
            assertThat((double) int8.weightBytes() / dense.weightBytes()).isBetween(0.48, 0.54);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"qwen2-moe", "gpt-oss"})
    void quantisedExpertsComputeNearlyTheSame(String name) throws Exception {
        SequenceSlice slice = new SequenceSlice(
                new Random(3).ints(96, 0, 192).toArray(),
                0,
                IntStream.range(0, 6).toArray(),
                1);
        try (Checkpoint checkpoint = Checkpoint.open(FamiliesTest.checkpoint(name));
                DecoderRunner dense = load(checkpoint, DType.F32, Quantization.NONE, DType.F32, 8);
                DecoderRunner int8 = load(checkpoint, DType.F32, Quantization.INT8, DType.F32, 8)) {
            float[] expected = last(dense, slice);
            float[] actual = last(int8, slice);
            double error = 0;
            double spread = 0;
            for (int id = 0; id < expected.length; id++) {
                error += Math.pow(actual[id] - expected[id], 2);
                spread += Math.pow(expected[id], 2);
            }
            assertThat(Math.sqrt(error / spread)).isBetween(1e-4, 0.1);
        }
    }

    /** Different ways to compute the same model must not take over one another's keys and values. */
    @Test
    void fingerprintsTellTheWaysToComputeApart() throws IOException {
        Set<ModelFingerprint> fingerprints = new HashSet<>();
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            for (DType dtype : List.of(DType.BF16, DType.F32)) {
                for (Quantization quantization : Quantization.values()) {
                    for (int again = 0; again < 2; again++) {
                        try (DecoderRunner runner = load(checkpoint, dtype, quantization, DType.BF16, 8)) {
                            fingerprints.add(runner.fingerprint());
                        }
                    }
                }
            }
        }
        assertThat(fingerprints).hasSize(4);
    }

    /**
     * Which tokens are computed in the same step does not matter: attention sees the keys and values as they are cached. In fp32 over
     * a bf16 cache the logits would differ by about 0.1 if a first chunk attended to its keys before they are rounded.
     */
    @ParameterizedTest(name = "computed in {0}, {1}, cached in {2}")
    @CsvSource({"F32, NONE, BF16, 0.01", "F32, NONE, F32, 0.001", "F32, INT8, F32, 0.02", "BF16, NONE, F32, 0.5"})
    void chunksDoNotChangeTheLogits(DType dtype, Quantization quantization, DType cached, double tolerance)
            throws IOException {
        int[] tokens = new Random(3).ints(96, 5, 2048).toArray();
        int[] table = IntStream.range(0, 6).toArray();
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER);
                DecoderRunner runner = load(checkpoint, dtype, quantization, cached, 8)) {
            float[] whole = last(runner, new SequenceSlice(tokens, 0, table, 1));
            float[] chunked = {};
            for (int start = 0; start < 96; start += 24) {
                chunked =
                        last(runner, new SequenceSlice(Arrays.copyOfRange(tokens, start, start + 24), start, table, 1));
            }
            double worst = 0;
            for (int id = 0; id < whole.length; id++) {
                worst = Math.max(worst, Math.abs(whole[id] - chunked[id]));
            }
            System.out.printf("%s %s over %s: logits differ by %.2g%n", dtype, quantization, cached, worst);
            assertThat(worst).isLessThan(tolerance);
        }
    }

    private static float[] last(ModelRunner runner, SequenceSlice slice) {
        try (Logits logits = runner.forward(List.of(slice), LayerHooks.NONE)) {
            return logits.row(0).toArray(ValueLayout.JAVA_FLOAT);
        }
    }

    private static DecoderRunner load(
            Checkpoint checkpoint, DType dtype, Quantization quantization, DType cached, int blocks)
            throws IOException {
        return (DecoderRunner) CpuModels.load(
                checkpoint,
                dtype,
                quantization,
                checkpoint.config().kvLayout(16, cached),
                blocks,
                OptionalInt.of(1),
                Math.min(128, checkpoint.config().maxPositions()));
    }

    private static double largest(float[] values, int row, int length) {
        double largest = 0;
        for (int i = row * length; i < (row + 1) * length; i++) {
            largest = Math.max(largest, Math.abs(values[i]));
        }
        return largest;
    }

    private static float[] random(Random random, int length, double deviation) {
        float[] values = new float[length];
        for (int i = 0; i < length; i++) {
            values[i] = (float) (random.nextGaussian() * deviation);
        }
        return values;
    }

    private static Matrix matrix(float[] values, DType type, int rows, int columns, Arena arena) {
        Matrix matrix = Matrix.dense(arena.allocate((long) rows * columns * type.bytes(), 64), rows, columns, type);
        Matrix.dense(MemorySegment.ofArray(values), rows, columns, DType.F32).convert(matrix, ParallelFor.alone());
        return matrix;
    }

    private static float[] floats(Matrix matrix) {
        float[] values = new float[matrix.rows() * matrix.columns()];
        matrix.convert(
                Matrix.dense(MemorySegment.ofArray(values), matrix.rows(), matrix.columns(), DType.F32),
                ParallelFor.alone());
        return values;
    }
}
