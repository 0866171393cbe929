package baton.router;

import io.vertx.core.buffer.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Lets server-sent events through whole. What an instance sent of an event when it died is of no use to a client, and an error
 * event after it would not parse; so the piece after the last blank line is held until its event is complete.
 */
final class SseFramer {
    /** An event longer than this, in bytes, is passed on in pieces. */
    private static final int MAX_HELD = 256 << 10;

    private Buffer held = Buffer.buffer();
    private boolean insideEvent;

    /** What can go to the client now, event by event; may be empty. */
    List<Buffer> accept(Buffer chunk) {
        Buffer all =
                held.length() == 0 ? chunk : Buffer.buffer().appendBuffer(held).appendBuffer(chunk);
        List<Buffer> events = new ArrayList<>();
        int start = 0;
        for (int i = held.length(); i < all.length(); i++) {
            if (endsEvent(all, i)) {
                events.add(all.slice(start, i + 1));
                start = i + 1;
                insideEvent = false;
            }
        }
        held = start == all.length() ? Buffer.buffer() : all.slice(start, all.length());
        if (held.length() > MAX_HELD) {
            events.add(held);
            insideEvent = true;
            held = Buffer.buffer();
        }
        return events;
    }

    /** What is held when the stream ends as it should. */
    Buffer rest() {
        return held;
    }

    /** Whether the client has got a part of an event. */
    boolean insideEvent() {
        return insideEvent;
    }

    /** Whether a blank line ends at {@code at}; lines end in LF or CR LF. */
    private static boolean endsEvent(Buffer text, int at) {
        if (at < 1 || text.getByte(at) != '\n') {
            return false;
        }
        byte before = text.getByte(at - 1);
        return before == '\n' || (before == '\r' && at > 1 && text.getByte(at - 2) == '\n');
    }
}
