package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.engine.model.JavaRowKernels.NormWeights;
import baton.engine.model.ModelKernels.Heads;
import baton.kv.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.OptionalInt;
import java.util.Random;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Against the formulas in fp64, with as many rows as one thread takes, and with more. */
class JavaRowKernelsTest {
    private static final int HEADS = 3;
    private static final int KEY_HEADS = 2;

    @BeforeAll
    static void load() {
        LibTorch.load("a test", OptionalInt.empty());
    }

    @ParameterizedTest
    @CsvSource({"BF16,8,1", "BF16,64,1", "BF16,64,200", "BF16,6,200", "F32,8,200", "F32,64,3"})
    void turnsQueriesIntoTheirPlaceAndKeysInTheirs(DType dtype, int head, int rows) {
        try (Arena threads = Arena.ofShared()) {
            OmpTeam team = new OmpTeam(2, threads);
            JavaRowKernels math = new JavaRowKernels(dtype, team);
            assertRotated(math, dtype, head, rows);
        }
    }

    private static void assertRotated(JavaRowKernels math, DType dtype, int head, int rows) {
        int width = HEADS * head + KEY_HEADS * 2 * head;
        try (Arena arena = Arena.ofShared()) {
            MemorySegment projected = random(arena, dtype, rows * width, 1);
            MemorySegment before = arena.allocate(projected.byteSize(), 8).copyFrom(projected);
            MemorySegment table = random(arena, dtype, rows * head, 2);
            MemorySegment turned = arena.allocate((long) rows * HEADS * head * dtype.bytes(), 8);

            math.rotate(
                    new Heads(projected, dtype, rows, 0, width, HEADS, head),
                    new Heads(turned, dtype, rows, 0, (long) HEADS * head, HEADS, head),
                    new Heads(projected, dtype, rows, (long) HEADS * head, width, KEY_HEADS, 2L * head),
                    head,
                    table);

            for (int row = 0; row < rows; row++) {
                for (int h = 0; h < HEADS; h++) {
                    long from = (long) row * width + (long) h * head;
                    assertTurned(dtype, before, from, turned, ((long) row * HEADS + h) * head, table, row, head);
                    assertSame(dtype, before, projected, from, head);
                }
                for (int h = 0; h < KEY_HEADS; h++) {
                    long from = (long) row * width + (long) HEADS * head + (long) h * 2 * head;
                    assertTurned(dtype, before, from, projected, from, table, row, head);
                    assertSame(dtype, before, projected, from + head, head);
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"BF16,64,1", "BF16,2048,150", "F32,6,200"})
    void dividesByTheRootMeanSquare(DType dtype, int width, int rows) {
        try (Arena threads = Arena.ofShared()) {
            OmpTeam team = new OmpTeam(3, threads);
            JavaRowKernels math = new JavaRowKernels(dtype, team);
            assertNormed(math, dtype, width, rows);
        }
    }

    /** Operations that share arrays do not see each other's leftovers. */
    @ParameterizedTest
    @EnumSource(names = {"BF16", "F32"})
    void normsOfAnyWidthAndRotationsTakeTurns(DType dtype) {
        try (Arena threads = Arena.ofShared()) {
            OmpTeam team = new OmpTeam(2, threads);
            JavaRowKernels math = new JavaRowKernels(dtype, team);
            assertNormed(math, dtype, 64, 200);
            assertRotated(math, dtype, 64, 200);
            assertNormed(math, dtype, 2048, 200);
            assertRotated(math, dtype, 8, 200);
            assertNormed(math, dtype, 64, 1);
        }
    }

    @Test
    void aFailureOfOneThreadFailsTheWhole() {
        try (Arena arena = Arena.ofShared();
                Arena threads = Arena.ofShared()) {
            OmpTeam team = new OmpTeam(2, threads);
            JavaRowKernels math = new JavaRowKernels(DType.BF16, team);
            // Memory for all rows but the last piece.
            MemorySegment x = random(arena, DType.BF16, 180 * 64, 4);
            Heads heads = new Heads(x, DType.BF16, 200, 0, 64, 1, 64);
            NormWeights weights = NormWeights.of(new float[64]);
            assertThatThrownBy(() -> math.norm(heads, heads, weights, 1e-5))
                    .isInstanceOf(IllegalStateException.class)
                    .hasCauseInstanceOf(IndexOutOfBoundsException.class);
            assertNormed(math, DType.BF16, 64, 200);
        }
    }

    private static void assertNormed(JavaRowKernels math, DType dtype, int width, int rows) {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment x = random(arena, dtype, rows * width, 3);
            MemorySegment normed = arena.allocate(x.byteSize(), 8);
            float[] weights = new float[width];
            for (int i = 0; i < width; i++) {
                weights[i] = 0.5f + i % 7;
            }
            Heads from = new Heads(x, dtype, rows, 0, width, 1, width);
            math.norm(from, new Heads(normed, dtype, rows, 0, width, 1, width), NormWeights.of(weights), 1e-5);

            for (int row = 0; row < rows; row++) {
                double squares = 0;
                for (int i = 0; i < width; i++) {
                    squares += Math.pow(get(dtype, x, (long) row * width + i), 2);
                }
                double scale = 1 / Math.sqrt(squares / width + 1e-5);
                for (int i = 0; i < width; i++) {
                    long at = (long) row * width + i;
                    assertClose(dtype, get(dtype, normed, at), get(dtype, x, at) * scale * weights[i]);
                }
            }
        }
    }

    /** A tie is rounded to the even neighbour; NaN and infinity stay unchanged. */
    @Test
    void roundsToNearestEven() {
        try (Arena arena = Arena.ofShared();
                Arena threads = Arena.ofShared()) {
            OmpTeam team = new OmpTeam(1, threads);
            JavaRowKernels math = new JavaRowKernels(DType.BF16, team);
            MemorySegment x = arena.allocate(8L * Short.BYTES, 8);
            // Of 1 + 2^-7 and 1 + 3 * 2^-7, times 1.5, each is in the middle between two numbers of bf16.
            short[] values = {0x3f81, 0x3f83, 0x7fc0, 0x7f80, 0, 0, 0, 0};
            MemorySegment.copy(values, 0, x, ValueLayout.JAVA_SHORT, 0, 8);
            MemorySegment table = arena.allocate(8L * Short.BYTES, 8);
            short[] angles = {0x3fc0, 0x3fc0, 0x3fc0, 0x3fc0, 0, 0, 0, 0};
            MemorySegment.copy(angles, 0, table, ValueLayout.JAVA_SHORT, 0, 8);
            MemorySegment turned = arena.allocate(8L * Short.BYTES, 8);
            Heads from = new Heads(x, DType.BF16, 1, 0, 8, 1, 8);
            math.rotate(
                    from,
                    new Heads(turned, DType.BF16, 1, 0, 8, 1, 8),
                    new Heads(x, DType.BF16, 1, 0, 8, 0, 8),
                    8,
                    table);

            assertThat(turned.asSlice(0, 8).toArray(ValueLayout.JAVA_SHORT))
                    .containsExactly((short) 0x3fc2, (short) 0x3fc4, (short) 0x7fc0, (short) 0x7f80);
        }
    }

    private static void assertTurned(
            DType dtype,
            MemorySegment before,
            long from,
            MemorySegment after,
            long to,
            MemorySegment table,
            int row,
            int head) {
        int half = head / 2;
        for (int i = 0; i < half; i++) {
            double first = get(dtype, before, from + i);
            double second = get(dtype, before, from + half + i);
            double cos = get(dtype, table, (long) row * head + i);
            double sin = get(dtype, table, (long) row * head + half + i);
            assertClose(dtype, get(dtype, after, to + i), first * cos - second * sin);
            assertClose(dtype, get(dtype, after, to + half + i), second * cos + first * sin);
        }
    }

    private static void assertSame(DType dtype, MemorySegment before, MemorySegment after, long from, int count) {
        long bytes = dtype.bytes();
        assertThat(MemorySegment.mismatch(
                        before, from * bytes, (from + count) * bytes, after, from * bytes, (from + count) * bytes))
                .isEqualTo(-1);
    }

    /** To half the last place, and fp32's own errors, of numbers of around 1. */
    private static void assertClose(DType dtype, double actual, double expected) {
        double share = dtype == DType.BF16 ? 0x1p-8 : 0x1p-22;
        assertThat(actual).isCloseTo(expected, within(Math.abs(expected) * share + 1e-6));
    }

    private static MemorySegment random(Arena arena, DType dtype, int count, long seed) {
        MemorySegment memory = arena.allocate((long) count * dtype.bytes(), 8);
        Random random = new Random(seed);
        for (int i = 0; i < count; i++) {
            float value = (float) random.nextGaussian();
            if (dtype == DType.F32) {
                memory.setAtIndex(ValueLayout.JAVA_FLOAT, i, value);
            } else {
                memory.setAtIndex(ValueLayout.JAVA_SHORT, i, (short) (Float.floatToRawIntBits(value) >>> 16));
            }
        }
        return memory;
    }

    private static double get(DType dtype, MemorySegment memory, long index) {
        return dtype == DType.F32
                ? memory.getAtIndex(ValueLayout.JAVA_FLOAT, index)
                : Float.intBitsToFloat(memory.getAtIndex(ValueLayout.JAVA_SHORT, index) << 16);
    }
}
