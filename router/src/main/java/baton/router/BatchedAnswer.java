package baton.router;

import baton.router.body.SseFramer;
import baton.router.metrics.RouterMetrics.Outcome;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The answers to the prompts of one request, made one: choices have the indices that they would have if one instance answered, the sums of {@code usage} are
 * those of all, and a stream has the events of all as they come. The first answer that is an error becomes the answer, or ends the stream. Confined to
 * the client's event loop.
 */
final class BatchedAnswer {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String DATA = "data:";
    private static final String DONE = "[DONE]";

    /** The limit of answers that are not streams, kept until all are there. */
    private static final long MOST_BYTES = 64 << 20;

    private final Answer client;
    private final ProxiedRequest whole;
    private final Runnable whenPartEnded;
    private final int samples;
    private final List<Part> parts = new ArrayList<>();
    /** Parts that wait for room. */
    private final List<Runnable> waiting = new ArrayList<>();

    private final int count;
    private int left;
    private long kept;
    private boolean headSent;
    private boolean over;
    private Optional<String> id = Optional.empty();
    private Optional<ObjectNode> lastEvent = Optional.empty();
    private Optional<ObjectNode> usage = Optional.empty();

    /**
     * @param whole the request of which this is the answer
     * @param whenPartEnded runs when a part but the last has ended well
     * @param count prompts
     * @param samples choices of each
     */
    BatchedAnswer(Answer client, ProxiedRequest whole, Runnable whenPartEnded, int count, int samples) {
        this.client = client;
        this.whole = whole;
        this.whenPartEnded = whenPartEnded;
        this.count = count;
        this.samples = samples;
        this.left = count;
    }

    /** The answer to the next prompt. */
    Answer next() {
        Part part = new Part(parts.size());
        parts.add(part);
        return part;
    }

    boolean isOver() {
        return over;
    }

    /** Nobody takes the answer any more: the parts end. */
    void abandon() {
        over = true;
        parts.forEach(Part::leave);
    }

    private void fail(Part part, Buffer error) {
        if (over) {
            return;
        }
        over = true;
        parts.stream().filter(each -> each != part).forEach(Part::leave);
        if (headSent) {
            whole.end(Outcome.DECODE_FAILED);
            client.end(error);
            return;
        }
        client.status(part.status);
        sendHead(part);
        client.headers().remove(HttpHeaders.CONTENT_LENGTH);
        whole.end(Outcome.DECODE_FAILED);
        client.end(error);
    }

    private void sendHead(Part part) {
        headSent = true;
        part.headers.remove(HttpHeaders.CONTENT_LENGTH);
        part.headers.remove(Headers.HANDOFF_ID);
        client.headers().addAll(part.headers);
        whole.addHeaders();
    }

    private void event(Part part, String event) {
        String data = event.strip();
        if (!data.startsWith(DATA)) {
            write(part, event);
            return;
        }
        String json = data.substring(DATA.length()).strip();
        if (json.equals(DONE)) {
            return;
        }
        Optional<ObjectNode> read = object(json.getBytes(StandardCharsets.UTF_8));
        if (read.isEmpty()) {
            write(part, event);
            return;
        }
        ObjectNode object = read.get();
        if (object.has("error")) {
            fail(part, Buffer.buffer(event));
            return;
        }
        number(part, object);
        lastEvent = Optional.of(object);
        if (object.path("choices").isEmpty() && object.path("usage").isObject()) {
            addUsage(object);
        } else {
            write(part, DATA + " " + MAPPER.writeValueAsString(object) + "\n\n");
        }
    }

    /** Gives the choices their places, and the object the id of all. */
    private void number(Part part, ObjectNode object) {
        String own = object.path("id").asString("");
        if (id.isEmpty() && !own.isEmpty()) {
            // The parts' ids end in their numbers.
            String end = "-" + part.number;
            id = Optional.of(own.endsWith(end) ? own.substring(0, own.length() - end.length()) : own);
        }
        id.ifPresent(known -> object.put("id", known));
        // Of one prompt each.
        object.remove("kv_transfer_params");
        for (JsonNode choice : object.path("choices")) {
            if (choice instanceof ObjectNode each) {
                each.put("index", part.number * samples + each.path("index").asInt(0));
            }
        }
    }

    private void addUsage(ObjectNode object) {
        JsonNode own = object.path("usage");
        if (!own.isObject()) {
            return;
        }
        if (usage.isPresent()) {
            add(usage.get(), own);
        } else {
            usage = Optional.of(((ObjectNode) own).deepCopy());
        }
    }

    /** Adds the numbers, at all depths. */
    private static void add(ObjectNode sum, JsonNode more) {
        more.properties().forEach(field -> {
            JsonNode known = sum.path(field.getKey());
            if (field.getValue().isIntegralNumber()) {
                sum.put(field.getKey(), known.asLong(0) + field.getValue().asLong());
            } else if (field.getValue().isObject() && known instanceof ObjectNode inner) {
                add(inner, field.getValue());
            } else if (known.isMissingNode() || known.isNull()) {
                sum.set(field.getKey(), field.getValue());
            }
        });
    }

    private void write(Part part, String event) {
        if (over) {
            return;
        }
        if (!headSent) {
            client.status(part.status);
            sendHead(part);
            client.chunked();
        }
        Buffer bytes = Buffer.buffer(event);
        whole.sent(bytes.length());
        client.write(bytes);
    }

