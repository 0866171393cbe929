package baton.transfer;

import baton.memory.Platform;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.VarHandle;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Memory of zeros that other processes of this host can map: a file without a name (memfd_create(2)), mapped shared, in huge pages
 * where the kernel grants them to shared memory. Its size is sealed, so that processes that map it can rely on its pages. Linux only;
 * {@link Region#allocate} has an alternative elsewhere.
 *
 * @param memory aligned to a huge page; lives as long as the arena it was allocated in
 * @param file by which a process of the same user maps it for that long, {@code /proc/PID/fd/N}
 */
public record MappableMemory(MemorySegment memory, Path file) {
    private static final Logger LOG = LoggerFactory.getLogger(MappableMemory.class);
    private static final long HUGE_PAGE = 2L << 20;
    private static final int PROT_NONE = 0;
    private static final int PROT_READ = 0x1;
    private static final int PROT_WRITE = 0x2;
    private static final int MAP_SHARED = 0x01;
    private static final int MAP_PRIVATE = 0x02;
    private static final int MAP_FIXED = 0x10;
    private static final int MAP_ANONYMOUS = 0x20;
    private static final int MAP_NORESERVE = 0x4000;
    private static final long MAP_FAILED = -1;
    private static final int MADV_HUGEPAGE = 14;
    private static final int MADV_POPULATE_READ = 22;
    private static final int MADV_POPULATE_WRITE = 23;
    /** Less costs less than a thread. */
    private static final long LEAST_POPULATED = 1L << 20;

    private static final long POPULATED_AT_ONCE = 16L << 20;
    private static final int MFD_CLOEXEC = 0x1;
    private static final int MFD_ALLOW_SEALING = 0x2;
    private static final int O_RDONLY_NONBLOCK_CLOEXEC = 0x800 | 0x80000;
    private static final int F_ADD_SEALS = 1033;
    private static final int F_GET_SEALS = 1034;
    private static final int PRIO_PROCESS = 0;
    private static final int THIS_THREAD = 0;
    private static final int LOWEST_PRIORITY = 19;
    private static final int SEAL_SHRINK = 0x2;
    private static final int SEAL_GROW = 0x4;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final Linker.Option ERRNO = Linker.Option.captureCallState("errno");
    private static final VarHandle ERRNO_OF =
            Linker.Option.captureStateLayout().varHandle(MemoryLayout.PathElement.groupElement("errno"));

    private static final Optional<String> WHY_NONE = whyNone(Platform.current());

    static {
        WHY_NONE.ifPresent(why -> LOG.info("{}: transfer agents move its bytes over TCP", why));
    }

    /** System calls, looked up when the first is made: not every system has them. */
    private static final class Calls {
        private static final MethodHandle MEMFD_CREATE =
                handle("memfd_create", FunctionDescriptor.of(INT, ValueLayout.ADDRESS, INT), ERRNO);
        private static final MethodHandle FTRUNCATE = handle("ftruncate", FunctionDescriptor.of(INT, INT, LONG), ERRNO);
        private static final MethodHandle FCNTL =
                handle("fcntl", FunctionDescriptor.of(INT, INT, INT, INT), ERRNO, Linker.Option.firstVariadicArg(2));
        private static final MethodHandle OPEN = handle(
                "open", FunctionDescriptor.of(INT, ValueLayout.ADDRESS, INT), ERRNO, Linker.Option.firstVariadicArg(2));
        private static final MethodHandle CLOSE = handle("close", FunctionDescriptor.of(INT, INT));
        private static final MethodHandle MMAP = handle(
                "mmap",
                FunctionDescriptor.of(ValueLayout.ADDRESS, ValueLayout.ADDRESS, LONG, INT, INT, INT, LONG),
                ERRNO);
        private static final MethodHandle MUNMAP =
                handle("munmap", FunctionDescriptor.of(INT, ValueLayout.ADDRESS, LONG));
        private static final MethodHandle MADVISE =
                handle("madvise", FunctionDescriptor.of(INT, ValueLayout.ADDRESS, LONG, INT));
        private static final MethodHandle SETPRIORITY =
                handle("setpriority", FunctionDescriptor.of(INT, INT, INT, INT));

        private static MethodHandle handle(String name, FunctionDescriptor descriptor, Linker.Option... options) {
            Linker linker = Linker.nativeLinker();
            return linker.downcallHandle(linker.defaultLookup().findOrThrow(name), descriptor, options);
        }
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
     * @param arena with which the memory ends, for this process; who has it mapped keeps it
     * @param purpose what it is for, for errors and for {@code /proc/PID/maps}
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
        try (Arena temporary = Arena.ofConfined()) {
            MemorySegment errno = temporary.allocate(Linker.Option.captureStateLayout());
            int fd = (int) Calls.MEMFD_CREATE.invokeExact(
                    errno, temporary.allocateFrom("baton: " + purpose), MFD_CLOEXEC | MFD_ALLOW_SEALING);
            if (fd < 0) {
                throw refused("memfd_create", errno, bytes, purpose);
            }
            try {
                if ((int) Calls.FTRUNCATE.invokeExact(errno, fd, bytes) < 0) {
                    throw refused("ftruncate", errno, bytes, purpose);
                }
                if ((int) Calls.FCNTL.invokeExact(errno, fd, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW) < 0) {
                    throw refused("fcntl", errno, bytes, purpose);
                }
                // Addresses for one huge page more than needed, of which the file then takes an aligned part.
                long reserved = Math.addExact(bytes, 2 * HUGE_PAGE);
                MemorySegment space = (MemorySegment) Calls.MMAP.invokeExact(
                        errno,
                        MemorySegment.NULL,
                        reserved,
                        PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1,
                        0L);
                if (space.address() == MAP_FAILED) {
                    throw refused("mmap", errno, bytes, purpose);
                }
                MemorySegment aligned = MemorySegment.ofAddress(Math.ceilDiv(space.address(), HUGE_PAGE) * HUGE_PAGE);
                MemorySegment placed = (MemorySegment) Calls.MMAP.invokeExact(
                        errno, aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0L);
                if (placed.address() == MAP_FAILED) {
                    unmap(space, reserved);
                    throw refused("mmap", errno, bytes, purpose);
                }
                // Refusal costs speed only.
                int _ = (int) Calls.MADVISE.invokeExact(placed, bytes, MADV_HUGEPAGE);
                Populating populating = Populating.start(placed, bytes, MADV_POPULATE_WRITE);
                MemorySegment memory = placed.reinterpret(bytes, arena, _ -> {
                    populating.end();
                    unmap(space, reserved);
                    close(fd);
                });
                return new MappableMemory(
                        memory, Path.of("/proc/" + ProcessHandle.current().pid() + "/fd/" + fd));
            } catch (Throwable e) {
                close(fd);
                throw e;
            }
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError("system calls throw nothing", e);
        }
    }

    /**
     * Maps memory that another process allocated, to be read.
     *
     * @param arena with which the mapping ends
     * @param inode of the file, as its owner sees it: another file at this path is refused
     * @param bytes of the file
     * @throws IOException if it is not that memory, or its size is not sealed, or the system refuses
     */
    public static MemorySegment map(Arena arena, Path file, long inode, long bytes) throws IOException {
        if (WHY_NONE.isPresent()) {
            throw new IOException(WHY_NONE.get());
        }
        try (Arena temporary = Arena.ofConfined()) {
            MemorySegment errno = temporary.allocate(Linker.Option.captureStateLayout());
            int fd = (int)
                    Calls.OPEN.invokeExact(errno, temporary.allocateFrom(file.toString()), O_RDONLY_NONBLOCK_CLOEXEC);
            if (fd < 0) {
                throw new IOException("cannot open %s: errno=%d".formatted(file, (int) ERRNO_OF.get(errno, 0L)));
            }
            try {
                Path found = Path.of("/proc/self/fd/" + fd);
                if (inode(found) != inode || Files.size(found) != bytes) {
                    throw new IOException("%s is a file of inode=%d size=%d, not of inode=%d size=%d"
                            .formatted(file, inode(found), Files.size(found), inode, bytes));
                }
                int seals = (int) Calls.FCNTL.invokeExact(errno, fd, F_GET_SEALS, 0);
                if (seals < 0 || (seals & SEAL_SHRINK) == 0) {
                    throw new IOException(file + " may shrink, which would end its reader");
                }
                MemorySegment mapped = (MemorySegment)
                        Calls.MMAP.invokeExact(errno, MemorySegment.NULL, bytes, PROT_READ, MAP_SHARED, fd, 0L);
                if (mapped.address() == MAP_FAILED) {
                    throw new IOException("cannot map %d bytes of %s: errno=%d"
                            .formatted(bytes, file, (int) ERRNO_OF.get(errno, 0L)));
                }
                Populating populating = Populating.start(mapped, bytes, MADV_POPULATE_READ);
                return mapped.reinterpret(bytes, arena, segment -> {
                            populating.end();
                            unmap(segment, bytes);
                        })
                        .asReadOnly();
            } finally {
                close(fd);
            }
        } catch (IOException | RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError("system calls throw nothing", e);
        }
    }

    /** The number by which a file's system knows it. */
    public static long inode(Path file) throws IOException {
        return (long) Files.getAttribute(file, "unix:ino");
    }

    /** Has the system fill the page table of a mapping, in the background and piece by piece, for as long as the mapping is there. */
    private static final class Populating {
        private final MemorySegment mapping;
        private final long bytes;
        private final int advice;
        private boolean ended;

        private Populating(MemorySegment mapping, long bytes, int advice) {
            this.mapping = mapping;
            this.bytes = bytes;
            this.advice = advice;
        }

        static Populating start(MemorySegment mapping, long bytes, int advice) {
            Populating populating = new Populating(mapping, bytes, advice);
            if (bytes >= LEAST_POPULATED) {
                Thread.ofPlatform().daemon().name("populate").start(populating::run);
            }
            return populating;
        }

        private void run() {
            lowerPriority();
            long done = 0;
            while (done < bytes && populate(done, Math.min(POPULATED_AT_ONCE, bytes - done))) {
                done += POPULATED_AT_ONCE;
            }
        }

        /** The engine's and the connector's threads come first: a missing page costs them little, populating gigabytes costs a core. */
        private static void lowerPriority() {
            try {
                int _ = (int) Calls.SETPRIORITY.invokeExact(PRIO_PROCESS, THIS_THREAD, LOWEST_PRIORITY);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new AssertionError("setpriority throws nothing", e);
            }
        }

        /** False if that was the last: the mapping goes, or the kernel has no memory or, before 5.14, no such call. */
        private synchronized boolean populate(long from, long length) {
            try {
                MemorySegment start = MemorySegment.ofAddress(mapping.address() + from);
                return !ended && (int) Calls.MADVISE.invokeExact(start, length, advice) == 0;
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new AssertionError("madvise throws nothing", e);
            }
        }

        synchronized void end() {
            ended = true;
        }
    }

    private static IllegalStateException refused(String call, MemorySegment errno, long bytes, String purpose) {
        return new IllegalStateException("no memory: %s refused %d bytes for %s, errno=%d"
                .formatted(call, bytes, purpose, (int) ERRNO_OF.get(errno, 0L)));
    }

    private static void unmap(MemorySegment mapping, long bytes) {
        try {
            int _ = (int) Calls.MUNMAP.invokeExact(mapping, bytes);
        } catch (Throwable e) {
            throw new AssertionError("munmap throws nothing", e);
        }
    }

    private static void close(int fd) {
        try {
            int _ = (int) Calls.CLOSE.invokeExact(fd);
        } catch (Throwable e) {
            throw new AssertionError("close throws nothing", e);
        }
    }
}
