package baton.router;

import baton.kv.Ticker;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.trace.RequestTrace;
import baton.router.trace.RequestTraces;
import io.micrometer.core.instrument.Timer;
import java.util.Locale;
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
    private final RequestTrace trace;
    private final long started;
    private long prefillMillis = -1;
    private long firstByteMillis = -1;
    private long bytes;

    /**
     * What the line names.
     *
     * @param handoffId the legs' id, {@code -} if it is the request's
     * @param prefill address, {@code local:} and a reason, or {@code -}
     * @param decode address or {@code -}
     */
    record Line(String requestId, String handoffId, String path, int status, String prefill, String decode) {}

    /** @param client the name of its key; empty where clients need none */
    RequestReport(RouterContext context, String id, String path, String traceId, Optional<String> client) {
        this.metrics = context.metrics();
        this.ticker = context.ticker();
        this.logged = context.logged();
        this.traces = context.traces();
        this.trace = new RequestTrace(id, traceId, path, client, ticker);
        traces.started(trace);
        this.started = ticker.nanos();
    }

    /** What happens to the request, for its explanation. */
    RequestTrace trace() {
        return trace;
    }

    /** The time now, for the methods with a parameter {@code sent}. */
    long now() {
        return ticker.nanos();
    }

    void prefillEnded(long sent) {
        prefillMillis = record(metrics.prefill, sent);
        trace.prefillEnded();
    }

    void firstByte(long sent) {
        record(metrics.decodeFirstByte, sent);
        firstByteMillis = record(metrics.firstByte, started);
        trace.firstByte();
    }

    /** Whether the answer's head has gone to the client. */
    boolean hasFirstByte() {
        return firstByteMillis >= 0;
    }

    void decodeEnded(long sent) {
        record(metrics.decode, sent);
        trace.decodeEnded();
    }

    /** Counts bytes of the answer. */
    void sent(int count) {
        bytes += count;
        if (count > 0) {
            trace.sent(count);
        }
    }

    /** Bytes of the answer so far. */
    long bytes() {
        return bytes;
    }

    void ended(Outcome outcome, Line line) {
        metrics.ended(outcome);
        trace.ended(outcome.name().toLowerCase(Locale.ROOT), line.status);
        traces.ended(trace);
        long totalMillis = record(metrics.request, started);
        if (logged && log.isInfoEnabled()) {
            log.info(
                    "request={} handoff={} path={} outcome={} status={} prefill={} prefill_ms={} decode={} first_byte_ms={} total_ms={} bytes={}",
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
                    bytes);
        }
    }

    private long record(Timer timer, long since) {
        long nanos = ticker.nanos() - since;
        timer.record(nanos, TimeUnit.NANOSECONDS);
        return TimeUnit.NANOSECONDS.toMillis(nanos);
    }
}
