package baton.transfer.embedded;

import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Set;

/**
 * The part of a transfer that lies in this process.
 *
 * @param memory of each range
 * @param touched the objects that the transfer depends on: {@link MemoryRegistry.Registered}, {@link PeerMemory.Mapped},
 *     {@link WriteGrant}; the end of one ends the transfer
 */
record LocalRanges(List<MemorySegment> memory, Set<Object> touched) {
    long bytes() {
        long bytes = 0;
        for (MemorySegment each : memory) {
            bytes += each.byteSize();
        }
        return bytes;
    }
}
