package baton.server;

import baton.engine.GenerationEvent.Usage;
import baton.engine.RequestTimes;
import baton.engine.RequestTimes.KvLoad;
import baton.trace.Span;
import baton.trace.TraceContext;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalLong;

/**
 * An ended request as spans: one of the request and, in that, for each of its first sequences {@code queue}, {@code hand-off} (loading the
 * KV cache from elsewhere), {@code admission} (from there to the first step), {@code prefill}, {@code first token} (from the engine to the
 * connection) and {@code stream}. A phase that did not happen has no span. Attributes have vLLM's names where it has some.
 */
final class RequestSpans {
    private static final int FIRST_ERROR = 500;

    private final RequestRecord record;
    private final List<Span> spans = new ArrayList<>();

    private RequestSpans(RequestRecord record) {
        this.record = record;
    }

    static List<Span> of(RequestRecord record) {
        RequestSpans made = new RequestSpans(record);
        made.request();
        made.parts();
        return made.spans;
    }

    private void request() {
        RequestRecord.Origin origin = record.origin();
        Usage usage = record.usage();
        Span.Attributes attributes = new Span.Attributes()
                .put("http.request.method", origin.method())
                .put("url.path", origin.path())
                .put("gen_ai.request.id", origin.answerId())
                .put("gen_ai.response.model", origin.model())
                .put("gen_ai.usage.prompt_tokens", usage.promptTokens())
                .put("gen_ai.usage.completion_tokens", usage.outputTokens())
                .put("gen_ai.latency.e2e", record.age() / 1e9)
                .put("baton.request_id", origin.requestId())
                .put("baton.tokens.local_compute", usage.promptTokens() - usage.cachedTokens())
                .put("baton.tokens.local_cache_hit", usage.cachedTokens() - usage.transferredTokens())
                .put("baton.tokens.external_kv_transfer", usage.transferredTokens());
        record.firstOutput().ifPresent(nanos -> attributes.put("gen_ai.latency.time_to_first_token", nanos / 1e9));
        first().flatMap(times -> boxed(times.scheduled()))
                .ifPresent(seconds -> attributes.put("gen_ai.latency.time_in_queue", seconds));
        Optional<String> error = Optional.empty();
        if (record.end().isPresent()) {
            RequestRecord.End end = record.end().get();
            attributes.put("http.response.status_code", end.status()).put("baton.finish", end.finish());
            if (end.status() >= FIRST_ERROR || end.error().isPresent()) {
                attributes.put("error.type", end.finish());
                error = end.error().or(() -> Optional.of("HTTP " + end.status()));
            }
        }
        spans.add(new Span(
                origin.trace().traceId(),
                origin.spanId(),
                origin.trace().parentId(),
                origin.method() + " " + origin.path(),
                Span.Kind.SERVER,
                origin.epochNanos(),
                origin.epochNanos() + record.age(),
                attributes.toMap(),
                record.firstOutput().isPresent()
                        ? List.of(new Span.Event(
                                origin.epochNanos() + record.firstOutput().getAsLong(), "first token"))
                        : List.of(),
                error));
    }

    private Optional<RequestTimes> first() {
        return record.sequences().stream()
                .flatMap(sequence -> sequence.done().stream())
                .map(RequestRecord.Done::times)
                .findFirst();
    }

    private static Optional<Double> boxed(OptionalDouble value) {
        return value.isPresent() ? Optional.of(value.getAsDouble()) : Optional.empty();
    }

    private void parts() {
        OptionalLong submitted = record.submitted();
        if (submitted.isEmpty()) {
            return;
        }
        long came = submitted.getAsLong();
        add("read", 0, came, new Span.Attributes());
        boolean several = record.sequences().size() > 1;
        for (int i = 0; i < record.sequences().size(); i++) {
            Optional<RequestRecord.Done> done = record.sequences().get(i).done();
            int index = i;
            done.ifPresent(end -> sequence(end.times(), came, several ? OptionalLong.of(index) : OptionalLong.empty()));
        }
    }

    /** @param came when the engine had it, in nanoseconds since the request */
    private void sequence(RequestTimes times, long came, OptionalLong index) {
        long ended = came + nanos(times.ended());
        long scheduled =
                times.scheduled().isPresent() ? came + nanos(times.scheduled().getAsDouble()) : ended;
        Optional<KvLoad> apart = times.load().filter(load -> load.ended().isPresent());
        if (apart.isPresent()) {
            KvLoad load = apart.get();
            long started = came + nanos(load.started());
            long loaded = came + nanos(load.ended().getAsDouble());
            add("queue", came, started, attributes(index));
            add("hand-off", started, loaded, loaded(attributes(index), load));
            add("admission", loaded, Math.max(loaded, scheduled), attributes(index));
        } else {
            add("queue", came, scheduled, attributes(index));
        }
        if (times.scheduled().isPresent()) {
            long token = times.firstToken().isPresent()
                    ? came + nanos(times.firstToken().getAsDouble())
                    : ended;
            Span.Attributes prefill = attributes(index).put("baton.preemptions", times.preemptions());
            // A load within a step has no time of its own.
            times.load().filter(load -> load.ended().isEmpty()).ifPresent(load -> loaded(prefill, load));
            add("prefill", scheduled, token, prefill);
            if (times.firstToken().isPresent()) {
                record.firstOutput()
                        .ifPresent(output -> add("first token", token, Math.max(token, output), attributes(index)));
                add("stream", token, ended, attributes(index));
            }
        }
    }

    private static long nanos(double seconds) {
        return Math.round(seconds * 1e9);
    }

    private static Span.Attributes attributes(OptionalLong index) {
        Span.Attributes attributes = new Span.Attributes();
        index.ifPresent(number -> attributes.put("baton.sequence", number));
        return attributes;
    }

    private Span.Attributes loaded(Span.Attributes attributes, KvLoad load) {
        record.origin().connector().ifPresent(connector -> attributes.put("baton.kv.connector", connector));
        record.origin().source().ifPresent(source -> attributes.put("baton.kv.source", source));
        return attributes
                .put("baton.kv.tokens", load.tokens())
                .put("baton.kv.blocks", load.blocks())
                .put("baton.kv.bytes", load.bytes())
                .put("baton.kv.retries", load.attempts() - 1)
                .put("baton.kv.failures", load.failures());
    }

    private void add(String name, long start, long end, Span.Attributes attributes) {
        RequestRecord.Origin origin = record.origin();
        spans.add(new Span(
                origin.trace().traceId(),
                TraceContext.newSpanId(),
                Optional.of(origin.spanId()),
                name,
                Span.Kind.INTERNAL,
                origin.epochNanos() + start,
                origin.epochNanos() + end,
                attributes.toMap(),
                List.of(),
                Optional.empty()));
    }
}
