package baton.engine.model;

import baton.memory.AnonymousMemory;
import baton.memory.Platform;
import baton.memory.Posix;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Large memory straight from the kernel (mmap): zero without being touched, and in huge pages where the kernel grants them on
 * advice, which reading weights at full speed needs. That is on Linux; elsewhere it is the JVM's memory.
 */
final class HugePages {
    private static final Logger LOG = LoggerFactory.getLogger(HugePages.class);
    private static final Platform PLATFORM = Platform.current();
    private static final long HUGE_PAGE = 2L << 20;
    private static final long CACHE_LINE = 64;
    private static final int M_TRIM_THRESHOLD = -1;
    private static final int M_MMAP_THRESHOLD = -3;

    /** Smaller allocations are reused. Matrices of large models are not, and return to the kernel at once. */
    private static final int REUSED = 32 << 20;

    /** Bytes of freed memory that the C library keeps before it returns any: more than the layers of a forward pass free. */
    private static final int KEPT = 1 << 30;

    private static final Optional<MethodHandle> MALLOPT =
            find("mallopt", FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT));
    private static final Optional<MethodHandle> MALLOC_TRIM =
            find("malloc_trim", FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG));

    static {
        if (!PLATFORM.isLinux()) {
            LOG.info(
                    "on {} the JVM allocates memory: no huge pages, and the C library manages LibTorch's freed memory",
                    PLATFORM);
        }
    }

    private HugePages() {}

    /**
     * Maps {@code bytes} of zeros, aligned to a huge page if they fill one; they are unmapped when the arena closes.
     *
     * @param purpose of the memory, for the error
     * @throws IllegalStateException if the system refuses
     */
    static MemorySegment allocate(Arena arena, long bytes, String purpose) {
        return bytes < HUGE_PAGE || !PLATFORM.isLinux() ? ofTheJvm(arena, bytes, purpose) : map(arena, bytes, purpose);
    }

    /**
     * Maps {@code bytes} of zeros of which any part may be used at any time, aligned to a page: all of them are taken from the system from now on,
     * by a thread of their own, not by the first step that writes to them, which would wait while they are cleared.
     *
     * @throws IllegalStateException if the system refuses
     */
    static MemorySegment allocateAhead(Arena arena, long bytes, String purpose) {
        try {
            return AnonymousMemory.allocate(arena, bytes, CACHE_LINE);
        } catch (OutOfMemoryError e) {
            throw refused(bytes, purpose);
        }
    }

    static MemorySegment ofTheJvm(Arena arena, long bytes, String purpose) {
        try {
            return arena.allocate(bytes, bytes < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE);
        } catch (OutOfMemoryError e) {
            throw refused(bytes, purpose);
        }
    }

    private static MemorySegment map(Arena arena, long bytes, String purpose) {
        long mapped = bytes + HUGE_PAGE;
        try {
            MemorySegment start = Posix.mmap(
                    MemorySegment.NULL,
                    mapped,
                    Posix.PROT_READ | Posix.PROT_WRITE,
                    Posix.MAP_PRIVATE | Posix.MAP_ANONYMOUS,
                    Posix.NO_FILE);
            MemorySegment whole =
                    start.reinterpret(mapped, arena, mapping -> Posix.munmap(mapping, mapping.byteSize()));
            long aligned = Math.ceilDiv(start.address(), HUGE_PAGE) * HUGE_PAGE;
            MemorySegment pages = whole.asSlice(aligned - start.address(), bytes, HUGE_PAGE);
            // Refusal costs speed only, and there are kernels without huge pages.
            Posix.madvise(pages, bytes, Posix.MADV_HUGEPAGE);
            return pages;
        } catch (Posix.Failure e) {
            throw refused(bytes, purpose);
        }
    }

    /**
     * Makes LibTorch ask for huge pages too, for whatever it allocates of 2 MiB and more: packed weights are its memory. It looks
     * at the variable {@code THP_MEM_ALLOC_ENABLE} at its first allocation; one set by the user stays.
     */
    static void adviseHugePagesToLibTorch() {
        if (PLATFORM.isLinux()) {
            Posix.setenv("THP_MEM_ALLOC_ENABLE", "1", false);
        }
    }

    /**
     * Makes the C library keep memory that LibTorch frees, as each layer reallocates the memory that the one before has freed. By default
     * the C library returns it to the kernel, which clears it page by page, again and again: a sixth of the time of a prefill of 2,048
     * tokens. Settings of the user's own stay.
     */
    static void keepFreedMemory() {
        Map<String, String> environment = System.getenv();
        if (MALLOPT.isEmpty()
                || environment.keySet().stream().anyMatch(name -> name.startsWith("MALLOC_"))
                || environment.getOrDefault("GLIBC_TUNABLES", "").contains("glibc.malloc.")) {
            return;
        }
        try {
            // Refusal costs speed only.
            int _ = (int) MALLOPT.orElseThrow().invokeExact(M_MMAP_THRESHOLD, REUSED);
            int _ = (int) MALLOPT.orElseThrow().invokeExact(M_TRIM_THRESHOLD, KEPT);
        } catch (Throwable e) {
            throw new AssertionError("mallopt throws nothing", e);
        }
    }

    /**
     * Returns memory that LibTorch has freed to the kernel. The C library keeps it, for each thread that ever allocated apart, so that models
     * that come and go on threads of their own would leave a whole model's buffers with each.
     */
    static void giveBack() {
        if (MALLOC_TRIM.isEmpty()) {
            return;
        }
        try {
            int _ = (int) MALLOC_TRIM.orElseThrow().invokeExact(0L);
        } catch (Throwable e) {
            throw new AssertionError("malloc_trim throws nothing", e);
        }
    }

    private static IllegalStateException refused(long bytes, String purpose) {
        return new IllegalStateException(
                "no memory: the system refused %d bytes for %s; is ulimit -v too small, or --kv-cache-memory-bytes too large?"
                        .formatted(bytes, purpose));
    }

    /** Empty where there is no such function, or it takes other numbers than Linux's. */
    private static Optional<MethodHandle> find(String name, FunctionDescriptor descriptor) {
        return PLATFORM.isLinux() ? Posix.find(name, descriptor) : Optional.empty();
    }
}
