package baton.server;

import baton.engine.GenerationEvent.Usage;
import baton.engine.RequestTimes;
import baton.engine.RequestTimes.KvLoad;
import io.vertx.core.buffer.Buffer;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Explains the sources of a request's prompt tokens and the phases of its time, as JSON and in words. */
final class RequestExplanation {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private RequestExplanation() {}

    static Buffer json(RequestRecord record) {
        RequestRecord.Origin origin = record.origin();
        ObjectNode json = MAPPER.createObjectNode()
                .put("id", origin.requestId())
                .put("answer_id", origin.answerId())
                .put("trace_id", origin.trace().traceId())
                .put("path", origin.path())
                .put("model", origin.model())
                .put("state", record.end().isPresent() ? "ended" : "running")
                .put("age_ms", millis(record.age()));
        origin.connector().ifPresent(connector -> json.put("kv_connector", connector));
        origin.source().ifPresent(source -> json.put("kv_source", source));
        record.end().ifPresent(end -> {
            json.put("status", end.status()).put("finish", end.finish());
            end.error().ifPresent(error -> json.put("error", error));
        });
        record.submitted().ifPresent(nanos -> json.put("submitted_ms", millis(nanos)));
        record.firstOutput().ifPresent(nanos -> json.put("first_token_ms", millis(nanos)));
        usage(json, record.usage());
        ArrayNode sequences = json.putArray("sequences");
        for (RequestRecord.Sequence sequence : record.sequences()) {
            ObjectNode each = sequences.addObject().put("prompt_tokens", sequence.promptTokens());
            sequence.done().ifPresent(done -> {
                usage(each, done.usage());
                times(each, done.times());
            });
        }
        json.put("text", text(record));
        return Buffer.buffer(MAPPER.writeValueAsBytes(json));
    }

    private static void usage(ObjectNode json, Usage usage) {
        json.put("prompt_tokens", usage.promptTokens());
        json.putObject("prompt_tokens_by_source")
                .put("local_compute", usage.promptTokens() - usage.cachedTokens())
                .put("local_cache_hit", usage.cachedTokens() - usage.transferredTokens())
                .put("external_kv_transfer", usage.transferredTokens());
        json.put("output_tokens", usage.outputTokens());
    }

    /** Milliseconds since the sequence came to the engine. */
    private static void times(ObjectNode json, RequestTimes times) {
        times.load().ifPresent(load -> {
            ObjectNode loaded = json.putObject("kv_load")
                    .put("started_ms", millis(load.started()))
                    .put("tokens", load.tokens())
                    .put("blocks", load.blocks())
                    .put("bytes", load.bytes())
                    .put("attempts", load.attempts())
                    .put("failures", load.failures());
            put(loaded, "ended_ms", load.ended());
        });
        put(json, "scheduled_ms", times.scheduled());
        put(json, "engine_first_token_ms", times.firstToken());
        json.put("ended_ms", millis(times.ended())).put("preemptions", times.preemptions());
    }

    private static void put(ObjectNode json, String name, OptionalDouble seconds) {
        seconds.ifPresent(value -> json.put(name, millis(value)));
    }

    private static double millis(double seconds) {
        return Math.round(seconds * 1e6) / 1e3;
    }

    private static double millis(long nanos) {
        return Math.round(nanos / 1e3) / 1e3;
    }

    static String text(RequestRecord record) {
        StringBuilder text = new StringBuilder();
        Optional<RequestRecord.Done> first = record.sequences().stream()
                .flatMap(each -> each.done().stream())
                .findFirst();
        record.submitted()
                .ifPresentOrElse(
                        nanos -> text.append("The prompt was read after %s. ".formatted(ms(nanos / 1e9))),
                        () -> text.append("The prompt is being read. "));
        first.ifPresent(done -> {
            sources(text, record.origin(), done);
            course(text, done.times());
        });
        record.firstOutput()
                .ifPresent(nanos ->
                        text.append("The first token went to the client after %s. ".formatted(ms(nanos / 1e9))));
        if (record.sequences().size() > 1) {
            text.append("That is of the first of %s sequences. "
                    .formatted(
                            record.sequences().size() < RequestRecord.MOST_SEQUENCES
                                    ? Integer.toString(record.sequences().size())
                                    : RequestRecord.MOST_SEQUENCES + " or more"));
        }
        record.end()
                .ifPresentOrElse(
                        end -> {
                            text.append("It ended after %s with %d tokens: %s, HTTP %d"
                                    .formatted(
                                            ms(record.age() / 1e9),
                                            record.usage().outputTokens(),
                                            end.finish(),
                                            end.status()));
                            end.error()
                                    .ifPresent(error ->
                                            text.append(" (").append(error).append(')'));
                            text.append('.');
                        },
                        () -> text.append("It has been running for %s.".formatted(ms(record.age() / 1e9))));
        return text.append(" It belongs to the trace ")
                .append(record.origin().trace().traceId())
                .append('.')
                .toString();
    }

    private static void sources(StringBuilder text, RequestRecord.Origin origin, RequestRecord.Done done) {
        Usage usage = done.usage();
        text.append("Of its %d tokens %d were computed here, %d were in the prefix cache, and %d came from elsewhere. "
                .formatted(
                        usage.promptTokens(),
                        usage.promptTokens() - usage.cachedTokens(),
                        usage.cachedTokens() - usage.transferredTokens(),
                        usage.transferredTokens()));
        if (done.times().load().isEmpty()) {
            origin.connector()
                    .ifPresent(
                            connector -> text.append("%s had nothing of it for this request. ".formatted(connector)));
            return;
        }
        KvLoad load = done.times().load().get();
        text.append("%s%s was to bring %d tokens, %d blocks of %d bytes in all"
                .formatted(
                        origin.connector().orElse("The KV connector"),
                        origin.source().map(source -> " from " + source).orElse(""),
                        load.tokens(),
                        load.blocks(),
                        load.bytes()));
        load.ended()
                .ifPresentOrElse(
                        ended -> text.append(", which took %s".formatted(ms(ended - load.started()))),
                        () -> text.append(", within the first step"));
        if (load.attempts() > 1) {
            text.append(", in %d attempts".formatted(load.attempts()));
        }
        if (load.failures() > 0) {
            text.append("; %d of them failed, and missing tokens were computed here".formatted(load.failures()));
        }
        text.append(". ");
    }

    private static void course(StringBuilder text, RequestTimes times) {
        times.scheduled()
                .ifPresentOrElse(
                        scheduled -> text.append(
                                "Its first step began %s after it came to the engine".formatted(ms(scheduled))),
                        () -> text.append("No step computed anything of it"));
        times.firstToken()
                .ifPresent(token -> text.append(", its first token was there after %s, its last after %s"
                        .formatted(ms(token), ms(times.ended()))));
        text.append(". ");
        if (times.preemptions() > 0) {
            text.append("It lost its blocks to other requests %d times. ".formatted(times.preemptions()));
        }
    }

    private static String ms(double seconds) {
        return String.format(Locale.ROOT, seconds < 0.01 ? "%.2f ms" : "%.0f ms", seconds * 1e3);
    }
}
