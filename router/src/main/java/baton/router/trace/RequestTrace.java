package baton.router.trace;

import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/** What happens to one request, step by step. One event loop adds steps, any thread reads. */
public final class RequestTrace {
    /** Steps that are kept: retries are bounded by the number of instances, which may be large. */
    private static final int MOST_STEPS = 64;

    private final String id;
    private final String traceId;
    private final String path;
    private final Optional<String> client;
    private final Ticker ticker;
    private final long started;

    @GuardedBy("this")
    private final List<Step> steps = new ArrayList<>();

    @GuardedBy("this")
    private Optional<LegTrace> prefill = Optional.empty();

    @GuardedBy("this")
    private Optional<LegTrace> decode = Optional.empty();

    @GuardedBy("this")
    private Optional<String> localPrefill = Optional.empty();

    @GuardedBy("this")
    private Optional<Outcome> outcome = Optional.empty();

    @GuardedBy("this")
    private long firstByte = -1;

    @GuardedBy("this")
    private long lastWrite = -1;

    @GuardedBy("this")
    private long longestGap;

    @GuardedBy("this")
    private long writes;

    @GuardedBy("this")
    private long bytes;

    /**
     * @param nanos since the request
     * @param what happened, in a few words
     */
    public record Step(long nanos, String what) {}

    /**
     * The last leg of a role.
     *
     * @param sent nanoseconds since the request
     * @param ended likewise; empty while it runs, or if it was given up
     */
    public record LegTrace(String instance, String why, long sent, OptionalLong ended) {}

    /** @param nanos since the request */
    public record Outcome(String name, int status, long nanos) {}

    /**
     * All of it at one time; times in nanoseconds since the request.
     *
     * @param age now
     * @param localPrefill why decode computed the prompt
     * @param firstByte of the answer to the client
     * @param writes pieces of the answer, for server-sent events one for each event
     * @param meanGap between two pieces; empty with fewer than two
     */
    public record Snapshot(
            String id,
            String traceId,
            String path,
            long age,
            List<Step> steps,
            Optional<LegTrace> prefill,
            Optional<LegTrace> decode,
            Optional<String> localPrefill,
            OptionalLong firstByte,
            long writes,
            OptionalLong meanGap,
            long longestGap,
            long bytes,
            Optional<Outcome> outcome) {}

    /**
     * @param traceId of the distributed trace, see {@link TraceContext}
     * @param client the name of its key; empty where clients need none
     */
    public RequestTrace(String id, String traceId, String path, Optional<String> client, Ticker ticker) {
        this.id = id;
        this.traceId = traceId;
        this.path = path;
        this.client = client;
        this.ticker = ticker;
        this.started = ticker.nanos();
    }

    public String id() {
        return id;
    }

    /** The name of the client's key; empty where clients need none. */
    public Optional<String> client() {
        return client;
    }

    private long now() {
        return ticker.nanos() - started;
    }

    /** Adds a step, in a few words. */
    public synchronized void step(String what) {
        if (steps.size() < MOST_STEPS) {
            steps.add(new Step(now(), what));
        }
    }

    /** A prefill leg is sent. */
    public synchronized void prefillSent(String instance, String why) {
        prefill = Optional.of(new LegTrace(instance, why, now(), OptionalLong.empty()));
        step("prefill sent to " + instance + ": " + why);
    }

    public synchronized void prefillEnded() {
        prefill = prefill.map(RequestTrace.this::ended);
        step("prefill answered");
    }

    /** A decode leg is sent. */
    public synchronized void decodeSent(String instance, String why) {
        decode = Optional.of(new LegTrace(instance, why, now(), OptionalLong.empty()));
        step("decode sent to " + instance + ": " + why);
    }

    private LegTrace ended(LegTrace leg) {
        return new LegTrace(leg.instance, leg.why, leg.sent, OptionalLong.of(now()));
    }

    /** The decode instance computes the prompt. */
    public synchronized void prefilledLocally(String reason) {
        localPrefill = Optional.of(reason);
        prefill = Optional.empty();
        step("no prefill leg: " + reason);
    }

    /** The first byte of the answer goes to the client. */
    public synchronized void firstByte() {
        firstByte = now();
        step("first byte");
    }

    /** A piece of the answer goes to the client. */
    public synchronized void sent(int count) {
        long now = now();
        if (lastWrite >= 0) {
            longestGap = Math.max(longestGap, now - lastWrite);
        }
        lastWrite = now;
        writes++;
        bytes += count;
    }

    public synchronized void decodeEnded() {
        decode = decode.map(RequestTrace.this::ended);
    }

    public synchronized void ended(String name, int status) {
        outcome = Optional.of(new Outcome(name, status, now()));
        step("ended: " + name);
    }

    public synchronized Snapshot snapshot() {
        return new Snapshot(
                id,
                traceId,
                path,
                now(),
                List.copyOf(steps),
                prefill,
                decode,
                localPrefill,
                firstByte < 0 ? OptionalLong.empty() : OptionalLong.of(firstByte),
                writes,
                writes < 2 ? OptionalLong.empty() : OptionalLong.of((lastWrite - firstByte) / (writes - 1)),
                longestGap,
                bytes,
                outcome);
    }
}
