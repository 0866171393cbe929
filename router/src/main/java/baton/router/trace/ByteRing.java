package baton.router.trace;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The last so many values in memory of a fixed size, with a key each that need not be unique. One thread at a time. */
final class ByteRing {
    private final byte[] memory;
    private final int[] keys;
    private final int[] starts;
    private final int[] lengths;

    /** Index of the oldest value in the arrays. */
    private int oldest;

    private int count;
    /** Where the next value goes. */
    private int end;

    /**
     * @param most values
     * @param bytes of all of them
     */
    ByteRing(int most, int bytes) {
        memory = new byte[bytes];
        keys = new int[most];
        starts = new int[most];
        lengths = new int[most];
    }

    /** Adds a value in place of the oldest ones. One that is larger than the memory is not kept. */
    void add(int key, byte[] value) {
        if (value.length > memory.length) {
            return;
        }
        if (count == keys.length) {
            forgetOldest();
        }
        if (end + value.length > memory.length) {
            // Values do not wrap around the end: the bytes left there are not used.
            while (count > 0 && starts[oldest] >= end) {
                forgetOldest();
            }
            end = 0;
        }
        while (count > 0 && starts[oldest] >= end && starts[oldest] < end + value.length) {
            forgetOldest();
        }
        int at = index(count++);
        keys[at] = key;
        starts[at] = end;
        lengths[at] = value.length;
        System.arraycopy(value, 0, memory, end, value.length);
        end += value.length;
    }

    private void forgetOldest() {
        oldest = (oldest + 1) % keys.length;
        count--;
    }

    private int index(int age) {
        return (oldest + age) % keys.length;
    }

    /** Copies, the last first. */
    List<byte[]> all() {
        List<byte[]> values = new ArrayList<>(count);
        for (int i = count - 1; i >= 0; i--) {
            values.add(value(index(i)));
        }
        return values;
    }

    /** Copies of those with this key, the last first. */
    List<byte[]> withKey(int key) {
        List<byte[]> values = new ArrayList<>();
        for (int i = count - 1; i >= 0; i--) {
            if (keys[index(i)] == key) {
                values.add(value(index(i)));
            }
        }
        return values;
    }

    private byte[] value(int at) {
        return Arrays.copyOfRange(memory, starts[at], starts[at] + lengths[at]);
    }
}
