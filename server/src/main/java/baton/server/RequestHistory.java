package baton.server;

import baton.trace.OtlpExporter;
import io.vertx.core.buffer.Buffer;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;
import java.util.Set;

/** The records of ended requests: explained for a while, and exported as spans. Confined to the event loop. */
final class RequestHistory {
    /** About 1 KB each. */
    static final int KEPT = 2000;

    private static final String REQUESTS = "/v1/requests/";
    private static final String EXPLAIN = "/explain";

    private final Optional<OtlpExporter> spans;
    private final Set<ResponseStream> live;
    /** The last comes first. */
    private final Deque<RequestRecord> ended = new ArrayDeque<>();

    /** @param live requests under way */
    RequestHistory(Optional<OtlpExporter> spans, Set<ResponseStream> live) {
        this.spans = spans;
        this.live = live;
    }

    /** A request has ended. */
    void add(ResponseStream stream) {
        if (stream.warmsUp()) {
            return;
        }
        RequestRecord record = stream.record();
        ended.addFirst(record);
        if (ended.size() > KEPT) {
            ended.removeLast();
        }
        if (record.origin().trace().sampled()) {
            spans.ifPresent(exporter -> RequestSpans.of(record).forEach(exporter::export));
        }
    }

    /** Whether a path is {@code /v1/requests/{id}/explain}. */
    static boolean serves(String path) {
        return path.startsWith(REQUESTS)
                && path.endsWith(EXPLAIN)
                && path.length() > REQUESTS.length() + EXPLAIN.length();
    }

    /** Answers {@code GET /v1/requests/{id}/explain}. */
    void explain(HttpExchange exchange) {
        String path = exchange.request().path();
        String encoded = path.substring(REQUESTS.length(), path.length() - EXPLAIN.length());
        String id;
        try {
            // The decoder is for forms, in which a plus is a space.
            id = URLDecoder.decode(encoded.replace("+", "%2B"), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException _) {
            throw ApiException.badField("id", "is not percent-encoded: '" + Json.shortened(encoded) + "'");
        }
        RequestRecord record = find(id).orElseThrow(() -> ApiException.notFound(
                "no request with X-Request-Id '" + Json.shortened(id) + "' is under way or among the last " + KEPT,
                Optional.of("id")));
        String accept = exchange.request().getHeader("Accept");
        if (accept != null && accept.startsWith("text/plain")) {
            exchange.reply(200, "text/plain; charset=utf-8", Buffer.buffer(RequestExplanation.text(record) + "\n"));
        } else {
            exchange.json(200, RequestExplanation.json(record));
        }
    }

    /** The latest request with this id. */
    private Optional<RequestRecord> find(String id) {
        return live.stream()
                .filter(stream -> !stream.warmsUp() && stream.isCalledOneOf(Set.of(id)))
                .findFirst()
                .map(ResponseStream::record)
                .or(() -> ended.stream()
                        .filter(record -> record.origin().isCalledOneOf(Set.of(id)))
                        .findFirst());
    }
}
