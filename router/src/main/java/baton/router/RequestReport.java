package baton.router;

import baton.kv.Ticker;
import baton.router.access.ClientPass;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.metrics.RouterMetrics.PrefillWay;
import baton.router.policy.LatencyMeasurement;
import baton.router.role.GoalCounts;
import baton.router.trace.RequestTrace;
import baton.router.trace.RequestTrace.LegTrace;
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

    private final RouterContext.Reporting to;
    private final RouterMetrics metrics;
    private final Ticker ticker;
    private final RequestTrace trace;
    private final long started;
    private boolean firstByte;
    /** Where a completion's prompt is computed. */
    private Optional<PrefillWay> way = Optional.empty();

    private long lastEvent;
    /** The time in prefill legs. */
    private long prefillNanos;

    private Optional<LocalPrefillReason> local = Optional.empty();
    private LatencyMeasurement measurement = LatencyMeasurement.NONE;
    private final TokenCount tokens;

    /** @param pass of its key */
    RequestReport(
            RouterContext.Reporting to, String id, TraceContext context, String method, String path, ClientPass pass) {
        this.to = to;
        this.tokens = new TokenCount(pass.countsTokens());
        this.metrics = to.metrics();
        this.ticker = to.ticker();
        long epochNanos = to.spans().map(OtlpExporter::epochNanos).orElse(0L);
        this.trace = new RequestTrace(
                new RequestTrace.Head(id, context, TraceContext.newSpanId(), method, path, pass.client(), epochNanos),
                ticker);
        to.traces().started(trace);
        this.started = ticker.nanos();
    }

    /**
     * A prefill leg is sent.
     *
     * @return its {@code traceparent}
     */
    String prefillSent(Instance instance, String why) {
        way = Optional.of(PrefillWay.REMOTE);
        local = Optional.empty();
        return trace.sent(RequestTrace.PREFILL, instance.url(), why);
    }

    /**
     * The decode instance computes the prompt.
     *
     * @param forecast why that is better, in numbers; empty without goals
     */
    void prefilledLocally(LocalPrefillReason reason, String forecast) {
        way = Optional.of(PrefillWay.LOCAL);
        local = Optional.of(reason);
        measure(LatencyMeasurement.NONE);
        metrics.count(RouterMetric.LOCAL_PREFILLS, reason);
        trace.prefilledLocally(forecast.isEmpty() ? reason.words() : reason.words() + ": " + forecast);
    }

    /** Times are reported to this from now on, and no longer to the one before. */
    void measure(LatencyMeasurement by) {
        measurement.ended();
        measurement = by;
    }

    /** Why the decode instance computes the prompt; empty if it does not. */
    Optional<LocalPrefillReason> localPrefill() {
        return local;
    }

    /** The events of the request, for its explanation. */
    RequestTrace trace() {
        return trace;
    }

    /** The time now, for the methods with a parameter {@code sent}. */
    long now() {
        return ticker.nanos();
    }

    void prefillEnded(long sent, int status) {
        record(RouterMetric.PREFILL, sent);
        prefillNanos += ticker.nanos() - sent;
        to.goals().ifPresent(GoalCounts::prefillEnded);
        trace.answered(RequestTrace.PREFILL, status);
    }

    /** @param streamed whether it is that of the first event of a stream */
    void firstByte(long sent, boolean streamed) {
        record(RouterMetric.DECODE_FIRST_BYTE, sent);
        record(RouterMetric.FIRST_BYTE, started);
        firstByte = true;
        way.ifPresent(by -> metrics.time(RouterMetric.TIME_TO_FIRST_TOKEN, ticker.nanos() - started, by));
        trace.firstByte();
        if (streamed) {
            long waited = ticker.nanos() - started;
            measurement.firstToken(waited);
            to.goals().ifPresent(counts -> counts.firstToken(waited, prefillNanos));
        }
    }

    /** Whether the answer's head has gone to the client. */
    boolean hasFirstByte() {
        return firstByte;
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
        if (count > 0) {
            trace.sent(count, 1);
        }
    }

    /** As {@link #sent}, of a stream's events, which go to the client together. */
    void sentEvents(int bytes, int events) {
        long now = ticker.nanos();
        if (lastEvent != 0) {
            gap(now - lastEvent);
        }
        for (int i = 1; i < events; i++) {
            gap(0);
        }
        lastEvent = now;
        trace.sent(bytes, events);
    }

    private void gap(long nanos) {
        way.ifPresent(by -> metrics.time(RouterMetric.INTER_TOKEN_LATENCY, nanos, by));
        measurement.gap(nanos);
        to.goals().ifPresent(counts -> counts.gap(nanos));
    }

    /** @param handoffId the legs' id, {@code -} if it is the request's */
    void ended(Outcome outcome, String handoffId, int status) {
        metrics.count(RouterMetric.REQUESTS, outcome);
        measurement.ended();
        trace.ended(outcome.label(), status);
        RequestTrace.Snapshot ended = to.traces().ended(trace);
        Optional<LegTrace> prefill = ended.last(RequestTrace.PREFILL);
        String prefilledAt = local.map(reason -> "local:" + reason.label())
                .or(() -> prefill.map(LegTrace::instance))
                .orElse("-");
        String decodedAt = ended.decode().map(LegTrace::instance).orElse("-");
        RequestTrace.Head head = ended.head();
        tokens.otherPrompt().ifPresent(other -> {
            metrics.count(RouterMetric.PROMPTS_DIFFER);
            log.warn(
                    "{}: the prompt has {} tokens at {}, and {} at {}: the two do not render or tokenize alike",
                    head.id(),
                    tokens.promptTokens().orElse(0),
                    prefilledAt,
                    other,
                    decodedAt);
        });
        if (head.context().sampled()) {
            to.spans().ifPresent(exporter -> RoutingSpans.of(ended, handoffId).forEach(exporter::export));
        }
        record(RouterMetric.REQUEST, started);
        if (to.logged() && log.isInfoEnabled()) {
            log.info(
                    "request={} handoff={} path={} outcome={} status={} prefill={} prefill_ms={} decode={} first_byte_ms={} total_ms={} bytes={} trace={}",
                    head.id(),
                    handoffId,
                    head.path(),
                    outcome,
                    status,
                    prefilledAt,
                    prefill.filter(leg -> leg.status().isPresent())
                            .map(leg -> millis(leg.ended().orElse(0) - leg.sent()))
                            .orElse("-"),
                    decodedAt,
                    ended.answer().firstByte().isPresent()
                            ? millis(ended.answer().firstByte().getAsLong())
                            : "-",
                    millis(ended.outcome().map(RequestTrace.Outcome::nanos).orElse(0L)),
                    ended.answer().bytes(),
                    head.context().traceId());
        }
    }

    private static String millis(long nanos) {
        return Long.toString(TimeUnit.NANOSECONDS.toMillis(nanos));
    }

    private void record(RouterMetric metric, long since) {
        metrics.time(metric, ticker.nanos() - since);
    }
}
