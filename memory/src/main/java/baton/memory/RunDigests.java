package baton.memory;

/**
 * The digests to compute of ranges during a transfer. Each range is {@code [row][run][runBytes]}; a run has one CRC32C over its bytes in
 * all rows, in their order. The rows of a KV block are its layers, so one pass over the block digests each head apart.
 *
 * @param rows in a range
 * @param runs in a row
 * @param runBytes in a run
 * @param listener receives the digests of each range before the transfer is done
 */
public record RunDigests(int rows, int runs, int runBytes, Listener listener) {
    /** @throws IllegalArgumentException if a range would have no bytes, or a row more than can be addressed by an int */
    public RunDigests {
        if (rows <= 0 || runs <= 0 || runBytes <= 0 || (long) runs * runBytes > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("rows=%d runs=%d runBytes=%d must be positive, and a row less than 2 GiB"
                    .formatted(rows, runs, runBytes));
        }
    }

    /** Bytes that each range has. */
    public long bytes() {
        return (long) rows * runs * runBytes;
    }

    /**
     * Receives the digests, of several ranges at the same time: on the threads that copy, and for small transfers on the thread that
     * starts the transfer. An exception that it throws fails the transfer.
     */
    @FunctionalInterface
    public interface Listener {
        /**
         * A range is in place.
         *
         * @param range index of the range
         * @param crc32c of its runs, as they are in the destination
         */
        void digested(int range, int[] crc32c);
    }
}
