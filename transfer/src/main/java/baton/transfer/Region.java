package baton.transfer;

import baton.kv.KvDevice;
import baton.kv.KvMemory;
import baton.memory.MappableMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/**
 * Memory to register, of the host or of a device.
 *
 * @param where native memory; outlives its registration. If the host's is a mapping of a file, the region is the whole file
 * @param needsPermit whether peers write to it with a {@link TransferAgent.Permit} only, where the agent can hold writes back; they
 *     read it in any case
 */
public record Region(KvMemory where, boolean needsPermit) {
    private static final long CACHE_LINE = 64;

    public Region {
        if (where.bytes() == 0
                || where instanceof KvMemory.Host host && !host.host().isNative()) {
            throw new IllegalArgumentException("memory=" + where + " must be native and not empty");
        }
    }

    /** Memory of the host that peers may write to as they like. */
    public Region(MemorySegment memory, Optional<Path> file) {
        this(new KvMemory.Host(memory, file), false);
    }

    /**
     * Memory of zeros that peers may write to as they like: {@link MappableMemory}, or this process's alone where there is none.
     *
     * @param arena with which the memory ends
     * @param purpose of the memory, for errors
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

    public long address() {
        return where.address();
    }

    public long bytes() {
        return where.bytes();
    }

    /** The device that has the memory; empty if the host has it. */
    public Optional<KvDevice> device() {
        return where instanceof KvMemory.Device device ? Optional.of(device.device()) : Optional.empty();
    }

    /**
     * Its bytes.
     *
     * @throws IllegalStateException if it is a device's
     */
    public MemorySegment memory() {
        return where.host();
    }

    /**
     * The host's memory, of an agent that can register no other.
     *
     * @param agent its name, for the error
     * @throws TransferException if the region is a device's
     */
    public KvMemory.Host requireHost(String agent) throws TransferException {
        return switch (where) {
            case KvMemory.Host host -> host;
            case KvMemory.Device device ->
                throw new TransferException(
                        "%s cannot register memory of %s: it reads and writes the host's memory only"
                                .formatted(agent, device.device()));
        };
    }

    /** The memory of a KV pool. */
    public KvMemory.Host asPool() {
        return (KvMemory.Host) where;
    }

    /** The same, to be written to by peers with a permit only. */
    public Region withPermitsOnly() {
        return new Region(where, true);
    }
}
