package baton.cuda.sim;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.Arrays;

/**
 * Memory of a device, with a bit for each byte that is set once the byte has been written, and with the block that wrote bytes last.
 * Blocks may access it from several threads.
 */
final class Allocation {
    private static final VarHandle BITS = MethodHandles.arrayElementVarHandle(long[].class);
    private static final int[] NO_WRITERS = {};

    final long base;
    final int device;
    final Content content;
    /** Whether it is freed no more than the content may be used by others. */
    boolean live = true;

    Allocation(long base, int device, Content content) {
        this.base = base;
        this.device = device;
        this.content = content;
    }

    /** Bytes, which several allocations show if one was exported and opened. */
    static final class Content {
        final byte[] bytes;
        private final long[] written;
        private volatile int[] writers = NO_WRITERS;

        Content(int bytes) {
            this.bytes = new byte[bytes];
            this.written = new long[bytes / Long.SIZE + 1];
        }

        /** @param length a power of two up to 16; the first is a multiple of it */
        boolean isWritten(int first, int length) {
            long mask = (1L << length) - 1 << first;
            return (written[first >> 6] & mask) == mask;
        }

        /** @param length a power of two up to 16; the first is a multiple of it */
        void setWritten(int first, int length) {
            long mask = (1L << length) - 1 << first;
            if ((written[first >> 6] & mask) != mask) {
                long _ = (long) BITS.getAndBitwiseOr(written, first >> 6, mask);
            }
        }

        void setAllWritten(int first, int length) {
            int end = first + length;
            for (int i = first; i < end; ) {
                if ((i & Long.SIZE - 1) == 0 && end - i >= Long.SIZE) {
                    written[i >> 6] = -1;
                    i += Long.SIZE;
                } else {
                    written[i >> 6] |= 1L << i;
                    i++;
                }
            }
        }

        void copyWritten(Content from, int fromFirst, int first, int length) {
            for (int i = 0; i < length; i++) {
                int at = first + i;
                long bit = from.written[fromFirst + i >> 6] >>> fromFirst + i & 1;
                written[at >> 6] = written[at >> 6] & ~(1L << at) | bit << at;
            }
        }

        /** The launch and block that wrote each unit last, or none if no kernel has written to the memory. */
        int[] writers() {
            return writers;
        }

        int[] writers(int shift) {
            int[] all = writers;
            return all.length > bytes.length - 1 >> shift ? all : moreWriters((bytes.length - 1 >> shift) + 1);
        }

        private synchronized int[] moreWriters(int units) {
            if (writers.length < units) {
                writers = new int[units];
            }
            return writers;
        }

        void forgetWriters() {
            Arrays.fill(writers, 0);
        }
    }
}
