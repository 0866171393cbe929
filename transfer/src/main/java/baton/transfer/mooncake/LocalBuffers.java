package baton.transfer.mooncake;

import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/** Registered memory of this process, and its current users. Any thread. */
final class LocalBuffers {
    /** A descriptor of so many fits a handshake message of Mooncake's default length. */
    private static final int MOST = 8192;

    @GuardedBy("this")
    private final NavigableMap<Long, Buffer> buffers = new TreeMap<>();

    /** The users of each registered buffer. */
    @GuardedBy("this")
    private final Map<Buffer, Set<MemoryUse<?>>> uses = new HashMap<>();

    @GuardedBy("this")
    private boolean closed;

    /** Registered memory. */
    final class Buffer {
        private final MemorySegment memory;

        private Buffer(MemorySegment memory) {
            this.memory = memory;
        }

        /** Ends a use that {@link #hold} began. */
        void release(MemoryUse<?> use) {
            LocalBuffers.this.release(this, use);
        }

        /** A part of it. */
        MemorySegment memory(long address, long bytes) {
            return memory.asSlice(address - memory.address(), bytes);
        }

        private boolean holds(long address, long bytes) {
            long offset = address - memory.address();
            return offset >= 0 && bytes > 0 && bytes <= memory.byteSize() && offset <= memory.byteSize() - bytes;
        }
    }

    /**
     * Memory that may be used until it is released, or its use aborted.
     *
     * @param buffer that it is in
     */
    record Held(Buffer buffer, MemorySegment memory) {}

    synchronized Buffer add(MemorySegment memory) throws TransferException {
        if (closed) {
            throw new TransferException("the transfer agent is closed");
        }
        if (buffers.size() == MOST) {
            throw new TransferException("%d regions are registered, no more are allowed".formatted(MOST));
        }
        Map.Entry<Long, Buffer> before = buffers.floorEntry(memory.address() + memory.byteSize() - 1);
        if (before != null && before.getKey() + before.getValue().memory.byteSize() > memory.address()) {
            throw new TransferException("memory at %d of %d bytes is registered already, in part at least"
                    .formatted(memory.address(), memory.byteSize()));
        }
        Buffer buffer = new Buffer(memory);
        buffers.put(memory.address(), buffer);
        uses.put(buffer, new HashSet<>());
        return buffer;
    }

    /**
     * Takes a buffer out and returns when nothing uses it any more.
     *
     * @return false if it was taken out before
     */
    boolean remove(Buffer buffer) {
        List<MemoryUse<?>> ending;
        synchronized (this) {
            if (!buffers.remove(buffer.memory.address(), buffer)) {
                return false;
            }
            ending = List.copyOf(uses.getOrDefault(buffer, Set.of()));
            uses.remove(buffer);
        }
        end(ending, Cause.REFUSED, "the memory's registration was closed");
        return true;
    }

    /** Takes all out, for good, and returns when nothing uses them any more. */
    void close() {
        List<MemoryUse<?>> ending = new ArrayList<>();
        synchronized (this) {
            closed = true;
            uses.values().forEach(ending::addAll);
            uses.clear();
            buffers.clear();
        }
        end(ending, Cause.CANCELLED, "the agent was closed");
    }

    private static void end(List<MemoryUse<?>> uses, Cause cause, String message) {
        uses.forEach(each -> each.abort(cause, message));
        uses.forEach(MemoryUse::awaitEmpty);
    }

    private synchronized void release(Buffer buffer, MemoryUse<?> use) {
        Optional.ofNullable(uses.get(buffer)).ifPresent(all -> all.remove(use));
    }

    /**
     * Memory to use, if all of it is in one buffer.
     *
     * @param address from a peer; any number
     * @param bytes from a peer; any number
     */
    synchronized Optional<Held> hold(long address, long bytes, MemoryUse<?> use) {
        Map.Entry<Long, Buffer> entry = buffers.floorEntry(address);
        if (entry == null || !entry.getValue().holds(address, bytes)) {
            return Optional.empty();
        }
        Buffer buffer = entry.getValue();
        uses.computeIfAbsent(buffer, _ -> new HashSet<>()).add(use);
        return Optional.of(new Held(buffer, buffer.memory(address, bytes)));
    }

    /** The description of the buffers for peers, in the order of addresses. */
    synchronized List<SegmentDescriptor.Buffer> described() {
        List<SegmentDescriptor.Buffer> all = new ArrayList<>();
        buffers.values()
                .forEach(each -> all.add(new SegmentDescriptor.Buffer(each.memory.address(), each.memory.byteSize())));
        return all;
    }
}
