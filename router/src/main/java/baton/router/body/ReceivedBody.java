package baton.router.body;

import io.vertx.core.buffer.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * A body while it is received. Its bytes are in segments: one buffer that grows would be copied as a whole now and then, which for a
 * large body takes too long for an event loop. Used by one thread after the other.
 */
public final class ReceivedBody {
    /** The length of a segment in bytes. */
    private static final int SEGMENT = 256 << 10;

    private final List<Buffer> full = new ArrayList<>();
    private Buffer last;
    private int length;

    /** @param initial room for the first bytes */
    public ReceivedBody(int initial) {
        last = Buffer.buffer(Math.min(initial, SEGMENT));
    }

    public void append(Buffer chunk) {
        if (last.length() >= SEGMENT) {
            full.add(last);
            last = Buffer.buffer();
        }
        last.appendBuffer(chunk);
        length += chunk.length();
    }

    /** The length in bytes. */
    public int length() {
        return length;
    }

    /** The whole body; takes time in proportion to its length. */
    public Buffer join() {
        if (full.isEmpty()) {
            return last;
        }
        Buffer all = Buffer.buffer(length);
        full.forEach(all::appendBuffer);
        return all.appendBuffer(last);
    }
}
