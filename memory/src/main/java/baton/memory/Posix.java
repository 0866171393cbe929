package baton.memory;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.invoke.VarHandle;
import java.nio.file.Path;
import java.util.Optional;

/**
 * Functions of the C library, called without native code of our own. Constants have Linux' values; callers ask {@link Platform} first.
 *
 * <p>A function that the C library lacks throws {@link UnsupportedOperationException} when it is called.
 */
public final class Posix {
    public static final int PROT_NONE = 0;
    public static final int PROT_READ = 0x1;
    public static final int PROT_WRITE = 0x2;
    public static final int PROT_EXEC = 0x4;

    public static final int MAP_SHARED = 0x01;
    public static final int MAP_PRIVATE = 0x02;
    public static final int MAP_FIXED = 0x10;
    public static final int MAP_ANONYMOUS = 0x20;
    public static final int MAP_NORESERVE = 0x4000;

    public static final int MADV_HUGEPAGE = 14;
    public static final int MADV_POPULATE_READ = 22;
    public static final int MADV_POPULATE_WRITE = 23;

    public static final int MFD_CLOEXEC = 0x1;
    public static final int MFD_ALLOW_SEALING = 0x2;

    public static final int O_RDONLY = 0;
    public static final int O_RDWR = 2;
    public static final int O_NONBLOCK = 0x800;
    public static final int O_CLOEXEC = 0x80000;

    public static final int F_ADD_SEALS = 1033;
    public static final int F_GET_SEALS = 1034;
    public static final int F_SEAL_SHRINK = 0x2;
    public static final int F_SEAL_GROW = 0x4;

    private static final int CLOCK_PROCESS_CPUTIME_ID = 2;
    private static final int CLOCK_THREAD_CPUTIME_ID = 3;
    private static final long NANOS_A_SECOND = 1_000_000_000;

    private static final long SYS_ARCH_PRCTL = 158;
    private static final long ARCH_REQ_XCOMP_PERM = 0x1023;
    /** Number of the state component that has the tiles' data. */
    private static final long XTILEDATA = 18;

    private static final int F_OFD_GETLK = 36;
    private static final int F_OFD_SETLK = 37;
    private static final short F_WRLCK = 1;
    private static final short F_UNLCK = 2;
    private static final int EINTR = 4;
    private static final int EAGAIN = 11;
    private static final int EACCES = 13;
    /** The size of a {@code struct flock}: {@code [type: 2 | whence: 2 | pad: 4 | start: 8 | length: 8 | pid: 4 | pad: 4]}. */
    private static final int FLOCK_BYTES = 32;

    /** Stands for a file descriptor in mappings of anonymous memory. */
    public static final int NO_FILE = -1;

    private static final long MAP_FAILED = -1;
    private static final int VERSION_BYTES = 64;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;
    private static final Linker.Option ERRNO = Linker.Option.captureCallState("errno");
    private static final VarHandle ERRNO_OF =
            Linker.Option.captureStateLayout().varHandle(MemoryLayout.PathElement.groupElement("errno"));

    private Posix() {}

    /** A call that returned an error. */
    public static final class Failure extends Exception {
        private final String function;
        private final int errno;

        private Failure(String function, MemorySegment captured) {
            this.function = function;
            this.errno = (int) ERRNO_OF.get(captured, 0L);
        }

        /** Name of the function. */
        public String function() {
            return function;
        }

        /** Linux' number of the error, see errno(3). */
        public int errno() {
            return errno;
        }

        @Override
        public String getMessage() {
            return function + " failed, errno=" + errno;
        }
    }

    /** Looked up when the first of them is called. */
    private static final class Memory {
        private static final MethodHandle MMAP =
                function("mmap", FunctionDescriptor.of(ADDRESS, ADDRESS, LONG, INT, INT, INT, LONG), ERRNO);
        private static final MethodHandle MUNMAP = function("munmap", FunctionDescriptor.of(INT, ADDRESS, LONG));
        private static final MethodHandle MPROTECT =
                function("mprotect", FunctionDescriptor.of(INT, ADDRESS, LONG, INT), ERRNO);
        private static final MethodHandle MADVISE = function("madvise", FunctionDescriptor.of(INT, ADDRESS, LONG, INT));
    }

