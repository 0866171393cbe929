package baton.memory;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.util.concurrent.locks.LockSupport;

/** Has the system fill the page table of a mapping, in the background and piece by piece, for as long as the mapping is there. */
final class Populating {
    /** Less costs less than a thread. */
    private static final long LEAST_POPULATED = 1L << 20;

    /** A piece. */
    private static final long POPULATED_AT_ONCE = 2L << 20;

    /** The pause between two pieces while a processor is free. */
    private static final long PAUSE_NANOS = 1_000_000;

    /** The pause between two pieces while no processor is free. */
    private static final long LONG_PAUSE_NANOS = 25_000_000;

    /** A thread that wakes this much late has competed for its processor. */
    private static final long LATE_NANOS = 250_000;

    /** Processors that the process leaves free while nothing of it waits for one, a part of which other processes may take. */
    private static final double FREE = 1.25;

    /** On a machine with few processors, {@link #FREE} is limited to this share of them. */
    private static final double FREE_SHARE = 0.75;

    private final MemorySegment mapping;
    private final long bytes;
    private final int advice;

    @GuardedBy("this")
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
        // The engine's and the connector's threads come first: a missing page costs them little, populating
        // gigabytes costs a core, and a loop of the engine waits for its thread on that core. So pauses are
        // long while no processor is free. Not by a low priority: the kernel locks the process's memory map for a
        // piece, and a thread that is scheduled rarely, as other processes take all cores, would stop all threads
        // that need the map.
        Times before = Times.now();
        long pause = 0;
        for (long done = 0; done < bytes && populate(done, Math.min(POPULATED_AT_ONCE, bytes - done)); ) {
            done += POPULATED_AT_ONCE;
            Times now = Times.now();
            boolean crowded = now.isCrowded(before, pause, Runtime.getRuntime().availableProcessors());
            pause = crowded ? LONG_PAUSE_NANOS : PAUSE_NANOS;
            before = now;
            LockSupport.parkNanos(pause);
        }
    }

    /** Nanoseconds: on the clock, and of processors that this thread and the whole process have had. */
    record Times(long clock, long own, long process) {
        static Times now() {
            return new Times(System.nanoTime(), Posix.threadCpuNanos(), Posix.processCpuNanos());
        }

        /**
         * Whether no processor has been free since {@code before}.
         *
         * @param pause nanoseconds for which this thread has slept meanwhile
         */
        boolean isCrowded(Times before, long pause, int processors) {
            long elapsed = clock - before.clock;
            long used = own - before.own;
            long usedByOthers = process - before.process - used;
            double free = processors - (double) usedByOthers / elapsed;
            return elapsed - pause - used > LATE_NANOS || free < Math.min(FREE, FREE_SHARE * processors);
        }
    }

    /** False if that was the last piece: the mapping goes, or the kernel has no memory or, before 5.14, no such call. */
    private synchronized boolean populate(long from, long length) {
        return !ended && Posix.madvise(MemorySegment.ofAddress(mapping.address() + from), length, advice);
    }

    synchronized void end() {
        ended = true;
    }
}
