package baton.engine.kernel;

import static baton.engine.kernel.TestKernels.FLOAT;
import static baton.engine.kernel.TestKernels.TWO_THREADS;
import static baton.engine.kernel.TestKernels.floats;
import static baton.engine.kernel.TestKernels.numbers;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.RowKernels.Heads;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Norms, rotations and copies into the cache, of widths that fill vectors of each size. */
class RowKernelsTest {
    private static final int ROWS = 37;

    @ParameterizedTest(name = "{0}, {1} elements")
    @CsvSource({"YMM, 4", "YMM, 8", "YMM, 12", "YMM, 256", "ZMM, 4", "ZMM, 24", "ZMM, 16", "ZMM, 2048"})
    void normsDivideByTheRootMeanSquare(Width width, int count) {
        Kernels kernels = TestKernels.kernels(width);
        Random random = new Random(1);
        float[] x = numbers(random, ROWS * count);
        float[] weights = numbers(random, count);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment from = floats(arena, x);
            MemorySegment to = floats(arena, new float[x.length]);
            RowKernels.Norm norm = new RowKernels(kernels, TWO_THREADS, arena).norm(weights, 1e-5);
            norm.apply(
                    TestKernels.heads(TestKernels.rows(from, count)),
                    TestKernels.heads(TestKernels.rows(to, count)),
                    ROWS);
            for (int row = 0; row < ROWS; row++) {
                double squares = 0;
                for (int i = 0; i < count; i++) {
                    squares += x[row * count + i] * x[row * count + i];
                }
                double scale = 1 / Math.sqrt(squares / count + 1e-5);
                for (int i = 0; i < count; i++) {
                    assertThat((double) to.getAtIndex(FLOAT, (long) row * count + i))
                            .isCloseTo(x[row * count + i] * scale * weights[i], within(1e-6));
                }
            }
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {32, 96, 2048})
    void normsToBf16AreRounded(int count) {
        Kernels kernels = TestKernels.kernels(Width.ZMM, WeightType.BF16_PAIRS);
        Random random = new Random(1);
        int gap = 5;
        float[] x = numbers(random, ROWS * count);
        float[] before = numbers(random, ROWS * (count + gap));
        try (Arena arena = Arena.ofShared()) {
            RowKernels.Norm norm = new RowKernels(kernels, TWO_THREADS, arena).norm(numbers(random, count), 1e-5);
            Rows from = TestKernels.rows(floats(arena, x), count);
            Rows expected = TestKernels.rows(floats(arena, new float[x.length]), count);
            norm.apply(TestKernels.heads(from), TestKernels.heads(expected), ROWS);
            Rows to = TestKernels.narrowRows(arena, before, count + gap);
            norm.apply(TestKernels.heads(from), TestKernels.heads(to), ROWS);
            for (int row = 0; row < ROWS; row++) {
                for (int i = 0; i < count + gap; i++) {
                    int at = row * (count + gap) + i;
                    float number = i < count ? TestKernels.element(expected, (long) row * count + i) : before[at];
                    assertThat(TestKernels.element(to, at))
                            .as("row %d, %d", row, i)
                            .isEqualTo(TestKernels.bf16(number));
                }
            }
        }
    }

    @ParameterizedTest
    @EnumSource(value = Width.class, names = "XMM", mode = EnumSource.Mode.EXCLUDE)
    void notANumberIsNotTheLargest(Width width) {
        int count = 2100;
        float[] numbers = new float[3 * count];
        Arrays.fill(numbers, Float.NEGATIVE_INFINITY);
        numbers[684] = 5;
        numbers[700] = Float.NaN;
        numbers[701] = 3;
        Arrays.fill(numbers, count, 2 * count, Float.NaN);
        numbers[2 * count + 2099] = -7;
        try (Arena arena = Arena.ofShared()) {
            RowKernels kernels = new RowKernels(TestKernels.kernels(width), TWO_THREADS, arena);
            assertThat(kernels.largest(floats(arena, numbers), 3, count)).containsExactly(684, 0, 2099);
        }
    }

    @ParameterizedTest(name = "{0}, {1} numbers")
    @CsvSource({"YMM, 5", "YMM, 1024", "YMM, 3001", "ZMM, 1", "ZMM, 1023", "ZMM, 2048", "ZMM, 3001"})
    void theFirstOfTheLargestNumbersIsFound(Width width, int count) {
        Random random = new Random(4);
        float[] numbers = numbers(random, ROWS * count);
        long[] expected = new long[ROWS];
        for (int row = 0; row < ROWS; row++) {
            int first = random.nextInt(count);
            int again = first + random.nextInt(count - first);
            // All below zero in some rows.
            float largest = row % 2 == 0 ? 1 : -0.25f;
            for (int i = 0; i < count && row % 2 == 1; i++) {
                numbers[row * count + i] -= 1;
            }
            numbers[row * count + first] = largest;
            numbers[row * count + again] = largest;
            expected[row] = first;
        }
        try (Arena arena = Arena.ofShared()) {
            RowKernels kernels = new RowKernels(TestKernels.kernels(width), TWO_THREADS, arena);
            assertThat(kernels.largest(floats(arena, numbers), ROWS, count)).isEqualTo(expected);
        }
    }

