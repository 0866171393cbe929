package baton.engine.core;

import baton.kv.ConfigException;
import baton.memory.Platform;
import baton.memory.Posix;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.BitSet;
import java.util.SortedSet;

/** Which cores the calling thread, and threads that it starts from then on, may run on (Linux's sched_setaffinity). */
final class CpuAffinity {
    /** Room for 8,192 cores. */
    private static final long MASK_BYTES = 1024;

    private static final FunctionDescriptor SIGNATURE = FunctionDescriptor.of(
            ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS);

    /** Looked up when the first is called: not every system has them. */
    private static final class Calls {
        private static final MethodHandle SET = Posix.function("sched_setaffinity", SIGNATURE);
        private static final MethodHandle GET = Posix.function("sched_getaffinity", SIGNATURE);
    }

    private CpuAffinity() {}

    /**
     * Pins the calling thread.
     *
     * @param field the setting, for the error
     * @throws ConfigException if the thread may not run on all of these cores, or threads cannot be pinned on this platform
     */
    static void pin(String field, SortedSet<Integer> cores) {
        pin(Platform.current(), field, cores);
    }

    static void pin(Platform platform, String field, SortedSet<Integer> cores) {
        if (!platform.isLinux()) {
            throw new ConfigException(
                    field,
                    "names cores %s, but threads are pinned on Linux only, this is %s; allowed: auto"
                            .formatted(cores, platform));
        }
        BitSet wanted = new BitSet();
        cores.forEach(wanted::set);
        BitSet missing = (BitSet) wanted.clone();
        BitSet allowed = current();
        missing.andNot(allowed);
        if (missing.isEmpty() && set(wanted) && current().equals(wanted)) {
            return;
        }
        throw new ConfigException(field, "names cores %s; this process may run on %s only".formatted(cores, allowed));
    }

    /** The cores that the calling thread may run on. */
    static BitSet current() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment mask = arena.allocate(MASK_BYTES, Long.BYTES);
            if (call(Calls.GET, mask) < 0) {
                throw new IllegalStateException("sched_getaffinity failed");
            }
            return BitSet.valueOf(mask.toArray(ValueLayout.JAVA_LONG));
        }
    }

    private static boolean set(BitSet cores) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment mask = arena.allocate(MASK_BYTES, Long.BYTES);
            long[] words = cores.toLongArray();
            MemorySegment.copy(words, 0, mask, ValueLayout.JAVA_LONG, 0, words.length);
            return call(Calls.SET, mask) == 0;
        }
    }

    private static int call(MethodHandle function, MemorySegment mask) {
        return Posix.call(() -> (int) function.invokeExact(0, MASK_BYTES, mask));
    }
}
