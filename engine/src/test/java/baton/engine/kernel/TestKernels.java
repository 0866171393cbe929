package baton.engine.kernel;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.DType;
import baton.memory.Assembler.Width;
import baton.memory.Processor;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;

/** The fixtures of the tests of kernels: kernels, threads, and matrices of random numbers. */
final class TestKernels {
    static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;

    private TestKernels() {}

    static Kernels kernels(Width width) {
        String[] needed =
                width == Width.ZMM ? new String[] {"avx512f", "avx512dq", "avx2", "fma"} : new String[] {"avx2", "fma"};
        assumeTrue(Processor.current().has(needed), () -> "the processor lacks one of " + String.join(", ", needed));
        return Kernels.of(width);
    }

    static Kernels kernels(Width width, WeightType type) {
        assumeTrue(!type.inPairs() || Processor.current().has("avx512_bf16"), "the processor lacks avx512_bf16");
        return kernels(width);
    }

    /** Kernels by their names, {@code YMM}, {@code ZMM}, {@code PAIRS} or {@code AMX}; skips the test where the processor cannot run them. */
    static Kernels named(String name, WeightType type) {
        if (name.equals("PAIRS")) {
            kernels(Width.ZMM, WeightType.BF16_PAIRS);
            return Kernels.withPairs();
        }
        if (!name.equals("AMX")) {
            return kernels(Width.valueOf(name), type);
        }
        String[] needed = {"amx_tile", "amx_bf16", "avx512_bf16", "avx512bw", "avx512dq", "avx512f"};
        assumeTrue(Processor.current().has(needed), () -> "the processor lacks one of " + String.join(", ", needed));
        return Kernels.withTiles();
    }

    /** Two plain threads, each with every other piece. */
    static final ParallelFor TWO_THREADS = new ParallelFor() {
        @Override
        public int size() {
            return 2;
        }

        @Override
        public void parallelFor(int count, int piece, Work work) {
            AtomicReference<Throwable> failure = new AtomicReference<>();
            Thread other = new Thread(() -> pieces(1, count, piece, work));
            other.setUncaughtExceptionHandler((_, e) -> failure.set(e));
            other.start();
            pieces(0, count, piece, work);
            try {
                other.join();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
        }

        private void pieces(int member, int count, int piece, Work work) {
            for (int first = member * piece; first < count; first += 2 * piece) {
                work.accept(member, first, Math.min(count, first + piece));
            }
        }
    };

    static float[] numbers(Random random, int count) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = random.nextFloat() - 0.5f;
        }
        return numbers;
    }

    static MemorySegment floats(Arena arena, float[] values) {
        MemorySegment memory = arena.allocate((long) values.length * Float.BYTES, 64);
        MemorySegment.copy(values, 0, memory, FLOAT, 0, values.length);
        return memory;
    }

    /** Rows of fp32 at the beginning of memory, {@code stride} elements apart. */
    static Rows rows(MemorySegment memory, long stride) {
        return new Rows(memory, stride * Float.BYTES, DType.F32);
    }

    /** The numbers rounded to bf16, in rows as many elements apart. */
    static Rows narrowRows(Arena arena, float[] values, long stride) {
        MemorySegment memory = arena.allocate((long) values.length * Short.BYTES, 64);
        short[] bits = new short[values.length];
        for (int i = 0; i < values.length; i++) {
            bits[i] = bf16Bits(values[i]);
        }
        MemorySegment.copy(bits, 0, memory, ValueLayout.JAVA_SHORT, 0, bits.length);
        return new Rows(memory, stride * Short.BYTES, DType.BF16);
    }

    /** An element of either type. */
    static float element(Rows rows, long index) {
        return rows.isNarrow()
                ? Float.intBitsToFloat(rows.memory().getAtIndex(ValueLayout.JAVA_SHORT, index) << 16)
                : rows.memory().getAtIndex(FLOAT, index);
    }

    /** All of them: faster than one by one. */
    static float[] elements(Rows rows) {
        if (!rows.isNarrow()) {
            return rows.memory().toArray(FLOAT);
        }
        short[] bits = rows.memory().toArray(ValueLayout.JAVA_SHORT);
        float[] elements = new float[bits.length];
        for (int i = 0; i < bits.length; i++) {
            elements[i] = Float.intBitsToFloat(bits[i] << 16);
        }
        return elements;
    }

    /** Rounded to nearest even, as fp32. */
    static float bf16(float value) {
        return Float.intBitsToFloat(bf16Bits(value) << 16);
    }

    static short bf16Bits(float value) {
        int bits = Float.floatToRawIntBits(value);
        return (short) ((bits + 0x7fff + (bits >>> 16 & 1)) >>> 16);
    }

    /** Whole rows, as one head each. */
    static RowKernels.Heads heads(Rows rows) {
        return new RowKernels.Heads(rows, 0, 1, 0);
    }
}
