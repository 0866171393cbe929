package baton.transfer;

import baton.kv.KvMemory;
import baton.memory.MappableMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/**
 * Memory to register.
 *
 * @param memory native memory; outlives its registration
 * @param file by which another process of this host can map it, the region being the whole file
 * @param needsPermit whether peers write to it with a {@link TransferAgent.Permit} only, where the agent can hold writes back; they
 *     read it in any case
 */
public record Region(MemorySegment memory, Optional<Path> file, boolean needsPermit) {
    private static final long CACHE_LINE = 64;

    public Region {
        if (!memory.isNative() || memory.byteSize() == 0) {
            throw new IllegalArgumentException("memory=" + memory + " must be native and not empty");
        }
    }

    /** One that peers may write to as they like. */
    public Region(MemorySegment memory, Optional<Path> file) {
        this(memory, file, false);
    }

    /**
     * A KV pool that peers may write to as they like.
     *
     * @throws IllegalArgumentException if its bytes are a device's
     */
    public static Region of(KvMemory memory) {
        return switch (memory) {
            case KvMemory.Host(MemorySegment bytes, Optional<Path> file) -> new Region(bytes, file);
            case KvMemory.Device device ->
                throw new IllegalArgumentException(
                        "memory=%s of %s is not the host's".formatted(device.address(), device.device()));
        };
    }

    /**
     * Memory of zeros that peers may write to as they like: {@link MappableMemory}, or this process's alone where there is none.
     *
     * @param arena with which the memory ends
     * @param purpose what it is for, for errors
     * @throws IllegalStateException if the system refuses
     */
    public static Region allocate(Arena arena, long bytes, String purpose) {
        if (MappableMemory.whyNone().isEmpty()) {
            MappableMemory mappable = MappableMemory.allocate(arena, bytes, purpose);
            return new Region(mappable.memory(), Optional.of(mappable.file()));
        }
        try {
            return new Region(arena.allocate(bytes, CACHE_LINE), Optional.empty());
        } catch (OutOfMemoryError e) {
            throw new IllegalStateException(
                    "no memory: the system refused %d bytes for %s".formatted(bytes, purpose), e);
        }
    }

    /** The memory of a KV pool. */
    public KvMemory.Host asPool() {
        return new KvMemory.Host(memory, file);
    }

    /** The same, to be written to by peers with a permit only. */
    public Region withPermitsOnly() {
        return new Region(memory, file, true);
    }
}
