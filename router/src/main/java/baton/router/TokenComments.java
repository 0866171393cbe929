package baton.router;

import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * The position of an answer of a Baton instance. Behind the events of each step of a stream the instance writes a comment of lines {@code :t INDEX ID,ID,...},
 * with {@code end} behind a choice's last token. Events are held until their comment is there, so that the client has all events of a token or none. A whole
 * answer comes behind such comments, and behind {@code :status STATUS} if it is an error. Each id is followed by {@code :RECORD}
 * if the answer has log probabilities. Another instance gets the records as they are.
 */
final class TokenComments implements StreamPosition {
    private static final int MOST_HELD = 256 << 10;

    /** Bytes of log probabilities that are kept of an answer. One with more begins anew at another instance, and does not leave one that drains. */
    static final int MOST_LOGPROBS = 1 << 20;

    private static final Pattern STATUS = Pattern.compile(":status ([45][0-9]{2})\\s+");

    private static final class Choice {
        private int[] tokens = new int[64];
        private int count;
        /** The log probabilities of the tokens of a whole answer, as the elements of a JSON array. */
        private final StringBuilder logprobs = new StringBuilder(0);

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
    /** Bytes of the log probabilities of all choices. */
    private long scored;

    private long tokens;
    private int status = 200;
    /** Whether the client has the events of the tokens, and no others. */
    private boolean isExact;

    @Override
    public void ask(MultiMap headers) {
        headers.set(Headers.TOKEN_IDS, "1");
    }

    @Override
    public void begin(MultiMap headers) {
        String header = headers.get(Headers.STREAM);
        choices.clear();
        drop();
        tokens = 0;
        scored = 0;
        stream = header == null ? "" : header;
        isExact = true;
    }

    @Override
    public boolean resume(MultiMap headers) {
        status = 200;
        return headers.contains(Headers.STREAM);
    }

    /** Other servers do not know {@link #FIELD}. */
    @Override
    public boolean canBeAt(Instance instance) {
        return !instance.isVllm();
    }

    @Override
    public boolean isKnown() {
        return !stream.isEmpty();
    }

    @Override
    public Optional<String> whyNot() {
        return !isKnown()
                ? Optional.of("the instance sends no token ids")
                : isExact ? Optional.empty() : Optional.of("the client has a part of the events of a token");
    }

    @Override
    public long tokens() {
        return tokens;
    }

    @Override
    public long bytes() {
        return StreamPosition.super.bytes() + scored;
    }

    @Override
    public boolean canMove() {
        return StreamPosition.super.canMove() && scored <= MOST_LOGPROBS;
    }

    @Override
    public String difference() {
        return scored <= MOST_LOGPROBS ? "" : ", which are generated again";
    }

    @Override
    public int status() {
        return status;
    }

    @Override
    public boolean canHandOver() {
        return choices.size() == 1;
    }

    @Override
    public void accept(Buffer event, List<Buffer> ready) {
        if (event.length() > 3 && event.getByte(0) == ':' && event.getByte(1) == 't' && event.getByte(2) == ' ') {
            read(event);
            release(ready);
            isExact = true;
            return;
        }
        Matcher error = STATUS.matcher(event.length() < 16 ? event.toString() : "");
        if (error.matches()) {
            status = Integer.parseInt(error.group(1));
            return;
        }
        held.add(event);
        heldBytes += event.length();
        if (heldBytes >= MOST_HELD) {
            release(ready);
            isExact = false;
        }
    }

    @Override
    public void release(List<Buffer> ready) {
        ready.addAll(held);
        drop();
    }

    @Override
    public void drop() {
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
                if (c == ':') {
                    i = readLogprobs(text, i + 1, choice.logprobs);
                }
            }
            number = -1;
            if (c == 'e' && choice != null) {
                choice.finished = true;
            } else if (c == '\n') {
                choice = null;
            }
        }
        if (scored > MOST_LOGPROBS) {
            choices.clear();
        }
    }

    /** Returns the place of the record's last character. */
    private int readLogprobs(byte[] text, int start, StringBuilder logprobs) {
        int end = start;
        while (end < text.length && (Character.isLetterOrDigit(text[end]) || text[end] == '-' || text[end] == '_')) {
            end++;
        }
        String record = new String(text, start, end - start, StandardCharsets.US_ASCII);
        logprobs.append(logprobs.isEmpty() ? "\"" : ",\"").append(record).append('"');
        scored += record.length() + 3;
        return end - 1;
    }

    @Override
    public JsonObjectText continued(JsonObjectText body) {
        StringBuilder all = new StringBuilder("[");
        choices.forEach((index, choice) -> {
            all.append(all.length() == 1 ? "" : ",").append("{\"index\":").append(index);
            all.append(choice.finished ? ",\"finished\":true" : "").append(",\"token_ids\":[");
            for (int i = 0; i < choice.count; i++) {
                all.append(i == 0 ? "" : ",").append(choice.tokens[i]);
            }
            all.append(choice.logprobs.isEmpty() ? "]" : "],\"logprobs\":[" + choice.logprobs + "]")
                    .append('}');
        });
        byte[] field = JsonObjectText.parse(Headers.STREAM, stream.getBytes(StandardCharsets.UTF_8))
                .edit()
                .set("choices", all.append(']').toString())
                .build()
                .getBytes();
        return body.edit().set(FIELD, field).object();
    }
}
