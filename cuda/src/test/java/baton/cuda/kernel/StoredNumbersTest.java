package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.u32;
import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Numbers of each type as {@link PtxAssembler} stores and loads them, one and several at once. */
class StoredNumbersTest {
    private static final int COUNT = 4096;
    private static final int THREADS = 128;

    /** Stores numbers in a type, and the numbers loaded from these in fp32. */
    private static PtxKernel kernel(DType type, int together) {
        PtxAssembler k = new PtxAssembler("store" + together, THREADS);
        U64 from = k.parameterU64("from");
        U64 to = k.parameterU64("to");
        U64 back = k.parameterU64("back");
        U32 first = k.mul(k.thread(), together);
        k.loop(first, u32(COUNT), u32(THREADS * together), i -> {
            F32[] numbers = k.load(DType.F32, together, k.at(from, i, Float.BYTES), 0);
            U64 place = k.at(to, i, type.bytes());
            k.store(type, place, 0, numbers);
            k.store(DType.F32, k.at(back, i, Float.BYTES), 0, k.load(type, together, place, 0));
        });
        return k.kernel();
    }

    @ParameterizedTest
    @EnumSource(DType.class)
    void areThoseOfTheType(DType type) {
        float[] numbers = numbers();
        MemorySegment expected = MemorySegment.ofArray(new byte[COUNT * type.bytes()]);
        float[] rounded = new float[COUNT];
        for (int i = 0; i < COUNT; i++) {
            type.set(expected, (long) i * type.bytes(), numbers[i]);
            rounded[i] = type.get(expected, (long) i * type.bytes());
        }
        try (TestDevice device = new TestDevice()) {
            long from = device.put(numbers);
            for (int together = 1; together <= 16; together *= 2) {
                long to = device.room((long) COUNT * type.bytes());
                long back = device.room((long) COUNT * Float.BYTES);
                PtxKernel kernel = kernel(type, together);
                try (Functions functions = new Functions(device.gpu(), List.of(kernel))) {
                    functions.launch(device.stream(), kernel.name(), 1, from, to, back);
                    assertThat(device.floats(type, to, COUNT)).isEqualTo(rounded);
                    assertThat(device.floats(DType.F32, back, COUNT)).isEqualTo(rounded);
                }
            }
        }
    }

    /** Halfway between numbers of the types, too large, too small, none, and others. */
    private static float[] numbers() {
        Random random = new Random(3);
        float[] numbers = new float[COUNT];
        MemorySegment bits = MemorySegment.ofArray(new short[1]);
        for (int i = 0; i < COUNT; i++) {
            float scale = Math.scalb(1 + random.nextFloat(), random.nextInt(40) - 28);
            if (i < 256) {
                bits.set(ValueLayout.JAVA_BYTE, 0, (byte) i);
                numbers[i] = DType.F8_E4M3.get(bits, 0);
            } else if (i < 512) {
                // Between two neighbours of e4m3.
                numbers[i] = (numbers[i - 256] + numbers[Math.min(i - 255, 255)]) / 2;
            } else {
                numbers[i] = random.nextBoolean() ? scale : -scale;
            }
        }
        numbers[512] = Float.POSITIVE_INFINITY;
        numbers[513] = Float.NEGATIVE_INFINITY;
        numbers[514] = -0.0f;
        numbers[515] = Float.MIN_VALUE;
        numbers[516] = Float.MAX_VALUE;
        numbers[517] = 65520;
        numbers[518] = 1 + 0x1p-8f;
        numbers[519] = 1 + 0x1p-11f;
        return numbers;
    }
}
