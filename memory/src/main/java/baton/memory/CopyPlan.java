package baton.memory;

import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * Ranges to copy from one memory to another, as numbers: it takes no object for each. Ranges that continue each other on both sides are
 * one, and those of one length that follow each other at one distance are rows, which the copying kernel takes at once. For one thread.
 *
 * <p>Both memories live until the copy is over; the copying kernel gets addresses in them.
 */
public final class CopyPlan {
    /** Bytes that Java copies before it digests them. */
    private static final int DIGESTED_AT_ONCE = 128 << 10;

    // An entry: rows.
    private static final int FROM = 0;
    private static final int TO = 1;
    private static final int ROW_BYTES = 2;
    private static final int ROWS = 3;
    private static final int FROM_STRIDE = 4;
    private static final int TO_STRIDE = 5;
    // With digests only: the value, where the first row begins in it, and how far the next one is.
    private static final int VALUE = 6;
    private static final int IN_VALUE = 7;
    private static final int VALUE_STRIDE = 8;
    private static final int FIELDS = 9;

    private final MemorySegment from;
    private final MemorySegment to;
    private final Optional<ValueDigests> digests;
    private int size;
    private long[] entries = new long[64 * FIELDS];

    /**
     * @param digests to make of the bytes in their destination
     * @throws IllegalArgumentException if the destination is read-only
     */
    public CopyPlan(MemorySegment from, MemorySegment to, Optional<ValueDigests> digests) {
        if (to.isReadOnly()) {
            throw new IllegalArgumentException("to is read-only");
        }
        this.from = from;
        this.to = to;
        this.digests = digests;
    }

    /**
     * Adds a range.
     *
     * @param value index of the value that it is a part of; only digests need it
     * @param inValue where it begins in the value
     * @throws IndexOutOfBoundsException if the range exceeds one of the memories, or a value to be digested
     */
    public void add(int value, long inValue, long fromOffset, long toOffset, long length) {
        checkRange("from", fromOffset, length, from.byteSize());
        checkRange("to", toOffset, length, to.byteSize());
        if (digests.isPresent()) {
            checkRange("value", inValue, length, digests.get().valueBytes());
        }
        if (size > 0 && joins(value, inValue, fromOffset, toOffset, length)) {
            return;
        }
        if ((size + 1) * FIELDS > entries.length) {
            entries = Arrays.copyOf(entries, 2 * entries.length);
        }
        int at = size * FIELDS;
        entries[at + FROM] = fromOffset;
        entries[at + TO] = toOffset;
        entries[at + ROW_BYTES] = length;
        entries[at + ROWS] = 1;
        entries[at + FROM_STRIDE] = 0;
        entries[at + TO_STRIDE] = 0;
        entries[at + VALUE] = value;
        entries[at + IN_VALUE] = inValue;
        entries[at + VALUE_STRIDE] = 0;
        size++;
    }

    /** Adds a range to the last entry, if it continues it. */
    private boolean joins(int value, long inValue, long fromOffset, long toOffset, long length) {
        int at = (size - 1) * FIELDS;
        if (digests.isPresent() && entries[at + VALUE] != value) {
            return false;
        }
        long rows = entries[at + ROWS];
        long fromStep = fromOffset - entries[at + FROM];
        long toStep = toOffset - entries[at + TO];
        long valueStep = inValue - entries[at + IN_VALUE];
        if (rows == 1) {
            long before = entries[at + ROW_BYTES];
            if (fromStep == before && toStep == before && (digests.isEmpty() || valueStep == before)) {
                entries[at + ROW_BYTES] = before + length;
                return true;
            }
            if (length != before) {
                return false;
            }
            entries[at + FROM_STRIDE] = fromStep;
            entries[at + TO_STRIDE] = toStep;
            entries[at + VALUE_STRIDE] = valueStep;
            entries[at + ROWS] = 2;
            return true;
        }
        if (length != entries[at + ROW_BYTES]
                || fromStep != rows * entries[at + FROM_STRIDE]
                || toStep != rows * entries[at + TO_STRIDE]
                || digests.isPresent() && valueStep != rows * entries[at + VALUE_STRIDE]) {
            return false;
        }
        entries[at + ROWS] = rows + 1;
        return true;
    }

    private static void checkRange(String what, long offset, long length, long bytes) {
        if (offset < 0 || length <= 0 || offset > bytes - length) {
            throw new IndexOutOfBoundsException(
                    "%s: offset=%d length=%d are not within %d bytes".formatted(what, offset, length, bytes));
        }
    }

    /** Number of entries, each of rows of one length. */
    int size() {
        return size;
    }

    /** Bytes of all rows. */
    long length(int entry) {
        return entries[entry * FIELDS + ROW_BYTES] * entries[entry * FIELDS + ROWS];
    }

    void clear() {
        size = 0;
    }

