package baton.store;

import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * Where the values of a batch are in one memory: ranges, each of one value. Values that lie in several memories, as in the pools of
 * several ranks, have one of these for each. Ranges that continue each other in value and memory are one. Built by one thread, then read by
 * any.
 */
public final class ValueRanges {
    private final MemorySegment memory;
    private int size;
    private int[] keys = new int[16];
    private long[] inValue = new long[16];
    private long[] inMemory = new long[16];
    private long[] bytes = new long[16];

    /** @param memory of a shared arena, which lives for as long as an operation uses it */
    public ValueRanges(MemorySegment memory) {
        this.memory = memory;
    }

    /**
     * Adds a range.
     *
     * @param key index of its key in the batch
     * @param valueOffset where it begins in the value
     * @param memoryOffset where it begins in the memory
     * @throws IndexOutOfBoundsException if the range exceeds the memory
     */
    public ValueRanges add(int key, long valueOffset, long memoryOffset, long length) {
        if (memoryOffset < 0 || length <= 0 || memoryOffset > memory.byteSize() - length) {
            throw new IndexOutOfBoundsException("memoryOffset=%d length=%d are not within memory of %d bytes"
                    .formatted(memoryOffset, length, memory.byteSize()));
        }
        int last = size - 1;
        if (last >= 0
                && keys[last] == key
                && inValue[last] + bytes[last] == valueOffset
                && inMemory[last] + bytes[last] == memoryOffset) {
            bytes[last] += length;
            return this;
        }
        if (size == keys.length) {
            keys = Arrays.copyOf(keys, 2 * size);
            inValue = Arrays.copyOf(inValue, 2 * size);
            inMemory = Arrays.copyOf(inMemory, 2 * size);
            bytes = Arrays.copyOf(bytes, 2 * size);
        }
        keys[size] = key;
        inValue[size] = valueOffset;
        inMemory[size] = memoryOffset;
        bytes[size] = length;
        size++;
        return this;
    }

    public MemorySegment memory() {
        return memory;
    }

    /** Number of ranges. */
    public int size() {
        return size;
    }

    /** Index in the batch of the key of a range. */
    public int key(int range) {
        return keys[range];
    }

    public long valueOffset(int range) {
        return inValue[range];
    }

    public long memoryOffset(int range) {
        return inMemory[range];
    }

    public long bytes(int range) {
        return bytes[range];
    }
}
