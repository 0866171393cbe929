package baton.transfer;

import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/**
 * Memory to register.
 *
 * @param memory native memory; outlives its registration
 * @param file by which another process of this host can map it, the region being the whole file
 */
public record Region(MemorySegment memory, Optional<Path> file) {
    public Region {
        if (!memory.isNative() || memory.byteSize() == 0) {
            throw new IllegalArgumentException("memory=" + memory + " must be native and not empty");
        }
    }
}
