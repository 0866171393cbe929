package baton.memory;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Optional;

/**
 * A file that processes of one user map to share memory that outlives them, as in {@code /dev/shm}. Linux only; see
 * {@link MappableMemory#whyNone}.
 *
 * <p>It has locks by number, which this opened file has or another one, of this process or another: the kernel frees those of a process that
 * dies. Locks do not exclude threads that use the same object.
 *
 * <p>Whatever makes a file shorter that is mapped ends the processes that touch it there. A file with a name can not be sealed against it;
 * only processes of its user can do it.
 */
public final class MappedFile implements AutoCloseable {
    private static final String OWNER_ONLY = "rw-------";
    private static final int OTHERS = 0077;
    /** Locks are on bytes behind any that a file has. */
    private static final long LOCKS_AT = 1L << 60;

    private static final int ENOSPC = 28;

    private final Path path;
    private final int fd;

    private MappedFile(Path path, int fd) {
        this.path = path;
        this.fd = fd;
    }

    /**
     * Opens a file, and creates it if there is none.
     *
     * @throws IOException if it is not a regular file that this user, and no other, can read and write
     */
    public static MappedFile open(Path path) throws IOException {
        Optional<String> whyNone = MappableMemory.whyNone();
        if (whyNone.isPresent()) {
            throw new IOException(whyNone.get());
        }
        try {
            Files.createFile(path, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString(OWNER_ONLY)));
        } catch (FileAlreadyExistsException _) {
            // By another process, or earlier.
        }
        if (!Files.isRegularFile(path, LinkOption.NOFOLLOW_LINKS)) {
            throw new IOException(path + " is not a regular file");
        }
        int fd;
        try {
            fd = Posix.open(path, Posix.O_RDWR | Posix.O_NONBLOCK | Posix.O_CLOEXEC);
        } catch (Posix.Failure e) {
            throw new IOException("cannot open %s: errno=%d".formatted(path, e.errno()), e);
        }
        MappedFile file = new MappedFile(path, fd);
        try {
            Object owner = Files.getAttribute(file.opened(), "unix:uid");
            Object user = Files.getAttribute(Path.of("/proc/self"), "unix:uid");
            int mode = (int) Files.getAttribute(file.opened(), "unix:mode");
            if (!owner.equals(user) || (mode & OTHERS) != 0) {
                throw new IOException("%s is a file of uid=%s with mode=%o, must be of uid=%s and for no other"
                        .formatted(path, owner, mode & 0777, user));
            }
            return file;
        } catch (IOException | RuntimeException e) {
            file.close();
            throw e;
        }
    }

    private Path opened() {
        return Path.of("/proc/self/fd/" + fd);
    }

    public Path path() {
        return path;
    }

    public long bytes() throws IOException {
        return Files.size(opened());
    }

    /** Whether the path names this file still. */
    public boolean isCurrent() throws IOException {
        try {
            return MappableMemory.inode(path) == MappableMemory.inode(opened());
        } catch (NoSuchFileException _) {
            return false;
        }
    }

    /**
     * Gives it a size, and takes all of its pages from the system: one that could not be had later would end the process.
     *
     * @throws IOException if there is not enough room
     */
    public void allocate(long bytes) throws IOException {
        int error = Posix.fallocate(fd, bytes);
        if (error != 0) {
            throw new IOException("%s cannot have %d bytes: %s"
                    .formatted(
                            path,
                            bytes,
                            error == ENOSPC
                                    ? "its file system has %d left"
                                            .formatted(Files.getFileStore(path).getUsableSpace() + bytes())
                                    : "errno=" + error));
        }
    }

    /**
     * Maps it to be read and written, from its beginning.
     *
     * @param arena with which the mapping ends
     */
    public MemorySegment map(Arena arena, long bytes) throws IOException {
        if (bytes() < bytes) {
            throw new IOException("%s has %d bytes, not %d".formatted(path, bytes(), bytes));
        }
        try {
            MemorySegment mapped =
                    Posix.mmap(MemorySegment.NULL, bytes, Posix.PROT_READ | Posix.PROT_WRITE, Posix.MAP_SHARED, fd);
            // Refusal costs speed only.
            Posix.madvise(mapped, bytes, Posix.MADV_HUGEPAGE);
            Populating populating = Populating.start(mapped, bytes, Posix.MADV_POPULATE_WRITE);
            return mapped.reinterpret(bytes, arena, segment -> {
                populating.end();
                Posix.munmap(segment, bytes);
            });
        } catch (Posix.Failure e) {
            throw new IOException("cannot map %d bytes of %s: errno=%d".formatted(bytes, path, e.errno()), e);
        }
    }

    /** @return false if another opened file has the lock */
    public boolean tryLock(int number) {
        return lock(number, true);
    }

    public void unlock(int number) {
        lock(number, false);
    }

    private boolean lock(int number, boolean locked) {
        try {
            return Posix.lock(fd, LOCKS_AT + number, locked);
        } catch (Posix.Failure e) {
            throw new IllegalStateException(path + " cannot be locked: " + e.getMessage(), e);
        }
    }

    /** Whether another opened file has the lock. */
    public boolean isLockedElsewhere(int number) {
        try {
            return Posix.isLocked(fd, LOCKS_AT + number);
        } catch (Posix.Failure e) {
            throw new IllegalStateException(path + " cannot be locked: " + e.getMessage(), e);
        }
    }

    /** Closes the file, and frees its locks; its mappings stay. */
    @Override
    public void close() {
        Posix.close(fd);
    }
}