    /** Looked up when the first of them is called. */
    private static final class Files {
        private static final MethodHandle MEMFD_CREATE =
                function("memfd_create", FunctionDescriptor.of(INT, ADDRESS, INT), ERRNO);
        private static final MethodHandle FTRUNCATE =
                function("ftruncate", FunctionDescriptor.of(INT, INT, LONG), ERRNO);
        private static final MethodHandle FCNTL =
                function("fcntl", FunctionDescriptor.of(INT, INT, INT, INT), ERRNO, Linker.Option.firstVariadicArg(2));
        private static final MethodHandle FCNTL_LOCK = function(
                "fcntl", FunctionDescriptor.of(INT, INT, INT, ADDRESS), ERRNO, Linker.Option.firstVariadicArg(2));
        private static final MethodHandle FALLOCATE =
                function("posix_fallocate", FunctionDescriptor.of(INT, INT, LONG, LONG));
        private static final MethodHandle OPEN =
                function("open", FunctionDescriptor.of(INT, ADDRESS, INT), ERRNO, Linker.Option.firstVariadicArg(2));
        private static final MethodHandle CLOSE = function("close", FunctionDescriptor.of(INT, INT));
    }

    /** Looked up when it is called first. */
    private static final class Clock {
        private static final MethodHandle GETTIME = function("clock_gettime", FunctionDescriptor.of(INT, INT, ADDRESS));
    }

    /** Looked up when the first of them is called. */
    private static final class SystemCalls {
        private static final MethodHandle ARCH_PRCTL = function(
                "syscall", FunctionDescriptor.of(LONG, LONG, LONG, LONG), ERRNO, Linker.Option.firstVariadicArg(1));
    }

    /** Looked up when the first of them is called. */
    private static final class Environment {
        private static final MethodHandle SETENV =
                function("setenv", FunctionDescriptor.of(INT, ADDRESS, ADDRESS, INT));
    }

    /** A function of the C library; empty if it has none of that name. */
    public static Optional<MethodHandle> find(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        Linker linker = Linker.nativeLinker();
        return linker.defaultLookup().find(name).map(symbol -> linker.downcallHandle(symbol, descriptor, options));
    }

    /** A function of the C library; if it has none of that name, one that throws {@link UnsupportedOperationException}. */
    public static MethodHandle function(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        return find(name, descriptor, options).orElseGet(() -> {
            MethodType type = Linker.nativeLinker()
                    .downcallHandle(descriptor, options)
                    .type()
                    .dropParameterTypes(0, 1);
            MethodHandle missing = MethodHandles.throwException(type.returnType(), UnsupportedOperationException.class)
                    .bindTo(new UnsupportedOperationException("the C library has no function " + name));
            return MethodHandles.dropArguments(missing, 0, type.parameterList());
        });
    }

    /** An exception that a method handle of a C function has thrown: one of Java's, as C throws nothing. */
    public static AssertionError thrown(Throwable e) {
        switch (e) {
            case RuntimeException wrong -> throw wrong;
            case Error wrong -> throw wrong;
            default -> throw new AssertionError("C throws nothing", e);
        }
    }

    /** Nanoseconds for which the calling thread has had a processor. */
    public static long threadCpuNanos() {
        return nanos(CLOCK_THREAD_CPUTIME_ID, "CLOCK_THREAD_CPUTIME_ID");
    }

    /** Nanoseconds for which this process' threads have had processors, summed up. */
    public static long processCpuNanos() {
        return nanos(CLOCK_PROCESS_CPUTIME_ID, "CLOCK_PROCESS_CPUTIME_ID");
    }

