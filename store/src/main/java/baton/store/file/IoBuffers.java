package baton.store.file;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.Deque;

/** Page-aligned memory for I/O, made when first needed and used again: as many pieces as threads use it at once. Thread-safe. */
final class IoBuffers {
    private final Arena arena = Arena.ofShared();
    private final long pieceBytes;

    @GuardedBy("this")
    private final Deque<Buffer> free = new ArrayDeque<>();

    /** @param pieceBytes a multiple of the page size */
    IoBuffers(long pieceBytes) {
        this.pieceBytes = pieceBytes;
    }

    /** Buffers for a file's header, and a piece of its value. */
    record Buffer(MemorySegment header, MemorySegment piece) {}

    synchronized Buffer take() {
        if (!free.isEmpty()) {
            return free.removeLast();
        }
        MemorySegment memory = arena.allocate(FileHeader.BYTES + pieceBytes, FileHeader.BYTES);
        return new Buffer(memory.asSlice(0, FileHeader.BYTES), memory.asSlice(FileHeader.BYTES));
    }

    synchronized void giveBack(Buffer buffer) {
        free.addLast(buffer);
    }

    /** Frees the memory; none of it is in use. */
    synchronized void close() {
        if (arena.scope().isAlive()) {
            arena.close();
        }
    }
}
