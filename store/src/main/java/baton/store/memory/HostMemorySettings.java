package baton.store.memory;

import baton.kv.GeneratedBuilder;
import java.util.Optional;

/**
 * Of a {@link HostMemoryStore}.
 *
 * @param capacityBytes for values, their index not counted; a remainder smaller than a value is not used
 * @param eviction the policy when there is no room
 * @param threads that copy; with 0 of them, the calling thread copies, as a simulation needs it
 * @param checksums whether values get a CRC32C while they are copied in, which is compared when a whole value is copied out
 * @param events whether it keeps events
 * @param shared memory that other processes use too; without it, the store ends with its process
 */
@GeneratedBuilder
public record HostMemorySettings(
        long capacityBytes,
        Eviction eviction,
        int threads,
        boolean checksums,
        boolean events,
        Optional<SharedMemory> shared)
        implements HostMemorySettingsBuilder.With {
    /** @throws IllegalArgumentException if a number is negative */
    public HostMemorySettings {
        if (capacityBytes < 0 || threads < 0) {
            throw new IllegalArgumentException(
                    "capacityBytes=%d threads=%d must not be negative".formatted(capacityBytes, threads));
        }
    }

    /** LRU, two threads, checksums and events. */
    public static HostMemorySettings of(long capacityBytes) {
        return new HostMemorySettings(capacityBytes, Eviction.LRU, 2, true, true, Optional.empty());
    }
}
