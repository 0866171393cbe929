package baton.bench.serve;

import io.vertx.core.buffer.Buffer;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.stream.LongStream;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Reads server-sent events as they come. Used by one thread. */
final class StreamedAnswer {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final String DATA = "data:";

    private final Backend backend;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final LongStream.Builder between = LongStream.builder();
    private final StringBuilder text = new StringBuilder();
    private boolean begun;
    private long first;
    private long last;
    private int promptTokens;
    private int outputTokens;
    private Optional<String> error = Optional.empty();

    StreamedAnswer(Backend backend) {
        this.backend = backend;
    }

    void read(Buffer bytes) {
        int begin = 0;
        int length = bytes.length();
        for (int i = 0; i < length; i++) {
            if (bytes.getByte(i) == '\n') {
                append(bytes, begin, i);
                String whole = line.toString(StandardCharsets.UTF_8).strip();
                line.reset();
                begin = i + 1;
                if (whole.startsWith(DATA)) {
                    event(whole.substring(DATA.length()).strip());
                }
            }
        }
        append(bytes, begin, length);
    }

    private void append(Buffer bytes, int from, int to) {
        if (to > from) {
            line.writeBytes(bytes.getBytes(from, to));
        }
    }

    private void event(String data) {
        if (data.equals("[DONE]") || error.isPresent()) {
            return;
        }
        JsonNode event;
        try {
            event = JSON.readTree(data);
        } catch (JacksonException e) {
            error = Optional.of("an event is no JSON: " + data);
            return;
        }
        JsonNode choice = event.path("choices").path(0);
        if (choice.isObject()) {
            long now = System.nanoTime();
            if (begun) {
                between.add(now - last);
            } else {
                first = now;
                begun = true;
            }
            last = now;
            JsonNode piece =
                    backend == Backend.OPENAI_CHAT ? choice.path("delta").path("content") : choice.path("text");
            text.append(piece.asString(""));
        } else if (event.hasNonNull("error")) {
            error = Optional.of("the answer broke off: " + event.path("error"));
        } else if (event.path("usage").isObject()) {
            outputTokens = event.path("usage").path("completion_tokens").asInt(0);
            promptTokens = event.path("usage").path("prompt_tokens").asInt(0);
        }
    }

    /** The exchange, of an answer that has ended. */
    Exchange end(long due, long arrived, long sent, int counted) {
        Optional<String> why = error.or(() -> begun ? Optional.empty() : Optional.of("no event with a choice came"));
        return new Exchange(
                due,
                arrived,
                sent,
                begun ? first - sent : 0,
                between.build().toArray(),
                promptTokens > 0 ? promptTokens : counted,
                outputTokens,
                text.toString(),
                why);
    }

    static Exchange failed(long due, long arrived, long sent, int counted, String why) {
        return new Exchange(due, arrived, sent, 0, new long[0], counted, 0, "", Optional.of(why));
    }
}