    @ParameterizedTest(name = "{0}, heads of {1}")
    @CsvSource({"YMM, 8", "YMM, 24", "YMM, 64", "ZMM, 8", "ZMM, 16", "ZMM, 24", "ZMM, 128"})
    void rotationsTurnPairsOfHalves(Width width, int headDim) {
        Kernels kernels = TestKernels.kernels(width);
        Random random = new Random(2);
        int heads = 3;
        int keyHeads = 2;
        int rowFloats = heads * headDim + keyHeads * 2 * headDim;
        float[] x = numbers(random, ROWS * rowFloats);
        float[] table = numbers(random, ROWS * headDim);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment projected = floats(arena, x);
            MemorySegment turned = floats(arena, new float[ROWS * heads * headDim]);
            new RowKernels(kernels, TWO_THREADS, arena)
                    .rotate(
                            new Heads(TestKernels.rows(projected, rowFloats), 0, heads, headDim * 4L),
                            new Heads(TestKernels.rows(turned, (long) heads * headDim), 0, heads, headDim * 4L),
                            new Heads(
                                    TestKernels.rows(projected, rowFloats),
                                    4L * heads * headDim,
                                    keyHeads,
                                    8L * headDim),
                            headDim,
                            floats(arena, table),
                            ROWS);
            for (int row = 0; row < ROWS; row++) {
                for (int head = 0; head < heads; head++) {
                    int start = row * rowFloats + head * headDim;
                    assertTurned(x, start, table, row, headDim, turned, (row * heads + head) * headDim);
                }
                for (int head = 0; head < keyHeads; head++) {
                    int start = row * rowFloats + (heads + 2 * head) * headDim;
                    assertTurned(x, start, table, row, headDim, projected, start);
                    for (int i = headDim; i < 2 * headDim; i++) {
                        assertThat(projected.getAtIndex(FLOAT, start + i))
                                .as("values")
                                .isEqualTo(x[start + i]);
                    }
                }
            }
        }
    }

    private static void assertTurned(
            float[] x, int start, float[] table, int row, int headDim, MemorySegment actual, int at) {
        int half = headDim / 2;
        for (int i = 0; i < half; i++) {
            double cos = table[row * headDim + i];
            double sin = table[row * headDim + half + i];
            assertThat((double) actual.getAtIndex(FLOAT, at + i))
                    .isCloseTo(x[start + i] * cos - x[start + half + i] * sin, within(1e-6));
            assertThat((double) actual.getAtIndex(FLOAT, at + half + i))
                    .isCloseTo(x[start + half + i] * cos + x[start + i] * sin, within(1e-6));
        }
    }

    @ParameterizedTest(name = "{0}, {1}, heads of {2}")
    @CsvSource({"YMM, BF16, 64", "YMM, BF16, 12", "YMM, F32, 24", "ZMM, BF16, 128", "ZMM, BF16, 20", "ZMM, F32, 16"})
    void keysAndValuesAreRoundedIntoTheirSlots(Width width, DType dtype, int headDim) {
        Kernels kernels = TestKernels.kernels(width);
        Random random = new Random(3);
        KvLayout layout = new KvLayout(2, 3, headDim, 4, dtype);
        int blocks = 20;
        float[] pairs = numbers(random, ROWS * 3 * 2 * headDim);
        // Ties, which go to the even neighbour, and numbers that round up into the next power of two.
        pairs[0] = Float.intBitsToFloat(0x3f80_8000);
        pairs[1] = Float.intBitsToFloat(0x3f81_8000);
        pairs[2] = Float.intBitsToFloat(0x3fff_ffff);
        pairs[3] = -0f;
        try (Arena arena = Arena.ofShared()) {
            KvCache cache =
                    new KvCache(arena.allocate(blocks * layout.blockBytes(), 64), layout, blocks, List.of("0", "1"));
            long row = 3L * 2 * headDim;
            new RowKernels(kernels, TWO_THREADS, arena)
                    .save(
                            1,
                            new Heads(TestKernels.rows(floats(arena, pairs), row), 0, 3, 2L * headDim * 4),
                            ROWS,
                            cache,
                            new RowKernels.Slots() {
                                @Override
                                public int block(int row) {
                                    return blocks - 1 - row / 4;
                                }

                                @Override
                                public int slot(int row) {
                                    return row % 4;
                                }
                            });
            for (int i = 0; i < ROWS; i++) {
                for (int head = 0; head < 3; head++) {
                    for (int d = 0; d < 2 * headDim; d++) {
                        float value = pairs[(i * 3 + head) * 2 * headDim + d];
                        long at = cache.layerStart(blocks - 1 - i / 4, 1)
                                + head * layout.headBytes()
                                + i % 4 * layout.entryBytes()
                                + (long) d * dtype.bytes();
                        if (dtype == DType.BF16) {
                            assertThat(cache.host().get(ValueLayout.JAVA_SHORT, at))
                                    .isEqualTo(TestKernels.bf16Bits(value));
                        } else {
                            assertThat(cache.host().get(FLOAT, at)).isEqualTo(value);
                        }
                    }
                }
            }
        }
    }
}
