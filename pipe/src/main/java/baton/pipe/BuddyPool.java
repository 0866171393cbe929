package baton.pipe;

import baton.kv.Deadline;
import baton.kv.KvCopier;
import baton.kv.KvMemory;
import baton.memory.AnonymousMemory;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Memory of the host or of a device in pieces with sizes of powers of two, from {@value #LEAST} bytes on: a buddy allocator, as vLLM's
 * TensorMemoryPool.
 *
 * <h2>Invariants</h2>
 * Memory is allocated from the system in roots, on demand, and a root's pages when they are used: an allocation does
 * not wait for the root's pages. All roots together never exceed the capacity. A root is divided into pieces by halving; every byte of a
 * root belongs to exactly one piece, which is free or in use. Two halves of one piece are never both free: they are merged. Roots of host
 * memory that are larger than usual are freed when no piece of them is in use, other ones when another root needs their room, and all when
 * the pool is closed and no piece is in use.
 */
public final class BuddyPool implements TensorMemory, AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(BuddyPool.class);
    /** Bytes of the smallest piece. */
    static final long LEAST = 512;

    private static final int LEAST_ORDER = Long.numberOfTrailingZeros(LEAST);
    private static final int ROOT_ORDER = 26;
    private static final long ALIGNMENT = 64;

    private final long capacity;

    @GuardedBy("this")
    private final Set<Root> roots = new LinkedHashSet<>();

    /** The free pieces by order. */
    @GuardedBy("this")
    private final List<LinkedHashSet<Extent>> free = new ArrayList<>();

    @GuardedBy("this")
    private long reserved;

    @GuardedBy("this")
    private long used;

    /** The device of later roots' memory; the host has it if there is no room. */
    @GuardedBy("this")
    private Optional<KvMemory.Device> device = Optional.empty();

    @GuardedBy("this")
    private boolean closed;

    /** @param capacity bytes, at most */
    public BuddyPool(long capacity) {
        this.capacity = capacity;
        for (int order = 0; order < Long.SIZE; order++) {
            free.add(new LinkedHashSet<>());
        }
    }

    /** One allocation from the system, or from a device. */
    private static final class Root {
        private final int order;
        private final TensorBytes memory;
        private final Runnable free;

        private Root(int order, Optional<KvMemory.Device> device) {
            long bytes = 1L << order;
            this.order = order;
            Optional<KvCopier.Beside> beside =
                    device.flatMap(each -> each.copier().allocate(bytes));
            if (beside.isPresent()) {
                this.memory = new TensorBytes.Device(device.get(), beside.get().offset(), bytes);
                this.free = beside.get()::close;
            } else {
                device.ifPresent(each -> log.warn(
                        "{} has no room for {} bytes of tensors beside the KV pool: they are staged in host memory",
                        each.device(),
                        bytes));
                Arena arena = Arena.ofShared();
                this.memory = new TensorBytes.Host(AnonymousMemory.allocate(arena, bytes, ALIGNMENT));
                this.free = arena::close;
            }
        }
    }

    private record Extent(Root root, long offset, int order) {
        long bytes() {
            return 1L << order;
        }

        Extent buddy() {
            return new Extent(root, offset ^ bytes(), order);
        }

        Extent half(int which) {
            return new Extent(root, offset + which * (bytes() / 2), order - 1);
        }

        Extent parent() {
            return new Extent(root, offset & ~bytes(), order + 1);
        }
    }

    /** Memory in use. */
    public final class Piece implements AutoCloseable {
        private final Extent extent;
        private final TensorBytes memory;

        @GuardedBy("BuddyPool.this")
        private boolean freed;

        private Piece(Extent extent, long bytes) {
            this.extent = extent;
            this.memory = extent.root.memory.slice(extent.offset, bytes);
        }

        /** The requested number of bytes; not to be used after {@link #close}. */
        public TensorBytes memory() {
            return memory;
        }

        /** Frees the piece; a second call has no effect. */
        @Override
        public void close() {
            synchronized (BuddyPool.this) {
                if (!freed) {
                    freed = true;
                    used -= extent.bytes();
                    release(extent);
                    BuddyPool.this.notifyAll();
                }
            }
        }
    }

    /**
     * Allocates the first root now: its pages are then taken from the system before pieces are asked for.
     *
     * @param of the device or host with the memory of later roots
     */
    public synchronized void prepare(Optional<KvMemory.Device> of) {
        device = of;
        if (!closed && roots.isEmpty()) {
            grow(LEAST_ORDER);
        }
    }

    /** Allocates from the host's memory if the pool has no room now. */
    @Override
    public Tensor allocate(Tensor.Type type, List<Long> shape) {
        return allocate(Tensor.bytes(type, shape))
                .map(piece -> new Tensor(type, shape, piece.memory(), piece::close))
                .orElseGet(() -> HOST.allocate(type, shape));
    }

    /** Empty if there is no room now. */
    public synchronized Optional<Piece> allocate(long bytes) {
        if (closed || bytes < 0 || bytes > capacity) {
            return Optional.empty();
        }
        int order = orderFor(bytes);
        int found = order;
        while (found < Long.SIZE - 1 && free.get(found).isEmpty()) {
            found++;
        }
        if (found == Long.SIZE - 1) {
            if (!grow(order)) {
                return Optional.empty();
            }
            found = order;
            while (free.get(found).isEmpty()) {
                found++;
            }
        }
        Extent extent = free.get(found).removeFirst();
        while (extent.order > order) {
            free.get(extent.order - 1).add(extent.half(1));
            extent = extent.half(0);
        }
        used += extent.bytes();
        return Optional.of(new Piece(extent, bytes));
    }

    private static int orderFor(long bytes) {
        return bytes <= LEAST ? LEAST_ORDER : Long.SIZE - Long.numberOfLeadingZeros(bytes - 1);
    }

    /** Allocates a root for a piece of that order; frees unused roots if there is no room. */
    @GuardedBy("this")
    private boolean grow(int order) {
        if (order >= Long.SIZE - 1 || 1L << order > capacity) {
            return false;
        }
        if (1L << order > capacity - reserved) {
            for (Root root : List.copyOf(roots)) {
                Extent whole = new Extent(root, 0, root.order);
                if (free.get(root.order).remove(whole)) {
                    giveBack(root);
                }
            }
        }
        long room = capacity - reserved;
        if (1L << order > room) {
            return false;
        }
        int largest = Long.SIZE - 1 - Long.numberOfLeadingZeros(room);
        Root root = new Root(Math.max(order, Math.min(ROOT_ORDER, largest)), device);
        roots.add(root);
        reserved += 1L << root.order;
        free.get(root.order).add(new Extent(root, 0, root.order));
        return true;
    }

    @GuardedBy("this")
    private void release(Extent released) {
        Extent extent = released;
        while (extent.order < extent.root.order && free.get(extent.order).remove(extent.buddy())) {
            extent = extent.parent();
        }
        // A device that frees memory waits for all of its work.
        boolean large = extent.order > ROOT_ORDER && extent.root.memory instanceof TensorBytes.Host;
        if (extent.order == extent.root.order && (closed || large)) {
            giveBack(extent.root);
        } else {
            free.get(extent.order).add(extent);
        }
    }

    @GuardedBy("this")
    private void giveBack(Root root) {
        roots.remove(root);
        reserved -= 1L << root.order;
        root.free.run();
    }

    public long capacity() {
        return capacity;
    }

    /** Bytes of the pieces in use. */
    public synchronized long used() {
        return used;
    }

    /** Bytes allocated from the system. */
    public synchronized long reserved() {
        return reserved;
    }

    /** Refuses further allocations; pieces in use stay valid until they are closed. */
    @Override
    public synchronized void close() {
        closed = true;
        for (Root root : List.copyOf(roots)) {
            if (free.get(root.order).remove(new Extent(root, 0, root.order))) {
                giveBack(root);
            }
        }
    }

    /** Waits until no piece is in use; false if that is not so in time. */
    public synchronized boolean awaitUnused(Deadline deadline) throws InterruptedException {
        while (used > 0 && !deadline.isOver()) {
            boolean _ = deadline.awaitNotify(this);
        }
        return used == 0;
    }

    /** @throws IllegalStateException naming the first broken invariant */
    synchronized void checkInvariants() {
        long total = roots.stream().mapToLong(root -> 1L << root.order).sum();
        if (total != reserved || reserved > capacity) {
            throw new IllegalStateException("roots=%d reserved=%d capacity=%d".formatted(total, reserved, capacity));
        }
        long unused = 0;
        for (int order = 0; order < free.size(); order++) {
            Set<Extent> seen = new HashSet<>();
            for (Extent extent : free.get(order)) {
                if (extent.order != order || extent.offset % extent.bytes() != 0 || !roots.contains(extent.root)) {
                    throw new IllegalStateException("misplaced: " + extent);
                }
                if (order < extent.root.order && seen.contains(extent.buddy())) {
                    throw new IllegalStateException("both halves are free: " + extent);
                }
                seen.add(extent);
                unused += extent.bytes();
            }
        }
        if (unused + used != reserved) {
            throw new IllegalStateException("free=%d used=%d reserved=%d".formatted(unused, used, reserved));
        }
    }
}
