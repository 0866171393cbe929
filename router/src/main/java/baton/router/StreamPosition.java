package baton.router;

import baton.router.body.JsonObjectText;
import io.vertx.core.buffer.Buffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * How far a stream is: the token ids that its instance sends beside the text, with which another instance continues it. Behind the events of each step the
 * instance writes a comment of lines {@code :t INDEX ID,ID,...}, with {@code end} behind a choice's last token. Events are held until their
 * comment is there, so that the client has all events of a token or none. Confined to the request's event loop.
 */
final class StreamPosition {
    /** The field of a continued request. */
    static final String FIELD = "baton_continue";

    private static final int MOST_HELD = 256 << 10;

    private static final class Choice {
        private int[] tokens = new int[64];
        private int count;
        private boolean finished;

        private void add(int token) {
            if (count == tokens.length) {
                tokens = Arrays.copyOf(tokens, count * 2);
            }
            tokens[count++] = token;
        }
    }

    private final TreeMap<Integer, Choice> choices = new TreeMap<>();
    private final List<Buffer> held = new ArrayList<>(4);
    private String stream = "";
    private int heldBytes;
    private long tokens;
    /** Whether the client has the events of the tokens, and no others. */
    private boolean isExact;

    /**
     * An answer begins, of which the client has nothing yet.
     *
     * @param header {@link Headers#STREAM}, from an instance that sends token ids
     */
    void begin(@Nullable String header) {
        choices.clear();
        drop();
        tokens = 0;
        stream = header == null ? "" : header;
        isExact = true;
    }

    /** Whether the instance sends token ids. */
    boolean isKnown() {
        return !stream.isEmpty();
    }

    /** Why another instance cannot continue; empty if it can. */
    Optional<String> whyNot() {
        return !isKnown()
                ? Optional.of("the instance sends no token ids")
                : isExact ? Optional.empty() : Optional.of("the client has a part of the events of a token");
    }

    /** Tokens of all choices. */
    long tokens() {
        return tokens;
    }

    int choices() {
        return choices.size();
    }

    /**
     * Takes an event of the instance.
     *
     * @param ready gets the events that the client is to have now
     */
    void accept(Buffer event, List<Buffer> ready) {
        if (event.length() > 3 && event.getByte(0) == ':' && event.getByte(1) == 't' && event.getByte(2) == ' ') {
            read(event);
            release(ready);
            isExact = true;
            return;
        }
        held.add(event);
        heldBytes += event.length();
        if (heldBytes >= MOST_HELD) {
            release(ready);
            isExact = false;
        }
    }

    /** The events held, at the end of a complete answer. */
    void release(List<Buffer> ready) {
        ready.addAll(held);
        drop();
    }

    /** Forgets the events held, whose tokens another instance makes again. */
    void drop() {
        held.clear();
        heldBytes = 0;
    }

    private void read(Buffer comment) {
        @Nullable Choice choice = null;
        int number = -1;
        byte[] text = comment.getBytes();
        for (int i = 2; i < text.length; i++) {
            byte c = text[i];
            if (c >= '0' && c <= '9') {
                number = Math.max(number, 0) * 10 + c - '0';
                continue;
            }
            if (number >= 0 && choice == null) {
                choice = choices.computeIfAbsent(number, _ -> new Choice());
            } else if (number >= 0 && choice != null) {
                choice.add(number);
                tokens++;
            }
            number = -1;
            if (c == 'e' && choice != null) {
                choice.finished = true;
            } else if (c == '\n') {
                choice = null;
            }
        }
    }

    /**
     * The value of {@link #FIELD}.
     *
     * @throws baton.kv.ConfigException if the instance's header is no JSON object
     */
    byte[] toJson() {
        StringBuilder all = new StringBuilder("[");
        choices.forEach((index, choice) -> {
            all.append(all.length() == 1 ? "" : ",").append("{\"index\":").append(index);
            all.append(choice.finished ? ",\"finished\":true" : "").append(",\"token_ids\":[");
            for (int i = 0; i < choice.count; i++) {
                all.append(i == 0 ? "" : ",").append(choice.tokens[i]);
            }
            all.append("]}");
        });
        return JsonObjectText.parse(Headers.STREAM, stream.getBytes(StandardCharsets.UTF_8))
                .edit()
                .set("choices", all.append(']').toString())
                .build()
                .getBytes();
    }
}