    /** Copies all of it. */
    void copy(Copying by) {
        if (!from.scope().isAlive() || !to.scope().isAlive()) {
            throw new IllegalStateException("memory was freed before it was copied");
        }
        for (int entry = 0; entry < size; entry++) {
            long rows = entries[entry * FIELDS + ROWS];
            for (long row = 0; row < rows; ) {
                long some = Math.min(rows - row, 2L * CopyKernel.Work.MOST_ROWS);
                if (some == 1) {
                    copyHalves(entry, row, by);
                } else {
                    some -= some % 2;
                    copyRows(entry, row, Math.toIntExact(some), by);
                }
                row += some;
            }
        }
    }

    /** Copies a row as two if it can be halved. */
    private void copyHalves(int entry, long row, Copying by) {
        int at = entry * FIELDS;
        long source = entries[at + FROM] + row * entries[at + FROM_STRIDE];
        long target = entries[at + TO] + row * entries[at + TO_STRIDE];
        long inValue = entries[at + IN_VALUE] + row * entries[at + VALUE_STRIDE];
        long length = entries[at + ROW_BYTES];
        long half = length / 2;
        CopyKernel.Rows halves =
                new CopyKernel.Rows(from.address() + source, to.address() + target, 2, half, half, half);
        if (length % 2 == 0 && by.takes(halves, digests.isPresent())) {
            by.copy(halves, digests.isPresent());
            digested(entry, inValue, halves, half, by);
        } else {
            copyByJava(entry, source, target, length, inValue, by);
        }
    }

    private void copyRows(int entry, long row, int count, Copying by) {
        int at = entry * FIELDS;
        long source = entries[at + FROM] + row * entries[at + FROM_STRIDE];
        long target = entries[at + TO] + row * entries[at + TO_STRIDE];
        CopyKernel.Rows rows = new CopyKernel.Rows(
                from.address() + source,
                to.address() + target,
                count,
                entries[at + ROW_BYTES],
                entries[at + FROM_STRIDE],
                entries[at + TO_STRIDE]);
        if (by.takes(rows, digests.isPresent())) {
            by.copy(rows, digests.isPresent());
            long inValue = entries[at + IN_VALUE] + row * entries[at + VALUE_STRIDE];
            digested(entry, inValue, rows, entries[at + VALUE_STRIDE], by);
        } else {
            for (int i = 0; i < count; i++) {
                copyHalves(entry, row + i, by);
            }
        }
    }

    /** Adds the registers of rows that the kernel has copied. */
    private void digested(int entry, long inValue, CopyKernel.Rows rows, long valueStride, Copying by) {
        if (digests.isEmpty()) {
            return;
        }
        ValueDigests sums = digests.get();
        // Tables are worth their making from some rows on.
        boolean isStepped = valueStride > 0 && rows.count() > CopyKernelCode.LANES;
        int sum = 0;
        for (int i = 0; i < rows.count(); i++) {
            int register = by.work().register(i, rows.count());
            if (isStepped) {
                sum = by.powers.step(sum, valueStride) ^ register;
            } else {
                long behindRow = sums.valueBytes() - inValue - i * valueStride - rows.rowBytes();
                sum ^= by.powers.move(register, behindRow);
            }
        }
        if (isStepped) {
            long last = inValue + (rows.count() - 1) * valueStride;
            sum = by.powers.move(sum, sums.valueBytes() - last - rows.rowBytes());
        }
        sums.add(Math.toIntExact(entries[entry * FIELDS + VALUE]), sum);
    }

    private void copyByJava(int entry, long source, long target, long length, long inValue, Copying by) {
        if (digests.isEmpty()) {
            MemorySegment.copy(from, source, to, target, length);
            return;
        }
        ValueDigests sums = digests.get();
        CRC32C crc = new CRC32C();
        for (long done = 0; done < length; done += DIGESTED_AT_ONCE) {
            long some = Math.min(DIGESTED_AT_ONCE, length - done);
            MemorySegment.copy(from, source + done, to, target + done, some);
            ByteBuffer copied = to.asSlice(target + done, some).asByteBuffer();
            crc.update(copied);
        }
        int register = ~(int) crc.getValue() ^ by.powers.move(-1, length);
        int moved = by.powers.move(register, sums.valueBytes() - inValue - length);
        sums.add(Math.toIntExact(entries[entry * FIELDS + VALUE]), moved);
    }

    /** The state of a copying thread. */
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

        private boolean takes(CopyKernel.Rows rows, boolean isDigested) {
            return work.isPresent() && (isDigested || pastCaches) && CopyKernel.takes(rows);
        }

        private void copy(CopyKernel.Rows rows, boolean isDigested) {
            kernel.orElseThrow().copyRows(rows, isDigested, pastCaches, work());
        }

        private CopyKernel.Work work() {
            return work.orElseThrow();
        }
    }
}
