package baton.bench.serve;

import io.vertx.core.buffer.Buffer;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Reads the server-sent events of an answer as they come. Used by one thread. */
public final class StreamedAnswer {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final String DATA = "data:";
    private final Backend backend;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final List<Event> events = new ArrayList<>();
    private final List<Token> listed = new ArrayList<>();
    private final StringBuilder text = new StringBuilder();
    private JsonNode usage = JSON.createObjectNode();
    private boolean ended;
    private Optional<String> error = Optional.empty();

    /**
     * An event with a choice.
     *
     * @param at when it came, by {@link System#nanoTime}
     * @param tokens as many as the server lists; without a list one, or none if the event is only the end
     * @param last whether it has a finish reason
     */
    public record Event(long at, int tokens, boolean last) {}

    /** @param margin by how much its log probability is above the second's; empty if that was not asked for */
    public record Token(int id, OptionalDouble margin) {}

    public StreamedAnswer(Backend backend) {
        this.backend = backend;
    }

    void read(Buffer bytes) {
        int begin = 0;
        int length = bytes.length();
        for (int i = 0; i < length; i++) {
            if (bytes.getByte(i) == '\n') {
                append(bytes, begin, i);
                read(line.toString(StandardCharsets.UTF_8), System.nanoTime());
                line.reset();
                begin = i + 1;
            }
        }
        append(bytes, begin, length);
    }

    private void append(Buffer bytes, int from, int to) {
        if (to > from) {
            line.writeBytes(bytes.getBytes(from, to));
        }
    }

    /** Reads a line that came at this time. */
    public void read(String whole, long at) {
        String data = isData(whole) ? whole.substring(DATA.length()).strip() : "";
        ended |= data.equals("[DONE]");
        if (data.isEmpty() || ended || error.isPresent()) {
            return;
        }
        JsonNode event;
        try {
            event = JSON.readTree(data);
        } catch (JacksonException e) {
            error = Optional.of("an event that is no JSON: " + data);
            return;
        }
        JsonNode choice = event.path("choices").path(0);
        if (choice.isObject()) {
            JsonNode piece =
                    backend == Backend.OPENAI_CHAT ? choice.path("delta").path("content") : choice.path("text");
            String said = piece.asString("");
            boolean last = choice.hasNonNull("finish_reason");
            JsonNode ids = choice.path("token_ids");
            events.add(new Event(at, ids.isArray() ? ids.size() : last && said.isEmpty() ? 0 : 1, last));
            list(ids, choice.path("logprobs").path("top_logprobs"));
            text.append(said);
        }
        if (event.hasNonNull("error")) {
            error = Optional.of("the answer broke off: " + event.path("error"));
        } else if (event.path("usage").isObject()) {
            usage = event.path("usage");
        }
    }

    /** Whether a line has an event. */
    public static boolean isData(String line) {
        return line.startsWith(DATA);
    }

    private void list(JsonNode ids, JsonNode top) {
        for (int i = 0; i < ids.size(); i++) {
            double[] most = top.path(i)
                    .valueStream()
                    .mapToDouble(JsonNode::asDouble)
                    .sorted()
                    .toArray();
            listed.add(new Token(
                    ids.path(i).asInt(),
                    most.length < 2
                            ? OptionalDouble.empty()
                            : OptionalDouble.of(most[most.length - 1] - most[most.length - 2])));
        }
    }

    public List<Event> events() {
        return events;
    }

    /** The tokens that the server lists. */
    public List<Token> tokens() {
        return listed;
    }

    /** A count of {@code usage}; 0 if the server reports none. */
    public int usage(String pointer) {
        return usage.at(pointer).asInt(0);
    }

    public Optional<String> error() {
        return error;
    }

    /** The exchange, of an answer that has ended. */
    Exchange end(long due, long arrived, long sent, int counted) {
        Optional<String> why =
                error.or(() -> events.isEmpty() ? Optional.of("no event with a choice came") : Optional.empty());
        long[] between = new long[Math.max(0, events.size() - 1)];
        Arrays.setAll(between, i -> events.get(i + 1).at - events.get(i).at);
        int promptTokens = usage("/prompt_tokens");
        return new Exchange(
                due,
                arrived,
                sent,
                events.isEmpty() ? 0 : events.getFirst().at - sent,
                between,
                promptTokens > 0 ? promptTokens : counted,
                usage("/completion_tokens"),
                text.toString(),
                why);
    }

    static Exchange failed(long due, long arrived, long sent, int counted, String why) {
        return new Exchange(due, arrived, sent, 0, new long[0], counted, 0, "", Optional.of(why));
    }
}
