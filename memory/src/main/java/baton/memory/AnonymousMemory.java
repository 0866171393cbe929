package baton.memory;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Large memory of zeros for this process alone, of which no page is touched before it is used: an anonymous mapping. {@link Arena#allocate} writes
 * the zeros itself, so its caller waits until the system has found and cleared every page, 25 ms for 64 MiB and far more where the host has to
 * find them first.
 */
public final class AnonymousMemory {
    private AnonymousMemory() {}

    /**
     * Allocates, in huge pages where the kernel grants them. Pages are taken from the system when they are first used, or before that by a thread of
     * their own while processors are free. On platforms other than Linux, as {@link Arena#allocate} does.
     *
     * @param arena with which the memory ends
     * @param alignment a power of two, not larger than a page
     * @throws OutOfMemoryError if the system refuses, as with {@link Arena#allocate}
     */
    public static MemorySegment allocate(Arena arena, long bytes, long alignment) {
        if (!Platform.current().isLinux()) {
            return arena.allocate(bytes, alignment);
        }
        MemorySegment mapped;
        try {
            mapped = Posix.mmap(
                    MemorySegment.NULL,
                    bytes,
                    Posix.PROT_READ | Posix.PROT_WRITE,
                    Posix.MAP_PRIVATE | Posix.MAP_ANONYMOUS,
                    Posix.NO_FILE);
        } catch (Posix.Failure e) {
            throw new OutOfMemoryError("mmap refused " + bytes + " bytes, errno=" + e.errno());
        }
        // Refusal costs speed only.
        Posix.madvise(mapped, bytes, Posix.MADV_HUGEPAGE);
        Populating populating = Populating.start(mapped, bytes, Posix.MADV_POPULATE_WRITE);
        return mapped.reinterpret(bytes, arena, segment -> {
            populating.end();
            Posix.munmap(segment, bytes);
        });
    }
}
