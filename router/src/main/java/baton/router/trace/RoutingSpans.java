package baton.router.trace;

import baton.router.trace.RequestTrace.LegTrace;
import baton.router.trace.RequestTrace.Outcome;
import baton.router.trace.RequestTrace.Snapshot;
import baton.trace.Span;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * An ended request as spans of its distributed trace: one of the request, and one of each leg in that. Attributes have OpenTelemetry's names
 * where it has some, others begin with {@code baton.}.
 */
public final class RoutingSpans {
    private static final String MODEL = "/v1/models/";
    private static final int FIRST_ERROR = 500;

    private RoutingSpans() {}

    /** @param handoffId the legs' {@code X-Request-Id}, {@code -} if it is the request's */
    public static List<Span> of(Snapshot trace, String handoffId) {
        List<Span> spans = new ArrayList<>();
        long end = trace.outcome().map(Outcome::nanos).orElse(trace.age());
        int attempt = 0;
        for (LegTrace leg : trace.legs()) {
            attempt++;
            spans.add(leg(trace, leg, attempt, end));
        }
        spans.add(request(trace, handoffId, end));
        return spans;
    }

    private static Span request(Snapshot trace, String handoffId, long end) {
        Span.Attributes attributes = new Span.Attributes()
                .put("http.request.method", trace.head().method())
                .put("url.path", trace.head().path())
                .put("baton.request_id", trace.head().id())
                .put("baton.answer.bytes", trace.answer().bytes())
                .put("baton.answer.pieces", trace.answer().writes());
        if (!handoffId.equals("-")) {
            attributes.put("baton.handoff_id", handoffId);
        }
        trace.localPrefill().ifPresent(reason -> attributes.put("baton.local_prefill", reason));
        trace.answer().firstByte().ifPresent(nanos -> attributes.put("baton.first_byte_seconds", nanos / 1e9));
        trace.answer().meanGap().ifPresent(nanos -> attributes.put("baton.mean_gap_seconds", nanos / 1e9));
        Optional<String> error = Optional.empty();
        if (trace.outcome().isPresent()) {
            Outcome outcome = trace.outcome().get();
            attributes.put("http.response.status_code", outcome.status()).put("baton.outcome", outcome.name());
            if (outcome.status() >= FIRST_ERROR || outcome.name().equals("decode_broken")) {
                attributes.put("error.type", outcome.name());
                error = trace.steps().stream()
                        .map(RequestTrace.Step::what)
                        .filter(what -> what.startsWith("answered with"))
                        .findFirst()
                        .or(() -> Optional.of(outcome.name()));
            }
        }
        List<Span.Event> events = trace.answer().firstByte().isPresent()
                ? List.of(new Span.Event(
                        trace.head().startedEpochNanos()
                                + trace.answer().firstByte().getAsLong(),
                        "first byte"))
                : List.of();
        return new Span(
                trace.head().context().traceId(),
                trace.head().spanId(),
                trace.head().context().parentId(),
                trace.head().method() + " " + route(trace.head().path()),
                Span.Kind.SERVER,
                trace.head().startedEpochNanos(),
                trace.head().startedEpochNanos() + end,
                attributes.toMap(),
                events,
                error);
    }

    private static String route(String path) {
        return path.startsWith(MODEL) ? MODEL + "{model}" : path;
    }

    private static Span leg(Snapshot trace, LegTrace leg, int attempt, long end) {
        URI address = URI.create(leg.instance());
        Span.Attributes attributes = new Span.Attributes()
                .put("http.request.method", trace.head().method())
                .put("url.full", leg.instance() + trace.head().path())
                .put("server.address", address.getHost())
                .put("server.port", address.getPort())
                .put("baton.leg", leg.role())
                .put("baton.leg.number", attempt)
                .put("baton.policy.reason", leg.why());
        leg.status().ifPresent(status -> attributes.put("http.response.status_code", status));
        leg.prompt()
                .ifPresent(tokens -> attributes
                        .put("gen_ai.usage.prompt_tokens", tokens.all())
                        .put("baton.tokens.cached", tokens.cached()));
        if (leg.ended().isEmpty()) {
            attributes.put("baton.leg.given_up", true);
        }
        Optional<String> error = leg.failure();
        if (error.isEmpty() && leg.status().isPresent() && leg.status().getAsInt() >= 400) {
            error = Optional.of("HTTP " + leg.status().getAsInt());
        }
        return new Span(
                trace.head().context().traceId(),
                leg.spanId(),
                Optional.of(trace.head().spanId()),
                leg.role(),
                Span.Kind.CLIENT,
                trace.head().startedEpochNanos() + leg.sent(),
                trace.head().startedEpochNanos() + leg.ended().orElse(end),
                attributes.toMap(),
                List.of(),
                error);
    }
}
