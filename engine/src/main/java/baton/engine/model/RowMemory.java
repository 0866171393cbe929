package baton.engine.model;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Memory for activations, which is taken within scopes and free again when they end, the last one first. It is kept for the next step, and so not
 * cleared by the kernel each time, which the C library's would be: it returns allocations above 32 MiB at once. Used by one thread.
 */
final class RowMemory implements AutoCloseable {
    private static final long ALIGNMENT = 64;

    /** The first size: enough for steps of few rows. */
    private static final long LEAST_BYTES = 4L << 20;

    private final List<Slab> slabs = new ArrayList<>();
    private long least = LEAST_BYTES;
    private int current;
    private long used;
    /** The most bytes that were taken at once, with the free ends of slabs. */
    private long most;

    private int open;

    private record Slab(Arena arena, MemorySegment memory) {
        static Slab of(long bytes) {
            Arena arena = Arena.ofShared();
            return new Slab(arena, HugePages.allocate(arena, bytes, "activations"));
        }
    }

    /** Memory that is taken from here on is free when the scope is closed. */
    Scope scope() {
        open++;
        int slab = current;
        long before = used;
        return () -> {
            current = slab;
            used = before;
            open--;
            if (open == 0 && slabs.size() > 1) {
                // The next step takes one that is large enough for all of this step, and so no other if it is of this
                // kind.
                least = Math.max(least, most);
                close();
            }
        };
    }

    /** The end of the memory that was taken meanwhile. */
    interface Scope extends AutoCloseable {
        @Override
        void close();
    }

    /**
     * Memory with any content, which is valid until the scope ends.
     *
     * @throws IllegalStateException if no scope is open, or the system refuses
     */
    MemorySegment take(long bytes) {
        if (open == 0) {
            throw new IllegalStateException("memory is taken out of a scope");
        }
        while (current < slabs.size()
                && used + bytes > slabs.get(current).memory.byteSize()) {
            current++;
            used = 0;
        }
        if (current == slabs.size()) {
            slabs.add(Slab.of(Math.max(bytes, Math.max(least, size()))));
        }
        MemorySegment taken = slabs.get(current).memory.asSlice(used, bytes);
        used += Math.ceilDiv(bytes, ALIGNMENT) * ALIGNMENT;
        long before = slabs.stream()
                .limit(current)
                .mapToLong(slab -> slab.memory.byteSize())
                .sum();
        most = Math.max(most, before + used);
        return taken;
    }

    /** Bytes that are held now. */
    long size() {
        return slabs.stream().mapToLong(slab -> slab.memory.byteSize()).sum();
    }

    @Override
    public void close() {
        slabs.forEach(slab -> slab.arena.close());
        slabs.clear();
        current = 0;
        used = 0;
    }
}
