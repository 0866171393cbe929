package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Random;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Kernels convert elements of keys and values as {@link DType} does, for all bits of a type and for numbers between its own. */
class ElementCodeTest {
    private static final long SEED = Long.getLong("tests.seed", 13);
    private static final int COUNT = 1 << 16;

    @ParameterizedTest
    @CsvSource({"YMM, BF16", "YMM, F16", "YMM, F8_E4M3", "ZMM, BF16", "ZMM, F16", "ZMM, F8_E4M3"})
    void allBitsBecomeTheirNumbers(Width width, DType type) {
        Kernels kernels = TestKernels.kernels(width);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment elements = arena.allocate((long) COUNT * type.bytes(), 64);
            for (int i = 0; i < COUNT; i++) {
                setBits(elements, type, i, i);
            }
            MemorySegment floats = arena.allocate((long) COUNT * Float.BYTES, 64);
            kernels.get(Kernel.WIDEN, type).call(elements.address(), floats.address(), COUNT);
            for (int i = 0; i < COUNT; i++) {
                float number = type.get(elements, (long) i * type.bytes());
                float actual = floats.getAtIndex(TestKernels.FLOAT, i);
                if (Float.compare(number, actual) != 0) {
                    assertThat(actual).as("%s %x", type, i).isEqualTo(number);
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"YMM, BF16", "YMM, F16", "YMM, F8_E4M3", "ZMM, BF16", "ZMM, F16", "ZMM, F8_E4M3"})
    void numbersBecomeTheNearest(Width width, DType type) {
        Kernels kernels = TestKernels.kernels(width);
        Random random = new Random(SEED);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment floats = arena.allocate(2L * COUNT * Float.BYTES, 64);
            MemorySegment own = arena.allocate(type.bytes());
            for (int i = 0; i < COUNT; i++) {
                setBits(own, type, 0, i);
                float number = type.get(own, 0);
                // The number itself, those halfway to its neighbours or beside these, and any.
                int ulp = switch (type) {
                    case BF16, F32 -> 1 << 16;
                    case F16 -> 1 << 13;
                    case F8_E4M3 -> 1 << 20;
                };
                int bits = Float.floatToRawIntBits(number) + (i % 5 - 2) * ulp / 2 + (i % 3 - 1);
                float near = i % 7 == 0 || Float.isNaN(number) ? number : Float.intBitsToFloat(bits);
                floats.setAtIndex(TestKernels.FLOAT, 2L * i, near);
                float any = Float.intBitsToFloat(random.nextInt());
                floats.setAtIndex(TestKernels.FLOAT, 2L * i + 1, any);
            }
            MemorySegment elements = arena.allocate(2L * COUNT * type.bytes(), 64);
            kernels.narrowing(type, COUNT)
                    .call(floats.address(), 4L * COUNT, elements.address(), (long) COUNT * type.bytes(), 2, COUNT);
            for (int i = 0; i < 2 * COUNT; i++) {
                float number = floats.getAtIndex(TestKernels.FLOAT, i);
                type.set(own, 0, number);
                float expected = type.get(own, 0);
                float actual = type.get(elements, (long) i * type.bytes());
                // In bf16 not every NaN stays one: nothing that is computed is such a NaN.
                boolean skipped = type == DType.BF16 && Float.isNaN(number);
                if (!skipped && Float.compare(expected, actual) != 0) {
                    assertThat(actual)
                            .as("%s of %s", type, Float.toHexString(number))
                            .isEqualTo(expected);
                }
            }
        }
    }

    private static void setBits(MemorySegment memory, DType type, int index, int bits) {
        for (int i = 0; i < type.bytes(); i++) {
            memory.set(ValueLayout.JAVA_BYTE, (long) index * type.bytes() + i, (byte) (bits >> 8 * i));
        }
    }
}
