package baton.server;

import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Usage;
import baton.engine.RequestTimes;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.trace.OtlpExporter;
import baton.trace.TraceContext;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/**
 * The facts of one request, for its explanation and its spans. It has ids, numbers and times, nothing of prompts and answers. Times in
 * nanoseconds since the request came.
 *
 * @param submitted the engine has it: the body is read, the prompt is tokens
 * @param firstOutput the first token was given to the client's connection
 * @param age now, or when it had ended
 * @param sequences the first {@value #MOST_SEQUENCES}
 * @param usage of all sequences
 * @param end empty while it runs
 */
record RequestRecord(
        Origin origin,
        OptionalLong submitted,
        OptionalLong firstOutput,
        long age,
        List<Sequence> sequences,
        Usage usage,
        Optional<End> end) {
    static final int MOST_SEQUENCES = 8;

    /**
     * The facts that are known from the start.
     *
     * @param requestId {@code X-Request-Id}
     * @param answerId the id that the answer shows
     * @param spanId of the request's span
     * @param epochNanos when it came, since 1970, UTC; 0 if its spans are not recorded
     * @param connector the instance's KV connector
     * @param source where {@code kv_transfer_params} say that the prompt's blocks are
     */
    record Origin(
            String requestId,
            String answerId,
            String model,
            String method,
            String path,
            TraceContext trace,
            String spanId,
            long epochNanos,
            Optional<String> connector,
            Optional<String> source) {
        static Origin of(HttpExchange exchange, ReplyWriter.Head head, KvTransferConfig transfer) {
            Optional<OtlpExporter> spans = exchange.spans();
            TraceContext trace = TraceContext.of(exchange.request().headers().getAll("traceparent"), spans.isPresent());
            return new Origin(
                    head.requestId(),
                    head.id(),
                    head.request().model(),
                    exchange.request().method().name(),
                    exchange.request().path(),
                    trace,
                    TraceContext.newSpanId(),
                    spans.filter(_ -> trace.sampled())
                            .map(exporter -> exporter.epochNanos() - exchange.nanos())
                            .orElse(0L),
                    transfer.connector(),
                    head.request().kvTransferParams().flatMap(Origin::source));
        }

        /** The fields are not checked yet. */
        private static Optional<String> source(JsonFields params) {
            Optional<String> port = params.value("remote_port")
                    .filter(JsonNode::isIntegralNumber)
                    .map(number -> ":" + number.asString());
            return params.value("remote_host")
                    .filter(JsonNode::isString)
                    .map(host -> Json.shortened(host.asString()) + port.orElse(""));
        }

        boolean isCalledOneOf(Set<String> ids) {
            return ids.contains(requestId) || ids.contains(answerId);
        }
    }

    /** @param done empty while it runs */
    record Sequence(int promptTokens, Optional<Done> done) {
        static Sequence of(int promptTokens, Optional<Finished> finished) {
            return new Sequence(promptTokens, finished.map(end -> new Done(end.usage(), end.times())));
        }
    }

    /** The engine's statistics of a sequence that has ended. */
    record Done(Usage usage, RequestTimes times) {}

    /** @param finish finish reasons, or another end, as in the access log */
    record End(int status, String finish, Optional<String> error) {}
}
