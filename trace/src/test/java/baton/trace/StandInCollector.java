package baton.trace;

import baton.kv.Deadline;
import baton.kv.Ticker;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** An OTLP/HTTP receiver for tests: it checks the form of requests against the specification, and keeps the spans. */
public final class StandInCollector implements AutoCloseable {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /**
     * A span as received.
     *
     * @param parent empty if it has none
     * @param kind OTLP's code
     * @param attributes as text
     * @param status 0, or 2 for an error
     */
    public record Received(
            String service,
            String trace,
            String id,
            String parent,
            String name,
            int kind,
            long start,
            long end,
            Map<String, String> attributes,
            List<String> events,
            int status,
            String message) {
        /** An attribute's value; empty if it is absent. */
        public String attribute(String key) {
            return attributes.getOrDefault(key, "");
        }
    }

    /** The collector's answer. */
    public record Answer(int status, String body) {
        public static final Answer TAKEN = new Answer(200, "{}");
    }

    private final HttpServer server;
    private final List<Received> spans = new ArrayList<>();
    private final List<Integer> batches = new ArrayList<>();
    private final List<String> malformed = new ArrayList<>();
    private Answer answer = Answer.TAKEN;

    public StandInCollector() {
        try {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        server.createContext("/v1/traces", this::handle);
        server.start();
    }

    public URI endpoint() {
        return URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/v1/traces");
    }

    /** From now on. */
    public synchronized void answer(Answer next) {
        answer = next;
    }

    private void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            String type = exchange.getRequestHeaders().getFirst("Content-Type");
            Answer given;
            synchronized (this) {
                given = answer;
                if (!exchange.getRequestMethod().equals("POST") || !"application/json".equals(type)) {
                    malformed.add(exchange.getRequestMethod() + " " + type);
                }
                List<Received> read = read(MAPPER.readTree(body));
                batches.add(read.size());
                if (given.status() == 200) {
                    spans.addAll(read);
                }
                notifyAll();
            }
            byte[] text = given.body().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(given.status(), text.length == 0 ? -1 : text.length);
            exchange.getResponseBody().write(text);
        }
    }

    private List<Received> read(JsonNode request) {
        List<Received> read = new ArrayList<>();
        for (JsonNode resource : request.path("resourceSpans")) {
            String service = attributes(resource.path("resource")).getOrDefault("service.name", "");
            for (JsonNode scope : resource.path("scopeSpans")) {
                for (JsonNode span : scope.path("spans")) {
                    require(span, "traceId", "[0-9a-f]{32}");
                    require(span, "spanId", "[0-9a-f]{16}");
                    require(span, "startTimeUnixNano", "[0-9]{19}");
                    require(span, "endTimeUnixNano", "[0-9]{19}");
                    List<String> events = new ArrayList<>();
                    for (JsonNode event : span.path("events")) {
                        require(event, "timeUnixNano", "[0-9]{19}");
                        events.add(event.path("name").asString());
                    }
                    read.add(new Received(
                            service,
                            span.path("traceId").asString(),
                            span.path("spanId").asString(),
                            span.path("parentSpanId").asString(""),
                            span.path("name").asString(),
                            span.path("kind").asInt(),
                            Long.parseLong(span.path("startTimeUnixNano").asString()),
                            Long.parseLong(span.path("endTimeUnixNano").asString()),
                            attributes(span),
                            events,
                            span.path("status").path("code").asInt(0),
                            span.path("status").path("message").asString("")));
                }
            }
        }
        return read;
    }

    private void require(JsonNode node, String field, String pattern) {
        if (!node.path(field).isString() || !node.path(field).asString().matches(pattern)) {
            malformed.add(field + ": " + node.path(field));
        }
    }

    private Map<String, String> attributes(JsonNode of) {
        Map<String, String> all = new HashMap<>();
        for (JsonNode attribute : of.path("attributes")) {
            JsonNode value = attribute.path("value");
            if (value.size() != 1
                    || (value.has("intValue") && !value.path("intValue").isString())) {
                malformed.add(attribute.toString());
            }
            value.forEach(each -> all.put(attribute.path("key").asString(), each.asString()));
        }
        return all;
    }

    /** All spans so far. */
    public synchronized List<Received> spans() {
        if (!malformed.isEmpty()) {
            throw new AssertionError("malformed: " + malformed);
        }
        return List.copyOf(spans);
    }

    /** How many spans each request had. */
    public synchronized List<Integer> batches() {
        return List.copyOf(batches);
    }

    /** The spans, once they are as wanted. */
    public synchronized List<Received> await(String what, Predicate<List<Received>> wanted)
            throws InterruptedException {
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (!wanted.test(spans())) {
            if (!deadline.awaitNotify(this)) {
                throw new AssertionError(what + " did not come; there are " + spans());
            }
        }
        return spans();
    }

    /** The spans, once there are so many. */
    public List<Received> await(int count) throws InterruptedException {
        return await(count + " spans", all -> all.size() >= count);
    }

    @Override
    public void close() {
        server.stop(0);
    }
}