    private void ended(Part part) {
        if (over) {
            return;
        }
        left--;
        if (left > 0) {
            whenPartEnded.run();
            return;
        }
        over = true;
        Buffer last;
        if (part.framer != null) {
            last = Buffer.buffer();
            if (lastEvent.isPresent() && usage.isPresent()) {
                ObjectNode summary = lastEvent.get().deepCopy();
                summary.set("choices", MAPPER.createArrayNode());
                summary.set("usage", usage.get());
                last.appendString(DATA + " " + MAPPER.writeValueAsString(summary) + "\n\n");
            }
            last.appendString(DATA + " " + DONE + "\n\n");
            if (!headSent) {
                client.status(part.status);
                sendHead(part);
                client.chunked();
            }
        } else {
            last = merged();
            client.status(part.status);
            sendHead(part);
        }
        whole.sent(last.length());
        whole.end(Outcome.OK);
        client.end(last);
    }

    /** All answers that are not streams in one. */
    private Buffer merged() {
        ObjectNode all = MAPPER.createObjectNode();
        ArrayNode choices = MAPPER.createArrayNode();
        for (Part part : parts) {
            ObjectNode own = object(part.text.getBytes()).orElseThrow();
            number(part, own);
            for (JsonNode choice : own.path("choices")) {
                choices.add(choice);
            }
            addUsage(own);
            if (part.number == 0) {
                all = own;
            }
        }
        all.set("choices", choices);
        if (usage.isPresent()) {
            all.set("usage", usage.get());
        }
        return Buffer.buffer(MAPPER.writeValueAsBytes(all));
    }

    /** Takes the answer to one prompt. */
    private final class Part implements Answer {
        private final int number;
        private final MultiMap headers = MultiMap.caseInsensitiveMultiMap();
        private final Buffer text = Buffer.buffer();
        private @Nullable SseFramer framer;
        private int status = 200;
        private boolean partOver;
        private Runnable whenLeft = () -> {};

        private Part(int number) {
            this.number = number;
        }

        private void leave() {
            if (!partOver) {
                over().run();
            }
        }

        /** Returns the action of a client that leaves. It holds the prompt's request, of which there may be thousands. */
        private Runnable over() {
            Runnable left = whenLeft;
            partOver = true;
            whenLeft = () -> {};
            return left;
        }

        @Override
        public MultiMap headers() {
            return headers;
        }

        @Override
        public int status() {
            return status;
        }

        @Override
        public void status(int status) {
            this.status = status;
        }

        @Override
        public void chunked() {}

        @Override
        public boolean isFull() {
            return framer != null && client.isFull();
        }

        @Override
        public void whenDrained(Runnable drained) {
            waiting.add(drained);
            client.whenDrained(BatchedAnswer.this::drained);
        }

        @Override
        public void whenLeft(Runnable left) {
            whenLeft = left;
        }

        @Override
        public void write(Buffer bytes) {
            String type = headers.get(HttpHeaders.CONTENT_TYPE);
            if (framer == null && status == 200 && type != null && type.startsWith("text/event-stream")) {
                framer = new SseFramer();
            }
            if (framer == null) {
                kept += bytes.length();
                if (kept > MOST_BYTES && !partOver) {
                    refuse("the answers to its prompts have more than " + MOST_BYTES + " bytes");
                } else if (!partOver) {
                    text.appendBuffer(bytes);
                }
            } else {
                framer.accept(bytes).forEach(event -> event(this, event.toString(StandardCharsets.UTF_8)));
            }
        }

        @Override
        public void end(Buffer bytes) {
            write(bytes);
            if (partOver) {
                return;
            }
            Runnable _ = over();
            if (status != 200) {
                // The answer of an instance may be JSON of several lines, or no JSON.
                fail(
                        this,
                        headSent
                                ? object(text.getBytes())
                                        .map(error ->
                                                Buffer.buffer(DATA + " " + MAPPER.writeValueAsString(error) + "\n\n"))
                                        .orElseGet(() -> ApiError.upstream(
                                                        502,
                                                        "HTTP " + status + " for prompt " + number + " of " + count)
                                                .toEvent())
                                : text);
                return;
            }
            if (framer == null && object(text.getBytes()).isEmpty()) {
                refuse("the answer to prompt " + number + " of " + count + " is no JSON object");
                return;
            }
            ended(this);
        }

        private void refuse(String why) {
            Runnable left = over();
            status = 502;
            ApiError error = ApiError.upstream(502, why);
            fail(this, headSent ? error.toEvent() : error.toJson());
            left.run();
        }

        @Override
        public void reset() {
            if (!partOver) {
                Runnable _ = over();
                status = 502;
                ApiError error =
                        ApiError.upstream(502, "the answer to prompt " + number + " of " + count + " broke off");
                fail(this, headSent ? error.toEvent() : error.toJson());
            }
        }
    }

    private void drained() {
        List<Runnable> now = List.copyOf(waiting);
        waiting.clear();
        now.forEach(Runnable::run);
    }

    private static Optional<ObjectNode> object(byte[] json) {
        try {
            return MAPPER.readTree(json) instanceof ObjectNode object ? Optional.of(object) : Optional.empty();
        } catch (JacksonException e) {
            return Optional.empty();
        }
    }
}
