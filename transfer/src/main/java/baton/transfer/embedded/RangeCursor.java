package baton.transfer.embedded;

import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.List;

/** The position of a stream in its ranges, which it moves one after the other. One thread uses it. */
final class RangeCursor {
    private static final int MOST_BUFFERS = 256;

    private final List<MemorySegment> ranges;
    private int range;
    private long offset;
    private long left;

    RangeCursor(List<MemorySegment> ranges) {
        this.ranges = ranges;
        for (MemorySegment each : ranges) {
            left += each.byteSize();
        }
    }

    /** Bytes from here to the end. */
    long left() {
        return left;
    }

    /** Buffers of the next bytes, preceded by {@code first}; of fewer bytes than asked for if they lie in many ranges. */
    ByteBuffer[] next(long most, ByteBuffer... first) {
        int count = first.length;
        long bytes = 0;
        for (int i = range; i < ranges.size() && bytes < most && count < MOST_BUFFERS; i++, count++) {
            bytes += ranges.get(i).byteSize() - (i == range ? offset : 0);
        }
        ByteBuffer[] buffers = new ByteBuffer[count];
        System.arraycopy(first, 0, buffers, 0, first.length);
        long wanted = most;
        for (int i = range, at = first.length; at < count; i++, at++) {
            long from = i == range ? offset : 0;
            long length = Math.min(wanted, ranges.get(i).byteSize() - from);
            buffers[at] = ranges.get(i).asSlice(from, length).asByteBuffer();
            wanted -= length;
        }
        return buffers;
    }

    void advance(long bytes) {
        left -= bytes;
        long more = bytes;
        while (more > 0) {
            long here = Math.min(more, ranges.get(range).byteSize() - offset);
            offset += here;
            more -= here;
            if (offset == ranges.get(range).byteSize()) {
                range++;
                offset = 0;
            }
        }
    }
}
