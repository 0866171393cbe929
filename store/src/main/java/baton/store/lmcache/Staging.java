package baton.store.lmcache;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;

/** Buffers of one size, a bounded number of them, made when they are first needed and used again and again. Thread-safe. */
final class Staging implements AutoCloseable {
    private static final int ALIGNMENT = 64;

    private final Arena arena = Arena.ofShared();
    private final long bytes;

    @GuardedBy("this")
    private int unmade;

    @GuardedBy("this")
    private final Deque<MemorySegment> free = new ArrayDeque<>();

    @GuardedBy("this")
    private final Deque<Runnable> waiting = new ArrayDeque<>();

    Staging(int buffers, long bytes) {
        this.unmade = buffers;
        this.bytes = bytes;
    }

    /**
     * Takes a buffer.
     *
     * @param retry if there is none: run, on any thread, when there may be one
     */
    synchronized Optional<MemorySegment> take(Runnable retry) {
        if (!free.isEmpty()) {
            return Optional.of(free.removeLast());
        }
        if (unmade > 0) {
            unmade--;
            return Optional.of(arena.allocate(bytes, ALIGNMENT));
        }
        waiting.addLast(retry);
        return Optional.empty();
    }

    void giveBack(MemorySegment buffer) {
        synchronized (this) {
            free.addLast(buffer);
        }
        for (Optional<Runnable> next = next(); next.isPresent(); next = next()) {
            next.get().run();
        }
    }

    /** One that waits, and may not need it any more. */
    private synchronized Optional<Runnable> next() {
        return free.isEmpty() ? Optional.empty() : Optional.ofNullable(waiting.pollFirst());
    }

    /** To be called when all buffers have been given back. */
    @Override
    public void close() {
        arena.close();
    }
}
