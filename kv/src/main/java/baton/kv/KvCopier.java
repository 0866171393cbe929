package baton.kv;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.stream.LongStream;

/**
 * Copies between a device's memory and the host's, and digests of the device's. Copies are asynchronous, and one call is one batch: a
 * block of all layers is one range. Safe for use by several threads.
 */
public interface KvCopier {
    /** Bytes that {@link #digest} copies to host memory at once, if a value has no more. */
    long DIGESTED_AT_ONCE = 8L << 20;

    /**
     * Some bytes in both memories.
     *
     * @param device offset in the device's memory
     * @param host offset in the host's
     */
    record Range(long device, long host, long bytes) {}

    /**
     * Starts a copy to host memory.
     *
     * @param after the copy reads the device's bytes when this fence is passed
     * @return passed when the bytes are in host memory
     */
    KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after);

    /**
     * Starts a copy to the device.
     *
     * @param after the copy reads the host's bytes, and writes the device's, when this fence is passed
     * @return passed when the bytes are in the device's memory; host memory may be written again then
     */
    KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after);

    /**
     * Runs of bytes that one digest is of, equally far apart.
     *
     * @param first offset of the first run in the device's memory
     * @param stride bytes from one run to the next
     */
    record Runs(long first, long stride, int count, long bytes) {
        private long total() {
            return count * bytes;
        }

        /** One after the other in host memory. */
        private List<Range> ranges(long host) {
            return LongStream.range(0, count)
                    .mapToObj(run -> new Range(first + run * stride, host + run * bytes, bytes))
                    .toList();
        }
    }

    /**
     * Starts to digest the device's bytes. A device that computes a kind of digest, {@link KvDigest#SUM61} mostly, does it there; any
     * other copies the bytes to the host's memory, as this implementation does before it returns.
     *
     * @param digests written: one for each of {@code values}
     * @param after the device's bytes are read when this fence is passed
     * @return passed when the digests are there
     */
    default KvFence digest(KvDigest kind, List<Runs> values, long[] digests, KvFence after) {
        try (Arena arena = Arena.ofShared()) {
            long largest = values.stream().mapToLong(Runs::total).max().orElse(0);
            long all = values.stream().mapToLong(Runs::total).sum();
            MemorySegment copy = arena.allocate(Math.min(all, Math.max(largest, DIGESTED_AT_ONCE)));
            for (int first = 0, end; first < digests.length; first = end) {
                List<Range> ranges = new ArrayList<>();
                long filled = 0;
                for (end = first;
                        end < digests.length && filled + values.get(end).total() <= copy.byteSize();
                        end++) {
                    ranges.addAll(values.get(end).ranges(filled));
                    filled += values.get(end).total();
                }
                toHost(ranges, copy, after).await();
                Iterator<Range> copied = ranges.iterator();
                for (int value = first; value < end; value++) {
                    KvDigest.Running digest = kind.begin();
                    for (int run = 0; run < values.get(value).count(); run++) {
                        Range next = copied.next();
                        digest.add(copy.asSlice(next.host(), next.bytes()).asByteBuffer());
                    }
                    digests[value] = digest.value();
                }
            }
        }
        return KvFence.PASSED;
    }

    /** Host memory that the device may copy from and to without a copy in between; released by {@link #close}. */
    interface Pinned extends AutoCloseable {
        @Override
        void close();
    }

    /**
     * Equally long runs of bytes that are copied within the device's memory, equally far apart on each side.
     *
     * @param from offset of the first run in the device's memory
     * @param fromStride bytes from one run to the next
     * @param to offset that the first run is copied to
     * @param toStride bytes from one run to the next there
     * @param bytes of a run; all runs together have less than 4 GiB
     */
    record Rows(long from, long fromStride, long to, long toStride, int count, long bytes) {}

    /**
     * Starts to copy rows between the pool and memory {@linkplain #allocate beside it}. Rows do not overlap.
     *
     * @param after the copy reads and writes the device's bytes when this fence is passed
     * @return passed when the bytes are there
     */
    default KvFence copy(List<Rows> rows, KvFence after) {
        throw new UnsupportedOperationException("this device allocates no memory beside its pool");
    }

    /** Memory of the device beside the pool. */
    interface Beside extends AutoCloseable {
        /** The offset from the first byte of the pool, for all copies and digests of the device; it may be negative. */
        long offset();

        /** Frees it, after its last copy. */
        @Override
        void close();
    }

    /** Allocates memory of the device beside the pool; empty if there is no room for it, or the device cannot. */
    default Optional<Beside> allocate(long bytes) {
        return Optional.empty();
    }

    /**
     * The device goes on with work that was given up, so it may write to memory that others take. Each later copy, step and fence of the device
     * fails, so nothing takes any.
     */
    default void fail(String why) {
        throw new IllegalStateException(why);
    }

    /** Shares the device's pool with other processes of this host, the same object each time; empty if the device cannot. */
    default Optional<DevicePeers> peers() {
        return Optional.empty();
    }

    /** Pins host memory, before the first copy. A device that copies from any memory at full speed has nothing to do. */
    default Pinned pin(MemorySegment host) {
        return () -> {};
    }
}