    /** A call of a method handle of a C function. */
    public interface Call<T> {
        T make() throws Throwable;
    }

    /** Makes a call. */
    public static <T> T call(Call<T> call) {
        try {
            return call.make();
        } catch (Throwable e) {
            throw thrown(e);
        }
    }

    private static long nanos(int clock, String name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment time = arena.allocate(2 * LONG.byteSize(), LONG.byteSize());
            if (call(() -> (int) Clock.GETTIME.invokeExact(clock, time)) != 0) {
                throw new UnsupportedOperationException("the system has no " + name);
            }
            return time.get(LONG, 0) * NANOS_A_SECOND + time.get(LONG, LONG.byteSize());
        }
    }

    private interface ErrnoCall {
        /** @param errno where the call's errno is captured */
        int make(Arena arena, MemorySegment errno) throws Throwable;
    }

    /** Calls a function of which a negative result is an error. */
    private static int call(String function, ErrnoCall call) throws Failure {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment errno = arena.allocate(Linker.Option.captureStateLayout());
            int result = call(() -> call.make(arena, errno));
            if (result < 0) {
                throw new Failure(function, errno);
            }
            return result;
        }
    }

    /**
     * Asks Linux to let this process use the tiles of AMX, for which threads need more memory when they are interrupted. All threads may
     * use them then. On x86-64 only.
     *
     * @throws Failure if the kernel is older than 5.16, or does not let it
     * @see <a href="https://docs.kernel.org/arch/x86/xstate.html">Using XSTATE features in user space applications</a>
     */
    public static void permitTiles() throws Failure {
        call("arch_prctl", (_, errno) ->
                (int) (long) SystemCalls.ARCH_PRCTL.invokeExact(errno, SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA));
    }

    /** Creates a file without a name in memory; returns its descriptor. */
    public static int memfdCreate(String name, int flags) throws Failure {
        return call("memfd_create", (arena, errno) ->
                (int) Files.MEMFD_CREATE.invokeExact(errno, arena.allocateFrom(name), flags));
    }

    /** Sets a file's size. */
    public static void ftruncate(int fd, long bytes) throws Failure {
        call("ftruncate", (_, errno) -> (int) Files.FTRUNCATE.invokeExact(errno, fd, bytes));
    }

    /** Changes or asks for a property of a file descriptor. */
    public static int fcntl(int fd, int command, int argument) throws Failure {
        return call("fcntl", (_, errno) -> (int) Files.FCNTL.invokeExact(errno, fd, command, argument));
    }

    /**
     * Locks a byte of a file for an open file description, or frees it; see fcntl_locking(2), F_OFD_SETLK. The kernel frees it when the last
     * descriptor of the description is closed, so also when the process dies.
     *
     * @return false if another description has it
     */
    public static boolean lock(int fd, long at, boolean locked) throws Failure {
        try {
            lockCall(F_OFD_SETLK, fd, at, locked ? F_WRLCK : F_UNLCK);
            return true;
        } catch (Failure e) {
            if (e.errno() == EAGAIN || e.errno() == EACCES) {
                return false;
            }
            throw e;
        }
    }

    /** Whether another open file description has locked a byte of a file. */
    public static boolean isLocked(int fd, long at) throws Failure {
        return lockCall(F_OFD_GETLK, fd, at, F_WRLCK) != F_UNLCK;
    }

    private static short lockCall(int command, int fd, long at, short type) throws Failure {
        short[] found = new short[1];
        call("fcntl", (arena, errno) -> {
            MemorySegment flock = arena.allocate(FLOCK_BYTES, Long.BYTES);
            flock.set(ValueLayout.JAVA_SHORT, 0, type);
            flock.set(LONG, 8, at);
            flock.set(LONG, 16, 1);
            int result = (int) Files.FCNTL_LOCK.invokeExact(errno, fd, command, flock);
            found[0] = flock.get(ValueLayout.JAVA_SHORT, 0);
            return result;
        });
        return found[0];
    }

    /**
     * Reserves the bytes of a file in its file system, so that no page is missing later.
     *
     * @return 0, or Linux' number of the error
     */
    public static int fallocate(int fd, long bytes) {
        int error;
        do {
            error = call(() -> (int) Files.FALLOCATE.invokeExact(fd, 0L, bytes));
        } while (error == EINTR);
        return error;
    }

    /** Opens a file; returns its descriptor. */
    public static int open(Path file, int flags) throws Failure {
        return call("open", (arena, errno) ->
                (int) Files.OPEN.invokeExact(errno, arena.allocateFrom(file.toString()), flags));
    }

    /** Closes a file descriptor. */
    public static void close(int fd) {
        int _ = call(() -> (int) Files.CLOSE.invokeExact(fd));
    }

    /**
     * Maps a file from its beginning, or anonymous memory.
     *
     * @param at where; {@link MemorySegment#NULL} for any address
     * @param fd {@link #NO_FILE} for anonymous memory
     * @return a segment of no length at the mapping's address
     */
    public static MemorySegment mmap(MemorySegment at, long bytes, int protection, int flags, int fd) throws Failure {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment errno = arena.allocate(Linker.Option.captureStateLayout());
            MemorySegment mapped =
                    call(() -> (MemorySegment) Memory.MMAP.invokeExact(errno, at, bytes, protection, flags, fd, 0L));
            if (mapped.address() == MAP_FAILED) {
                throw new Failure("mmap", errno);
            }
            return mapped;
        }
    }

    /** Unmaps the mapping that starts at a segment. */
    public static void munmap(MemorySegment mapping, long bytes) {
        int _ = call(() -> (int) Memory.MUNMAP.invokeExact(mapping, bytes));
    }

    /** Changes the protection of whole pages. */
    public static void mprotect(MemorySegment pages, long bytes, int protection) throws Failure {
        call("mprotect", (_, errno) -> (int) Memory.MPROTECT.invokeExact(errno, pages, bytes, protection));
    }

    /** @return false if the kernel refuses the advice */
    public static boolean madvise(MemorySegment pages, long bytes, int advice) {
        return call(() -> (int) Memory.MADVISE.invokeExact(pages, bytes, advice)) == 0;
    }

    /**
     * Sets a variable of the environment as native code sees it; {@link System#getenv} does not.
     *
     * @param overwrite false to keep a value that is set already
     */
    public static void setenv(String name, String value, boolean overwrite) {
        try (Arena arena = Arena.ofConfined()) {
            int _ = call(() -> (int) Environment.SETENV.invokeExact(
                    arena.allocateFrom(name), arena.allocateFrom(value), overwrite ? 1 : 0));
        }
    }

    /** The version of glibc, such as {@code 2.36}; empty if the C library is another. */
    public static Optional<String> glibcVersion() {
        return find("gnu_get_libc_version", FunctionDescriptor.of(ADDRESS))
                .map(function -> call(() -> (MemorySegment) function.invokeExact())
                        .reinterpret(VERSION_BYTES)
                        .getString(0));
    }

    /**
     * Has {@code exit}, with which the JVM ends, call {@code _exit} with its status before anything else, so that no destructors of C
     * libraries run: glibc's {@code on_exit}, which calls handlers in the reverse order of their registration.
     *
     * @return false if the C library has no such functions, or refuses
     */
    public static boolean exitWithoutDestructors() {
        Optional<MethodHandle> onExit = find("on_exit", FunctionDescriptor.of(INT, ADDRESS, ADDRESS));
        Optional<MemorySegment> exit = Linker.nativeLinker().defaultLookup().find("_exit");
        if (onExit.isEmpty() || exit.isEmpty()) {
            return false;
        }
        return call(() -> (int) onExit.get().invokeExact(exit.get(), MemorySegment.NULL)) == 0;
    }
}
