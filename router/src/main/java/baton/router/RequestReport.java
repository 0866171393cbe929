package baton.router;

import baton.kv.Ticker;
import baton.router.access.ClientPass;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.metrics.RouterMetrics.PrefillWay;
import baton.router.policy.LatencyMeasurement;
import baton.router.trace.RequestTrace;
import baton.router.trace.RequestTraces;
import baton.router.trace.RoutingSpans;
import baton.router.upstream.Instance;
import baton.trace.OtlpExporter;
import baton.trace.TraceContext;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Times and bytes of one request, for the metrics and its line in the log. Confined to the request's event loop. */
final class RequestReport {
    private static final Logger log = LoggerFactory.getLogger(ProxiedRequest.class);

    private final RouterMetrics metrics;
    private final Ticker ticker;
    private final boolean logged;
    private final RequestTraces traces;
    private final Optional<OtlpExporter> spans;
    private final TraceContext context;
    private final RequestTrace trace;
    private final long started;
    private long prefillMillis = -1;
    private long firstByteMillis = -1;
    private long bytes;
    /** Where a completion's prompt is computed. */
    private Optional<PrefillWay> way = Optional.empty();

    private long lastEvent;

    private LatencyMeasurement measurement = LatencyMeasurement.NONE;
    private final TokenCount tokens;

    /**
     * What the line names.
     *
     * @param handoffId the legs' id, {@code -} if it is the request's
     * @param prefill address, {@code local:} and a reason, or {@code -}
     * @param decode address or {@code -}
     */
    record Line(String requestId, String handoffId, String path, int status, String prefill, String decode) {}

    /** @param pass of its key */
    RequestReport(
            RouterContext.Reporting to, String id, TraceContext context, String method, String path, ClientPass pass) {
        this.tokens = new TokenCount(pass.countsTokens());
        this.metrics = to.metrics();
        this.ticker = to.ticker();
        this.logged = to.logged();
        this.traces = to.traces();
        this.spans = to.spans();
        this.context = context;
        this.trace = new RequestTrace(
                id,
                context,
                method,
                path,
                pass.client(),
                ticker,
                spans.map(OtlpExporter::epochNanos).orElse(0L));
        traces.started(trace);
        this.started = ticker.nanos();
    }

    /**
     * A prefill leg is sent.
     *
     * @return its {@code traceparent}
     */
    String prefillSent(Instance instance, String why) {
        way = Optional.of(PrefillWay.REMOTE);
        return trace.sent(RequestTrace.PREFILL, instance.url(), why);
    }

    /**
     * The decode instance computes the prompt.
     *
     * @param forecast why that is better, in numbers; empty without goals
     */
    void prefilledLocally(LocalPrefillReason reason, String forecast) {
        way = Optional.of(PrefillWay.LOCAL);
        metrics.count(RouterMetric.LOCAL_PREFILLS, reason);
        trace.prefilledLocally(forecast.isEmpty() ? reason.words() : reason.words() + ": " + forecast);
    }

    /** Times are told to this from now on, and not to the one before. */
    void measure(LatencyMeasurement by) {
        measurement.ended();
        measurement = by;
    }

    /** What happens to the request, for its explanation. */
    RequestTrace trace() {
        return trace;
    }

    /** The time now, for the methods with a parameter {@code sent}. */
    long now() {
        return ticker.nanos();
    }

    void prefillEnded(long sent, int status) {
        prefillMillis = record(RouterMetric.PREFILL, sent);
        trace.answered(RequestTrace.PREFILL, status);
    }

    /** @param streamed whether it is that of the first event of a stream */
    void firstByte(long sent, boolean streamed) {
        record(RouterMetric.DECODE_FIRST_BYTE, sent);
        firstByteMillis = record(RouterMetric.FIRST_BYTE, started);
        way.ifPresent(by -> metrics.time(RouterMetric.TIME_TO_FIRST_TOKEN, ticker.nanos() - started, by));
        trace.firstByte();
        if (streamed) {
            measurement.firstToken(ticker.nanos() - started);
        }
    }

    /** Whether the answer's head has gone to the client. */
    boolean hasFirstByte() {
        return firstByteMillis >= 0;
    }

    void decodeEnded(long sent, int status) {
        record(RouterMetric.DECODE, sent);
        trace.answered(RequestTrace.DECODE, status);
    }

    /** How many tokens the request takes. */
    TokenCount tokens() {
        return tokens;
    }

    /** Counts bytes of the answer. */
    void sent(int count) {
        bytes += count;
        if (count > 0) {
            trace.sent(count);
        }
    }

    /** As {@link #sent}, of a stream's events. */
    void sentEvents(int count) {
        long now = ticker.nanos();
        if (lastEvent != 0) {
            long gap = now - lastEvent;
            way.ifPresent(by -> metrics.time(RouterMetric.INTER_TOKEN_LATENCY, gap, by));
            measurement.gap(gap);
        }
        lastEvent = now;
        sent(count);
    }

    /** Bytes of the answer so far. */
    long bytes() {
        return bytes;
    }

    void ended(Outcome outcome, Line line) {
        metrics.count(RouterMetric.REQUESTS, outcome);
        measurement.ended();
        tokens.otherPrompt().ifPresent(other -> {
            metrics.count(RouterMetric.PROMPTS_DIFFER);
            log.warn(
                    "{}: the prompt has {} tokens at {}, and {} at {}: the two do not render or tokenize alike",
                    line.requestId,
                    tokens.promptTokens().orElse(0),
                    line.prefill,
                    other,
                    line.decode);
        });
        trace.ended(outcome.label(), line.status);
        traces.ended(trace);
        if (context.sampled()) {
            spans.ifPresent(exporter ->
                    RoutingSpans.of(trace.snapshot(), line.handoffId).forEach(exporter::export));
        }
        long totalMillis = record(RouterMetric.REQUEST, started);
        if (logged && log.isInfoEnabled()) {
            log.info(
                    "request={} handoff={} path={} outcome={} status={} prefill={} prefill_ms={} decode={} first_byte_ms={} total_ms={} bytes={} trace={}",
                    line.requestId,
                    line.handoffId,
                    line.path,
                    outcome,
                    line.status,
                    line.prefill,
                    prefillMillis < 0 ? "-" : prefillMillis,
                    line.decode,
                    firstByteMillis < 0 ? "-" : firstByteMillis,
                    totalMillis,
                    bytes,
                    context.traceId());
        }
    }

    private long record(RouterMetric metric, long since) {
        long nanos = ticker.nanos() - since;
        metrics.time(metric, nanos);
        return TimeUnit.NANOSECONDS.toMillis(nanos);
    }
}
