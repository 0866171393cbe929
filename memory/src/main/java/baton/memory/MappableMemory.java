package baton.memory;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Memory of zeros that other processes of this host can map: a file without a name (memfd_create(2)), mapped shared, in huge pages
 * where the kernel grants them to shared memory. Its size is sealed, so that processes that map it can rely on its pages. Linux only;
 * see {@link #whyNone}.
 *
 * @param memory aligned to a huge page; lives as long as the arena it was allocated in
 * @param file by which a process of the same user maps it for that long, {@code /proc/PID/fd/N}
 */
public record MappableMemory(MemorySegment memory, Path file) {
    private static final Logger LOG = LoggerFactory.getLogger(MappableMemory.class);
    private static final long HUGE_PAGE = 2L << 20;
    private static final Optional<String> WHY_NONE = whyNone(Platform.current());

    static {
        WHY_NONE.ifPresent(why -> LOG.info("{}: transfer agents move its bytes over TCP", why));
    }

    /** Why there is no such memory here; empty where there is. */
    public static Optional<String> whyNone() {
        return WHY_NONE;
    }

    static Optional<String> whyNone(Platform platform) {
        return platform.isLinux()
                ? Optional.empty()
                : Optional.of(
                        "memory cannot be mapped by other processes of this host on " + platform + ", only on Linux");
    }

    /**
     * Allocates. Pages are taken from the system from now on, by a thread of their own: a page that is taken when it is first written
     * to costs as much time as copying it once or twice.
     *
     * @param arena with which the memory ends, for this process; other processes keep their mappings
     * @param purpose its use, for errors and for {@code /proc/PID/maps}
     * @throws IllegalStateException if the kernel refuses
     * @throws UnsupportedOperationException if there is no such memory here, see {@link #whyNone}
     */
    public static MappableMemory allocate(Arena arena, long bytes, String purpose) {
        if (bytes <= 0) {
            throw new IllegalArgumentException("bytes=" + bytes + " must be positive");
        }
        if (WHY_NONE.isPresent()) {
            throw new UnsupportedOperationException(WHY_NONE.get());
        }
        try {
            int fd = Posix.memfdCreate("baton: " + purpose, Posix.MFD_CLOEXEC | Posix.MFD_ALLOW_SEALING);
            try {
                Posix.ftruncate(fd, bytes);
                Posix.fcntl(fd, Posix.F_ADD_SEALS, Posix.F_SEAL_SHRINK | Posix.F_SEAL_GROW);
                return map(arena, fd, bytes);
            } catch (Posix.Failure | RuntimeException | Error e) {
                Posix.close(fd);
                throw e;
            }
        } catch (Posix.Failure e) {
            throw new IllegalStateException(
                    "no memory: %s refused %d bytes for %s, errno=%d"
                            .formatted(e.function(), bytes, purpose, e.errno()),
                    e);
        }
    }

    private static MappableMemory map(Arena arena, int fd, long bytes) throws Posix.Failure {
        // Addresses for two huge pages more than needed, of which the file then takes an aligned part.
        long reserved = Math.addExact(bytes, 2 * HUGE_PAGE);
        MemorySegment space = Posix.mmap(
                MemorySegment.NULL,
                reserved,
                Posix.PROT_NONE,
                Posix.MAP_PRIVATE | Posix.MAP_ANONYMOUS | Posix.MAP_NORESERVE,
                Posix.NO_FILE);
        MemorySegment aligned = MemorySegment.ofAddress(Math.ceilDiv(space.address(), HUGE_PAGE) * HUGE_PAGE);
        MemorySegment placed;
        try {
            placed = Posix.mmap(
                    aligned, bytes, Posix.PROT_READ | Posix.PROT_WRITE, Posix.MAP_SHARED | Posix.MAP_FIXED, fd);
        } catch (Posix.Failure e) {
            Posix.munmap(space, reserved);
            throw e;
        }
        // Refusal costs speed only.
        Posix.madvise(placed, bytes, Posix.MADV_HUGEPAGE);
        Populating populating = Populating.start(placed, bytes, Posix.MADV_POPULATE_WRITE);
        MemorySegment memory = placed.reinterpret(bytes, arena, _ -> {
            populating.end();
            Posix.munmap(space, reserved);
            Posix.close(fd);
        });
        return new MappableMemory(
                memory, Path.of("/proc/" + ProcessHandle.current().pid() + "/fd/" + fd));
    }

    /**
     * Maps memory that another process allocated, to be read. The page table is filled from now on, by a thread of its own.
     *
     * @param arena with which the mapping ends
     * @param inode of the file, as its owner sees it: another file at this path is refused
     * @param bytes of the file
     * @throws IOException if it is not that memory, or its size is not sealed, or the system refuses
     */
    public static MemorySegment map(Arena arena, Path file, long inode, long bytes) throws IOException {
        return map(arena, file, inode, bytes, true);
    }

    /**
     * As {@link #map}, but the page table is filled as pages are read: for memory much of which is not read, or has no pages yet, which
     * would be this process's.
     */
    public static MemorySegment mapOnDemand(Arena arena, Path file, long inode, long bytes) throws IOException {
        return map(arena, file, inode, bytes, false);
    }

    private static MemorySegment map(Arena arena, Path file, long inode, long bytes, boolean populates)
            throws IOException {
        if (WHY_NONE.isPresent()) {
            throw new IOException(WHY_NONE.get());
        }
        int fd;
        try {
            fd = Posix.open(file, Posix.O_RDONLY | Posix.O_NONBLOCK | Posix.O_CLOEXEC);
        } catch (Posix.Failure e) {
            throw new IOException("cannot open %s: errno=%d".formatted(file, e.errno()), e);
        }
        try {
            Path found = Path.of("/proc/self/fd/" + fd);
            if (inode(found) != inode || Files.size(found) != bytes) {
                throw new IOException("%s is a file of inode=%d size=%d, not of inode=%d size=%d"
                        .formatted(file, inode(found), Files.size(found), inode, bytes));
            }
            if (!cannotShrink(fd)) {
                throw new IOException(file + " may shrink, which would end its reader");
            }
            MemorySegment mapped = Posix.mmap(MemorySegment.NULL, bytes, Posix.PROT_READ, Posix.MAP_SHARED, fd);
            Optional<Populating> populating = populates
                    ? Optional.of(Populating.start(mapped, bytes, Posix.MADV_POPULATE_READ))
                    : Optional.empty();
            return mapped.reinterpret(bytes, arena, segment -> {
                        populating.ifPresent(Populating::end);
                        Posix.munmap(segment, bytes);
                    })
                    .asReadOnly();
        } catch (Posix.Failure e) {
            throw new IOException("cannot map %d bytes of %s: errno=%d".formatted(bytes, file, e.errno()), e);
        } finally {
            Posix.close(fd);
        }
    }

    private static boolean cannotShrink(int fd) {
        try {
            return (Posix.fcntl(fd, Posix.F_GET_SEALS, 0) & Posix.F_SEAL_SHRINK) != 0;
        } catch (Posix.Failure _) {
            // A file of a kind that has no seals.
            return false;
        }
    }

    /** The number by which a file's system knows it. */
    public static long inode(Path file) throws IOException {
        return (long) Files.getAttribute(file, "unix:ino");
    }
}
