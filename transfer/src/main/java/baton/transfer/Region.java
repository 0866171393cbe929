package baton.transfer;

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
    public Region {
        if (!memory.isNative() || memory.byteSize() == 0) {
            throw new IllegalArgumentException("memory=" + memory + " must be native and not empty");
        }
    }

    /** One that peers may write to as they like. */
    public Region(MemorySegment memory, Optional<Path> file) {
        this(memory, file, false);
    }

    /** The same, to be written to by peers with a permit only. */
    public Region withPermitsOnly() {
        return new Region(memory, file, true);
    }
}
