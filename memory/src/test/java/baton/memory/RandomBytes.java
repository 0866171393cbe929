package baton.memory;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Random;
import java.util.SplittableRandom;

/** Contents of memory for tests: slices of one array, as to make random bytes takes longer than to copy and digest them. */
final class RandomBytes {
    private static final byte[] BYTES = new byte[20 << 20];

    static {
        new SplittableRandom(7).nextBytes(BYTES);
    }

    private RandomBytes() {}

    /** Fills memory with the bytes from a random place on. */
    static void fill(MemorySegment memory, Random random) {
        int length = Math.toIntExact(memory.byteSize());
        MemorySegment.copy(BYTES, random.nextInt(BYTES.length - length), memory, ValueLayout.JAVA_BYTE, 0, length);
    }
}
