package baton.router;

import io.vertx.core.buffer.Buffer;

/**
 * Lets server-sent events through whole. What an instance sent of an event when it died is of no use to a client, and an error
 * event after it would not parse; so the piece after the last blank line is held until its event is complete.
 */
final class SseFramer {
    /** An event longer than this, in bytes, is passed on in pieces. */
    private static final int MAX_HELD = 256 << 10;

    private Buffer held = Buffer.buffer();
    private boolean insideEvent;

    /** What can go to the client now; may be empty. */
    Buffer accept(Buffer chunk) {
        Buffer all =
                held.length() == 0 ? chunk : Buffer.buffer().appendBuffer(held).appendBuffer(chunk);
        int whole = endOfLastEvent(all);
        if (whole == 0 && all.length() > MAX_HELD) {
            insideEvent = true;
            held = Buffer.buffer();
            return all;
        }
        if (whole > 0) {
            insideEvent = false;
        }
        held = whole == all.length() ? Buffer.buffer() : all.slice(whole, all.length());
        return whole == all.length() ? all : all.slice(0, whole);
    }

    /** What is held when the stream ends as it should. */
    Buffer rest() {
        return held;
    }

    /** Whether the client has got a part of an event. */
    boolean insideEvent() {
        return insideEvent;
    }

    /** The length up to and with the last blank line; lines end in LF or CR LF. */
    private static int endOfLastEvent(Buffer text) {
        for (int i = text.length() - 1; i > 0; i--) {
            if (text.getByte(i) == '\n') {
                byte before = text.getByte(i - 1);
                if (before == '\n' || (before == '\r' && i > 1 && text.getByte(i - 2) == '\n')) {
                    return i + 1;
                }
            }
        }
        return 0;
    }
}
