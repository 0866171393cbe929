package baton.router.body;

import io.vertx.core.buffer.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Cuts a stream of bytes into whole server-sent events. A client cannot use a part of an event that an instance sent before its
 * connection broke, and an error event after it would not parse; so the bytes after the last blank line are held until their event is complete.
 */
public final class SseFramer {
    /** An event longer than this, in bytes, is passed on in pieces. The ids of the longest prompts fit. */
    private static final int MAX_HELD = 2 << 20;

    private Buffer held = Buffer.buffer();
    private boolean insideEvent;

    /** The events that {@code chunk} completes, each with its blank line; may be empty. */
    public List<Buffer> accept(Buffer chunk) {
        Buffer all =
                held.length() == 0 ? chunk : Buffer.buffer().appendBuffer(held).appendBuffer(chunk);
        List<Buffer> events = new ArrayList<>();
        // One copy is cheaper than a call of the buffer for each byte.
        byte[] text = all.getBytes();
        int start = 0;
        for (int i = held.length(); i < text.length; i++) {
            if (text[i] == '\n' && endsEvent(text, i)) {
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

    /** The bytes held; at the end of a complete stream they go to the client too. */
    public Buffer rest() {
        return held;
    }

    /** Whether the last bytes returned end inside an event. */
    public boolean insideEvent() {
        return insideEvent;
    }

    /** Whether a blank line ends at {@code at}; lines end in LF or CR LF. */
    private static boolean endsEvent(byte[] text, int at) {
        return at > 0 && (text[at - 1] == '\n' || (at > 1 && text[at - 1] == '\r' && text[at - 2] == '\n'));
    }
}
