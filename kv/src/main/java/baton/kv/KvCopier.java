package baton.kv;

import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Copies between a device's memory and the host's. Copies are asynchronous, and one call is one batch: a block of all layers is one
 * range. Safe for use by several threads.
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
