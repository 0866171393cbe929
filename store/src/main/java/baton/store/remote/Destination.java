package baton.store.remote;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** Where a value that comes goes: memories, one after the other. One thread uses it. */
public class Destination {
    /** Larger pieces are read straight into their place. */
    public static final int LEAST_DIRECT = 16 << 10;

    /** Few enough bytes to stay in a core's cache until {@link #placed} has seen them. */
    private static final int MOST_DIRECT = 256 << 10;

    private final List<MemorySegment> memories;
    private int memory;
    private long at;
    private long left;

    /** @param bytes that come, at most those of the memories */
    public Destination(List<MemorySegment> memories, long bytes) {
        this.memories = memories;
        this.left = bytes;
    }

    /** Bytes that are still to come. */
    long left() {
        return left;
    }

    /** How many bytes can be put in their place at once. */
    private long contiguous() {
        while (memory < memories.size() && at == memories.get(memory).byteSize()) {
            memory++;
            at = 0;
        }
        return memory == memories.size()
                ? 0
                : Math.min(left, memories.get(memory).byteSize() - at);
    }

    /** Whether {@link #direct} is worth it. */
    boolean isDirect() {
        return contiguous() >= LEAST_DIRECT && memories.get(memory).isNative();
    }

    /** Bytes, at most so many, that come before those that {@link #direct} is worth it for. */
    int bytesBeforeDirect(int most) {
        long bytes = contiguous();
        for (int next = memory + 1; next < memories.size() && bytes < most; next++) {
            long size = memories.get(next).byteSize();
            if (size >= LEAST_DIRECT) {
                break;
            }
            bytes += size;
        }
        return (int) Math.clamp(bytes, 1, Math.min(most, left));
    }

    /** The place of the next bytes, to be read into. */
    ByteBuf direct() {
        long bytes = Math.min(contiguous(), MOST_DIRECT);
        return Unpooled.wrappedBuffer(memories.get(memory).asSlice(at, bytes).asByteBuffer())
                .clear();
    }

    /** Bytes are in their place, in order: some of the memory of that index. */
    protected void placed(int index, MemorySegment bytes) {}

    /** Counts bytes that have been read into their place. */
    final void advance(int bytes) {
        placed(memory, memories.get(memory).asSlice(at, bytes));
        at += bytes;
        left -= bytes;
    }

    /** Copies bytes that belong here, all of them. */
    public final void copy(MemorySegment from) {
        for (long done = 0; done < from.byteSize(); ) {
            long bytes = Math.min(Math.min(contiguous(), MOST_DIRECT), from.byteSize() - done);
            MemorySegment.copy(from, done, memories.get(memory), at, bytes);
            advance((int) bytes);
            done += bytes;
        }
    }

    /** Copies the next bytes, as many as belong here. */
    void copy(ByteBuf from) {
        while (from.isReadable() && left > 0) {
            int bytes = (int) Math.min(contiguous(), from.readableBytes());
            from.readBytes(memories.get(memory).asSlice(at, bytes).asByteBuffer());
            advance(bytes);
        }
    }
}
