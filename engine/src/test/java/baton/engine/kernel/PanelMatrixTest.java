package baton.engine.kernel;

import static baton.engine.kernel.TestKernels.FLOAT;
import static baton.engine.kernel.TestKernels.TWO_THREADS;
import static baton.engine.kernel.TestKernels.floats;
import static baton.engine.kernel.TestKernels.numbers;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Products with weights in panels equal products in fp64, whatever the widths, types, and numbers of rows. */
class PanelMatrixTest {
    private static final long SEED = Long.getLong("tests.seed", 7);

    /** One row, numbers around those that registers hold, and that weights are used as they are for, and some blocks. */
    private static final int[] ROWS = {
        1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 28, 29, 32, 33, 42, 43, 60, 61, 130, 140, 141, 300, 600
    };

    /** The number of elements behind the outputs and inputs of a row, which are not to be touched. */
    private static final int GAP = 3;

    @ParameterizedTest(name = "{0}, {1}, {2} outputs, {3} inputs")
    @CsvSource({
        "YMM, FP32, 70, 301",
        "YMM, BF16, 70, 301",
        "YMM, FP16, 70, 301",
        "YMM, INT8, 70, 301",
        "YMM, BF16, 16, 5",
        "YMM, INT8, 150, 301",
        "YMM, INT8, 672, 3",
        "YMM, BF16, 20, 9001",
        "ZMM, FP32, 300, 301",
        "ZMM, BF16, 300, 301",
        "ZMM, FP16, 300, 301",
        "ZMM, FP16, 40, 4001",
        "ZMM, INT8, 300, 301",
        "ZMM, BF16, 672, 7",
        "ZMM, INT8, 70, 5",
        "ZMM, BF16, 40, 4001",
        "ZMM, BF16_PAIRS, 300, 320",
        "ZMM, BF16_PAIRS, 70, 256",
        "ZMM, BF16_PAIRS, 672, 32",
        "ZMM, BF16_PAIRS, 70, 544",
        "ZMM, INT8_PAIRS, 300, 320",
        "ZMM, INT8_PAIRS, 70, 256",
        "ZMM, INT8_PAIRS, 672, 32",
        "ZMM, INT8_PAIRS, 70, 544",
        "AMX, BF16_PAIRS, 300, 320",
        "AMX, BF16_PAIRS, 70, 256",
        "AMX, BF16_PAIRS, 672, 32",
        "AMX, INT8_PAIRS, 300, 320",
        "AMX, INT8_PAIRS, 70, 544",
        "AMX, BF16, 300, 301",
        "AMX, INT8, 70, 5"
    })
    void productsEqualThoseInFp64(String kind, WeightType type, int outputs, int inputs) {
        Kernels kernels = TestKernels.named(kind, type);
        Random random = new Random(SEED);
        try (Arena arena = Arena.ofShared()) {
            Weights weights = new Weights(kernels, type, outputs, inputs, random, arena);
            Weights gateWeights = new Weights(kernels, type, outputs, inputs, random, arena);
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, TWO_THREADS.size(), arena);
            PanelMatrix matrix = weights.matrix(kernels, type, scratch);
            PanelMatrix gate = gateWeights.matrix(kernels, type, scratch);
            int most = Arrays.stream(ROWS).max().orElseThrow();
            float[] a = numbers(random, most * (inputs + GAP));
            double[] products = weights.products(type.inPairs() ? rounded(a) : a, most);
            double[] gates = gateWeights.products(type.inPairs() ? rounded(a) : a, most);
            double[] silu = Arrays.stream(gates).map(Operation::silu).toArray();
            double[] gelu = Arrays.stream(gates).map(Operation::gelu).toArray();
            Rows inputRows = type.inPairs()
                    ? TestKernels.narrowRows(arena, a, inputs + GAP)
                    : TestKernels.rows(floats(arena, a), inputs + GAP);
            for (int rows : ROWS) {
                for (Operation operation : Operation.values()) {
                    if (operation.toBf16 && !type.inPairs()) {
                        continue;
                    }
                    float[] before = numbers(random, rows * (outputs + GAP));
                    Rows out = operation.out(arena, before, outputs + GAP);
                    operation.run(matrix, gate, inputRows, rows, out);
                    Rows last = operation.out(arena, before, outputs + GAP);
                    long lastRow = (rows - 1) * last.stride();
                    operation.run(matrix, gate, from(inputRows, rows - 1), 1, from(last, rows - 1));
                    assertThat(last.memory()
                                    .asSlice(lastRow)
                                    .mismatch(out.memory().asSlice(lastRow)))
                            .as("%s rows=%d, byte where the last row alone differs, seed %d", operation, rows, SEED)
                            .isEqualTo(-1);
                    float[] computed = TestKernels.elements(out);
                    for (int i = 0; i < before.length; i++) {
                        int column = i % (outputs + GAP);
                        float actual = computed[i];
                        if (column >= outputs) {
                            float untouched = operation.toBf16 ? TestKernels.bf16(before[i]) : before[i];
                            if (actual != untouched) {
                                assertThat(actual).as("behind a row").isEqualTo(untouched);
                            }
                            continue;
                        }
                        int place = i / (outputs + GAP) * outputs + column;
                        double expected = operation.expected(before[i], products[place], silu[place], gelu[place]);
                        // Sums of as many products, each rounded; one may be multiplied with the other.
                        double largest = Math.max(Math.abs(products[place]), Math.abs(gates[place]));
                        double tolerance = 1e-6
                                * Math.max(weights.largest, gateWeights.largest)
                                * Math.sqrt(inputs)
                                * (1 + Math.max(Math.abs(before[i]), 2 * largest));
                        double rounding = operation.toBf16 ? 1.0 / 256 : 1e-6;
                        double bound = tolerance + rounding * Math.abs(expected);
                        // Millions of numbers: only one that is wrong is worth an assertion's time.
                        if (!(Math.abs(actual - expected) <= bound)) {
                            assertThat((double) actual)
                                    .as("%s rows=%d at %d, seed %d", operation, rows, i, SEED)
                                    .isCloseTo(expected, within(bound));
                        }
                    }
                }
            }
        }
    }

    private static Rows from(Rows rows, int first) {
        return new Rows(rows.memory().asSlice(first * rows.stride()), rows.stride(), rows.type());
    }

    @ParameterizedTest(name = "{0}, {1}, the last {2} of {3} outputs")
    @CsvSource({
        "YMM, FP32, 32, 64",
        "YMM, BF16, 33, 70",
        "YMM, INT8, 40, 150",
        "ZMM, BF16, 1, 70",
        "ZMM, BF16_PAIRS, 64, 128",
        "ZMM, INT8_PAIRS, 40, 150",
        "AMX, BF16_PAIRS, 33, 70",
        "AMX, INT8_PAIRS, 70, 70"
    })
    void theLastOutputsAloneAreTheSameBits(String kind, WeightType type, int count, int outputs) {
        Kernels kernels = TestKernels.named(kind, type);
        Random random = new Random(SEED);
        int inputs = 64;
        try (Arena arena = Arena.ofShared()) {
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, TWO_THREADS.size(), arena);
            // Some of them with biases.
            for (int i = 0; i < 8; i++) {
                PanelMatrix matrix =
                        new Weights(kernels, type, outputs, inputs, random, arena).matrix(kernels, type, scratch);
                PanelMatrix last = matrix.last(count);
                int before = outputs - last.outputs();
                assertThat(before).isBetween(outputs - count - kernels.panelWidth() + 1, outputs - count);
                for (int rows : new int[] {1, 12, 300}) {
                    float[] a = numbers(random, rows * inputs);
                    Rows from = type.inPairs()
                            ? TestKernels.narrowRows(arena, a, inputs)
                            : TestKernels.rows(floats(arena, a), inputs);
                    Rows all = TestKernels.rows(floats(arena, new float[rows * outputs]), outputs);
                    Rows part = TestKernels.rows(floats(arena, new float[rows * last.outputs()]), last.outputs());
                    matrix.multiply(from, rows, all);
                    last.multiply(from, rows, part);
                    float[] ofAll = TestKernels.elements(all);
                    float[] ofPart = TestKernels.elements(part);
                    for (int row = 0; row < rows; row++) {
                        int start = row * outputs + before;
                        assertThat(Arrays.copyOfRange(ofPart, row * last.outputs(), (row + 1) * last.outputs()))
                                .as("%d rows, row %d", rows, row)
                                .isEqualTo(Arrays.copyOfRange(ofAll, start, start + last.outputs()));
                    }
                }
            }
        }
    }

    @Test
    void rowsOfAnotherTypeAreRefused() {
        Kernels kernels = TestKernels.kernels(Width.YMM);
        try (Arena arena = Arena.ofConfined()) {
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, 2, arena);
            PanelMatrix matrix = new Weights(kernels, WeightType.BF16, 20, 8, new Random(SEED), arena)
                    .matrix(kernels, WeightType.BF16, scratch);
            Rows out = TestKernels.rows(floats(arena, new float[20]), 20);
            Rows narrow = TestKernels.narrowRows(arena, new float[8], 8);
            assertThatThrownBy(() -> matrix.multiply(narrow, 1, out))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessage("rows: are BF16, products with BF16 take rows of F32");
            Rows rows = TestKernels.rows(floats(arena, new float[8]), 8);
            Rows narrowOut = TestKernels.narrowRows(arena, new float[20], 20);
            assertThatThrownBy(() -> matrix.add(rows, 1, narrowOut))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageStartingWith("out: is of BF16, which only products with a gate");
            assertThatThrownBy(() -> matrix.multiplyGated(matrix, Activation.SILU, rows, 1, narrowOut))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageStartingWith("out: is of BF16");
        }
    }

    @ParameterizedTest
    @CsvSource({"YMM", "ZMM"})
    void panelsOfAnotherSizeAreRefused(Width width) {
        Kernels kernels = TestKernels.kernels(width);
        try (Arena arena = Arena.ofConfined()) {
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, 1, arena);
            assertThatThrownBy(() -> new PanelMatrix(
                            kernels,
                            TWO_THREADS,
                            scratch,
                            new PanelMatrix.Weights(
                                    WeightType.BF16,
                                    arena.allocate(64),
                                    MemorySegment.NULL,
                                    MemorySegment.NULL,
                                    10,
                                    20)))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("panels: are 64 bytes, a matrix [10, 20] of BF16 has");
        }
    }

    @Test
    void aGateOfAnotherShapeIsRefused() {
        Kernels kernels = TestKernels.kernels(Width.YMM);
        Random random = new Random(SEED);
        try (Arena arena = Arena.ofConfined()) {
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, 2, arena);
            PanelMatrix matrix = new Weights(kernels, WeightType.FP32, 20, 8, random, arena)
                    .matrix(kernels, WeightType.FP32, scratch);
            PanelMatrix gate = new Weights(kernels, WeightType.FP32, 20, 4, random, arena)
                    .matrix(kernels, WeightType.FP32, scratch);
            Rows rows = TestKernels.rows(floats(arena, new float[20]), 20);
            assertThatThrownBy(() -> matrix.multiplyGated(gate, Activation.SILU, rows, 1, rows))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("gate: is [20, 4] of FP32, the matrix is [20, 8] of FP32");
        }
    }

    @Test
    void pairsOfAnOddNumberOfInputsAreRefused() {
        Kernels kernels = TestKernels.kernels(Width.ZMM);
        try (Arena arena = Arena.ofConfined()) {
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, 1, arena);
            assertThatThrownBy(() -> new PanelMatrix(
                            kernels,
                            TWO_THREADS,
                            scratch,
                            new PanelMatrix.Weights(
                                    WeightType.BF16_PAIRS,
                                    arena.allocate(PanelMatrix.bytes(kernels, WeightType.BF16_PAIRS, 32, 7)),
                                    MemorySegment.NULL,
                                    MemorySegment.NULL,
                                    32,
                                    7)))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("inputs: are 7");
        }
    }

    @ParameterizedTest
    @CsvSource({"ZMM, 70, 288", "ZMM, 300, 1056", "AMX, 70, 288", "AMX, 300, 1056"})
    void numbersOfMxfp4HaveTheProductsOfBf16(String kind, int outputs, int inputs) {
        Kernels kernels = TestKernels.named(kind, WeightType.MXFP4_PAIRS);
        Random random = new Random(SEED);
        int width = kernels.panelWidth();
        try (Arena arena = Arena.ofShared()) {
            byte[] packed =
                    new byte[Math.toIntExact(PanelMatrix.bytes(kernels, WeightType.MXFP4_PAIRS, outputs, inputs))];
            MemorySegment pairs =
                    arena.allocate(PanelMatrix.bytes(kernels, WeightType.BF16_PAIRS, outputs, inputs), 64);
            for (int i = 0; i < outputs * inputs / 32; i++) {
                int output = i % outputs;
                int block = i / outputs;
                int exponent = random.nextInt(40) - 30;
                float[] weights = new float[32];
                for (int input = 0; input < 32; input++) {
                    float magnitude = Mxfp4Panels.MAGNITUDES[random.nextInt(8)];
                    weights[input] = Math.scalb(random.nextBoolean() ? magnitude : -magnitude, exponent);
                    long pair = ((long) (output / width) * inputs + block * 32L + input / 2 * 2L) * width;
                    pairs.setAtIndex(
                            ValueLayout.JAVA_SHORT,
                            pair + 2L * (output % width) + input % 2,
                            TestKernels.bf16Bits(weights[input]));
                }
                int start = (output / width * (inputs / 32) + block) * Mxfp4Panels.BYTES;
                assertThat(Mxfp4Panels.put(weights, 0, packed, start, output % width))
                        .isTrue();
            }
            PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, TWO_THREADS.size(), arena);
            PanelMatrix bf16 = matrix(kernels, scratch, WeightType.BF16_PAIRS, pairs, outputs, inputs);
            MemorySegment panels = arena.allocate(packed.length, 64).copyFrom(MemorySegment.ofArray(packed));
            PanelMatrix mxfp4 = matrix(kernels, scratch, WeightType.MXFP4_PAIRS, panels, outputs, inputs);
            int most = Arrays.stream(ROWS).max().orElseThrow();
            Rows rows = TestKernels.narrowRows(arena, numbers(random, most * inputs), inputs);
            for (int count : ROWS) {
                for (Operation operation : Operation.values()) {
                    float[] before = numbers(random, count * outputs);
                    Rows expected = operation.out(arena, before, outputs);
                    operation.run(bf16, bf16, rows, count, expected);
                    Rows actual = operation.out(arena, before, outputs);
                    operation.run(mxfp4, mxfp4, rows, count, actual);
                    assertThat(actual.memory().mismatch(expected.memory()))
                            .as("%s rows=%d, seed %d", operation, count, SEED)
                            .isEqualTo(-1);
                    for (boolean isPackedGate : new boolean[] {false, true}) {
                        Rows mixed = operation.out(arena, before, outputs);
                        operation.run(isPackedGate ? bf16 : mxfp4, isPackedGate ? mxfp4 : bf16, rows, count, mixed);
                        assertThat(mixed.memory().mismatch(expected.memory()))
                                .as("%s rows=%d, gate packed: %s, seed %d", operation, count, isPackedGate, SEED)
                                .isEqualTo(-1);
                    }
                }
            }
        }
    }

    private static PanelMatrix matrix(
            Kernels kernels,
            PanelMatrix.Scratch scratch,
            WeightType type,
            MemorySegment panels,
            int outputs,
            int inputs) {
        return new PanelMatrix(
                kernels,
                TWO_THREADS,
                scratch,
                new PanelMatrix.Weights(type, panels, MemorySegment.NULL, MemorySegment.NULL, outputs, inputs));
    }

    @Test
    void otherNumbersAreNotMxfp4() {
        for (float number : new float[] {2.5f, 7, 0x1p-3f, Float.NaN, Float.POSITIVE_INFINITY, 0x1p125f}) {
            float[] weights = new float[32];
            Arrays.fill(weights, 2);
            weights[7] = number;
            assertThat(Mxfp4Panels.put(weights, 0, new byte[Mxfp4Panels.BYTES], 0, 3))
                    .as("%s", number)
                    .isFalse();
        }
    }

    private static float[] rounded(float[] a) {
        float[] rounded = new float[a.length];
        for (int i = 0; i < a.length; i++) {
            rounded[i] = TestKernels.bf16(a[i]);
        }
        return rounded;
    }

    private enum Operation {
        MULTIPLY(false),
        ADD(false),
        GATED(false),
        GATED_TO_BF16(true),
        GELU_GATED(false),
        GELU_GATED_TO_BF16(true);

        private final boolean toBf16;

        Operation(boolean toBf16) {
            this.toBf16 = toBf16;
        }

        Rows out(Arena arena, float[] before, long stride) {
            return toBf16
                    ? TestKernels.narrowRows(arena, before, stride)
                    : TestKernels.rows(floats(arena, before), stride);
        }

        void run(PanelMatrix matrix, PanelMatrix gate, Rows rows, int count, Rows out) {
            switch (this) {
                case MULTIPLY -> matrix.multiply(rows, count, out);
                case ADD -> matrix.add(rows, count, out);
                case GATED, GATED_TO_BF16 -> matrix.multiplyGated(gate, Activation.SILU, rows, count, out);
                case GELU_GATED, GELU_GATED_TO_BF16 ->
                    matrix.multiplyGated(gate, Activation.GELU_TANH, rows, count, out);
            }
        }

        double expected(float before, double product, double silu, double gelu) {
            return switch (this) {
                case MULTIPLY -> product;
                case ADD -> before + product;
                case GATED, GATED_TO_BF16 -> product * silu;
                case GELU_GATED, GELU_GATED_TO_BF16 -> product * gelu;
            };
        }

        static double silu(double gate) {
            return gate / (1 + Math.exp(-gate));
        }

        static double gelu(double gate) {
            return gate / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (gate + 0.044715 * Math.pow(gate, 3))));
        }
    }

    /** Random weights in the layout that {@link PanelMatrix} describes, and as plain numbers. */
    private static final class Weights {
        private final int inputs;
        private final int outputs;
        private final double[] plain;
        private final MemorySegment panels;
        private final MemorySegment scales;
        private final MemorySegment biases;
        private final float[] plainBiases;
        private double largest;

        Weights(Kernels kernels, WeightType type, int outputs, int inputs, Random random, Arena arena) {
            this.inputs = inputs;
            this.outputs = outputs;
            plain = new double[outputs * inputs];
            panels = arena.allocate(PanelMatrix.bytes(kernels, type, outputs, inputs), 64);
            int width = kernels.panelWidth();
            scales = floats(arena, new float[Math.ceilDiv(outputs, width) * width]);
            plainBiases = new float[Math.ceilDiv(outputs, width) * width];
            boolean biased = random.nextBoolean();
            for (int output = 0; biased && output < outputs; output++) {
                plainBiases[output] = random.nextFloat() - 0.5f;
            }
            biases = biased ? floats(arena, plainBiases) : MemorySegment.NULL;
            for (int output = 0; output < outputs; output++) {
                float scale = 0.001f + random.nextFloat() / 100;
                scales.setAtIndex(FLOAT, output, scale);
                for (int input = 0; input < inputs; input++) {
                    long row = ((long) (output / width) * inputs + input) * width;
                    int column = output % width;
                    float value = random.nextFloat() - 0.5f;
                    plain[output * inputs + input] = switch (type) {
                        case FP32 -> {
                            panels.setAtIndex(FLOAT, row + column, value);
                            yield value;
                        }
                        case BF16 -> {
                            int lanes = width / 2;
                            long place = row + 2L * (column % lanes) + column / lanes;
                            panels.setAtIndex(ValueLayout.JAVA_SHORT, place, TestKernels.bf16Bits(value));
                            yield TestKernels.bf16(value);
                        }
                        case FP16 -> {
                            panels.setAtIndex(ValueLayout.JAVA_SHORT, row + column, Float.floatToFloat16(value));
                            yield Float.float16ToFloat(Float.floatToFloat16(value));
                        }
                        case BF16_PAIRS -> {
                            long pair = ((long) (output / width) * inputs + input / 2 * 2L) * width;
                            panels.setAtIndex(
                                    ValueLayout.JAVA_SHORT,
                                    pair + 2L * column + input % 2,
                                    TestKernels.bf16Bits(value));
                            yield TestKernels.bf16(value);
                        }
                        case INT8_PAIRS -> {
                            byte rounded = (byte) Math.round(value * 254);
                            long pair = ((long) (output / width) * inputs + input / 2 * 2L) * width;
                            panels.set(ValueLayout.JAVA_BYTE, pair + 2L * column + input % 2, rounded);
                            yield (double) rounded * scale;
                        }
                        case MXFP4_PAIRS -> throw new IllegalArgumentException("has numbers of its own");
                        case INT8 -> {
                            byte rounded = (byte) Math.round(value * 254);
                            panels.set(ValueLayout.JAVA_BYTE, row + column, rounded);
                            yield (double) rounded * scale;
                        }
                    };
                    largest = Math.max(largest, Math.abs(plain[output * inputs + input]));
                }
            }
        }

        PanelMatrix matrix(Kernels kernels, WeightType type, PanelMatrix.Scratch scratch) {
            return new PanelMatrix(
                    kernels,
                    TWO_THREADS,
                    scratch,
                    new PanelMatrix.Weights(type, panels, scales, biases, outputs, inputs));
        }

        double[] products(float[] a, int rows) {
            double[] products = new double[rows * outputs];
            for (int row = 0; row < rows; row++) {
                for (int output = 0; output < outputs; output++) {
                    double sum = plainBiases[output];
                    for (int input = 0; input < inputs; input++) {
                        sum += a[row * (inputs + GAP) + input] * plain[output * inputs + input];
                    }
                    products[row * outputs + output] = sum;
                }
            }
            return products;
        }
    }
}
