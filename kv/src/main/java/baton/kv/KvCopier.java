package baton.kv;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Copies between a device's memory and the host's, and digests of the device's. Copies are asynchronous, and one call is one batch: a
 * block of all layers is one range. Safe for use by several threads.
 */
public interface KvCopier {
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
    record Runs(long first, long stride, int count, long bytes) {}

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
            MemorySegment copy = arena.allocate(values.stream()
                    .mapToLong(each -> each.count() * each.bytes())
                    .max()
                    .orElse(0));
            for (int i = 0; i < digests.length; i++) {
                Runs value = values.get(i);
                List<Range> ranges = new ArrayList<>();
                for (int run = 0; run < value.count(); run++) {
                    ranges.add(new Range(value.first() + run * value.stride(), run * value.bytes(), value.bytes()));
                }
                toHost(ranges, copy, after).await();
                KvDigest.Running digest = kind.begin();
                for (Range range : ranges) {
                    digest.add(copy.asSlice(range.host(), range.bytes()).asByteBuffer());
                }
                digests[i] = digest.value();
            }
        }
        return KvFence.PASSED;
    }

    /** Host memory that the device may copy from and to without a copy in between; released by {@link #close}. */
    interface Pinned extends AutoCloseable {
        @Override
        void close();
    }

    /** Pins host memory, before the first copy. A device that copies from any memory at full speed has nothing to do. */
    default Pinned pin(MemorySegment host) {
        return () -> {};
    }
}
