package baton.memory;

import java.util.concurrent.atomic.AtomicIntegerArray;

/**
 * A CRC32C for each of several values of the same size, put together from those of their parts in any order, while the parts are copied.
 * Each part is to be given once, and all together cover the value; otherwise its digest means nothing.
 */
public final class ValueDigests {
    private final long valueBytes;
    /** The initial register of a value, at its end. */
    private final int begin;
    /** For each value, the sum of the parts' registers, which began with zeros, moved to the value's end. */
    private final AtomicIntegerArray registers;

    public ValueDigests(int values, long valueBytes) {
        this.valueBytes = valueBytes;
        this.begin = Crc32cPowers.multiply(-1, Crc32cPowers.power(valueBytes));
        this.registers = new AtomicIntegerArray(values);
    }

    long valueBytes() {
        return valueBytes;
    }

    /** Adds the register of a part, which began with zeros, moved to the value's end. */
    void add(int value, int register) {
        registers.accumulateAndGet(value, register, (one, other) -> one ^ other);
    }

    /** Digest of a value, as {@link java.util.zip.CRC32C} makes it, when all of its parts have been copied. */
    public int crc32c(int value) {
        return ~(registers.get(value) ^ begin);
    }
}
