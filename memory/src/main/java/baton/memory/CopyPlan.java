package baton.memory;

import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * Ranges to copy from one memory to another, as numbers: it takes no object for each. Ranges that continue each other on both sides are
 * one. Built by one thread, then read by any.
 *
 * <p>Both memories live until the copy is over; the copying kernel gets addresses in them.
 */
public final class CopyPlan {
    /** Bytes that Java copies before it digests them. */
    private static final int DIGESTED_AT_ONCE = 128 << 10;

    private final MemorySegment from;
    private final MemorySegment to;
    private final Optional<ValueDigests> digests;
    private int size;
    private long[] fromOffsets;
    private long[] toOffsets;
    private long[] lengths;
    /** Of each range: its value, and where it begins in it. Used with digests only. */
    private int[] values;

    private long[] inValues;
    private long bytes;

    /**
     * @param ranges how many are expected
     * @param digests to make of the bytes in their destination
     */
    public CopyPlan(MemorySegment from, MemorySegment to, int ranges, Optional<ValueDigests> digests) {
        if (to.isReadOnly()) {
            throw new IllegalArgumentException("to is read-only");
        }
        this.from = from;
        this.to = to;
        this.digests = digests;
        fromOffsets = new long[ranges];
        toOffsets = new long[ranges];
        lengths = new long[ranges];
        values = new int[digests.isPresent() ? ranges : 0];
        inValues = new long[digests.isPresent() ? ranges : 0];
    }

    /**
     * Adds a range.
     *
     * @param value index of the value that it is a part of; only digests need it
     * @param inValue where it begins in the value
     * @throws IndexOutOfBoundsException if one of the memories does not have it, or a value to be digested
     */
    public void add(int value, long inValue, long fromOffset, long toOffset, long length) {
        checkRange("from", fromOffset, length, from.byteSize());
        checkRange("to", toOffset, length, to.byteSize());
        int last = size - 1;
        if (last >= 0
                && fromOffsets[last] + lengths[last] == fromOffset
                && toOffsets[last] + lengths[last] == toOffset
                && (digests.isEmpty() || values[last] == value && inValues[last] + lengths[last] == inValue)) {
            lengths[last] += length;
            bytes += length;
            return;
        }
        if (size == lengths.length) {
            int more = Math.max(16, 2 * size);
            fromOffsets = Arrays.copyOf(fromOffsets, more);
            toOffsets = Arrays.copyOf(toOffsets, more);
            lengths = Arrays.copyOf(lengths, more);
            if (digests.isPresent()) {
                values = Arrays.copyOf(values, more);
                inValues = Arrays.copyOf(inValues, more);
            }
        }
        if (digests.isPresent()) {
            checkRange("value", inValue, length, digests.get().valueBytes());
            values[size] = value;
            inValues[size] = inValue;
        }
        fromOffsets[size] = fromOffset;
        toOffsets[size] = toOffset;
        lengths[size] = length;
        bytes += length;
        size++;
    }

    private static void checkRange(String what, long offset, long length, long bytes) {
        if (offset < 0 || length <= 0 || offset > bytes - length) {
            throw new IndexOutOfBoundsException(
                    "%s: offset=%d length=%d are not within %d bytes".formatted(what, offset, length, bytes));
        }
    }

    public boolean isEmpty() {
        return size == 0;
    }

    /** Number of ranges. */
    int size() {
        return size;
    }

    long bytes() {
        return bytes;
    }

    long length(int range) {
        return lengths[range];
    }

    boolean isDigested() {
        return digests.isPresent();
    }

    /**
     * Copies a part of a range.
     *
     * @param at where the part begins in the range
     */
    void copy(int range, long at, long length, Copying by) {
        long source = fromOffsets[range] + at;
        long target = toOffsets[range] + at;
        if (digests.isPresent()) {
            ValueDigests sums = digests.get();
            long behind = sums.valueBytes() - inValues[range] - at - length;
            digest(sums, values[range], source, target, length, behind, by);
        } else if (by.pastCaches && by.takes(to.address() + target, length)) {
            by.kernel().copy(from.address() + source, to.address() + target, length, by.work());
        } else {
            MemorySegment.copy(from, source, to, target, length);
        }
    }

    private void digest(ValueDigests sums, int value, long source, long target, long length, long behind, Copying by) {
        if (by.takes(to.address() + target, length)) {
            CopyKernel.Work work = by.work();
            by.kernel().digest(from.address() + source, to.address() + target, length, by.pastCaches, work);
            int first = by.powers.move(work.register(0), length / 2);
            sums.add(value, first ^ work.register(1), behind, by.powers);
            return;
        }
        CRC32C crc = new CRC32C();
        for (long done = 0; done < length; done += DIGESTED_AT_ONCE) {
            long some = Math.min(DIGESTED_AT_ONCE, length - done);
            MemorySegment.copy(from, source + done, to, target + done, some);
            ByteBuffer copied = to.asSlice(target + done, some).asByteBuffer();
            crc.update(copied);
        }
        int register = ~(int) crc.getValue() ^ by.powers.move(-1, length);
        sums.add(value, register, behind, by.powers);
    }

    /** Whether both memories are there, for the kernel does not see it. */
    boolean isAlive() {
        return from.scope().isAlive() && to.scope().isAlive();
    }

    /** What a thread copies with. */
    static final class Copying {
        private final Optional<CopyKernel> kernel;
        private final Optional<CopyKernel.Work> work;
        private final boolean pastCaches;
        private final Crc32cPowers powers = new Crc32cPowers();

        /** @param work there where the kernel is */
        Copying(Optional<CopyKernel> kernel, Optional<CopyKernel.Work> work, boolean pastCaches) {
            this.kernel = kernel;
            this.work = work;
            this.pastCaches = pastCaches;
        }

        private boolean takes(long target, long length) {
            return work.isPresent() && CopyKernel.takes(target, length);
        }

        private CopyKernel kernel() {
            return kernel.orElseThrow();
        }

        private CopyKernel.Work work() {
            return work.orElseThrow();
        }
    }
}
