package baton.router.trace;

import baton.kv.GeneratedBuilder;
import baton.kv.Ticker;
import baton.trace.TraceContext;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.function.UnaryOperator;

/** The trace of one request, step by step. One event loop adds steps, any thread reads. */
public final class RequestTrace {
    /** Steps that are kept: retries are bounded by the number of instances, which may be large. */
    private static final int MOST_STEPS = 64;

    private static final int MOST_LEGS = 32;

    /** Role of the leg that computes the prompt. */
    public static final String PREFILL = "prefill";

    /** Role of the leg that the answer comes from. */
    public static final String DECODE = "decode";

    private final Head head;
    private final Ticker ticker;
    private final long started;

    @GuardedBy("this")
    private final List<Step> steps = new ArrayList<>();

    @GuardedBy("this")
    private final List<LegTrace> legs = new ArrayList<>();

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
     * The request before anything has happened to it.
     *
     * @param context the distributed trace that it belongs to
     * @param spanId of the request's span in that
     * @param client the name of its key; empty where clients need none
     * @param startedEpochNanos when it came, in nanoseconds since 1970, UTC; 0 if that is not recorded
     */
    public record Head(
            String id,
            TraceContext context,
            String spanId,
            String method,
            String path,
            Optional<String> client,
            long startedEpochNanos) {}

    /**
     * A request to an instance.
     *
     * @param role {@link #PREFILL} or {@link #DECODE}
     * @param spanId of its span in the distributed trace
     * @param sent nanoseconds since the request
     * @param ended likewise; empty while it runs, or if it was given up
     * @param status HTTP status of its answer
     * @param failure the error
     * @param prompt the answer's figures of the prompt
     */
    @GeneratedBuilder
    public record LegTrace(
            String role,
            String spanId,
            String instance,
            String why,
            long sent,
            OptionalLong ended,
            OptionalInt status,
            Optional<String> failure,
            Optional<PromptTokens> prompt)
            implements RequestTraceLegTraceBuilder.With {}

    /**
     * @param all tokens of a prompt
     * @param cached those of them that the instance did not compute for this request
     */
    public record PromptTokens(int all, int cached) {}

    /** @param nanos since the request */
    public record Outcome(String name, int status, long nanos) {}

    /**
     * The answer to the client.
     *
     * @param firstByte nanoseconds since the request
     * @param writes pieces, for server-sent events one for each event
     * @param meanGap between two pieces; empty with fewer than two
     */
    public record Answer(OptionalLong firstByte, long writes, OptionalLong meanGap, long longestGap, long bytes) {}

    /**
     * All of it at one time; times in nanoseconds since the request.
     *
     * @param age now
     * @param legs in the order in which they were sent
     * @param localPrefill why decode computed the prompt
     */
    public record Snapshot(
            Head head,
            long age,
            List<Step> steps,
            List<LegTrace> legs,
            Optional<String> localPrefill,
            Answer answer,
            Optional<Outcome> outcome) {
        /** The last prefill leg, unless the decode instance computed the prompt. */
        public Optional<LegTrace> prefill() {
            return localPrefill.isPresent() ? Optional.empty() : last(PREFILL);
        }

        /** The last decode leg. */
        public Optional<LegTrace> decode() {
            return last(DECODE);
        }

        /** The last leg of a role. */
        public Optional<LegTrace> last(String role) {
            return legs.stream().filter(leg -> leg.role.equals(role)).reduce((_, last) -> last);
        }
    }

    public RequestTrace(Head head, Ticker ticker) {
        this.head = head;
        this.ticker = ticker;
        this.started = ticker.nanos();
    }

    public String id() {
        return head.id;
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

    /**
     * A leg is sent. One of the same role that has not ended is given up.
     *
     * @param role {@link #PREFILL} or {@link #DECODE}
     * @return the {@code traceparent} to send
     */
    public synchronized String sent(String role, String instance, String why) {
        // A request that is not recorded here is no span: the instance's spans belong to the caller's.
        TraceContext context = head.context;
        boolean recorded = context.sampled() && head.startedEpochNanos != 0;
        String leg = recorded ? TraceContext.newSpanId() : context.parentId().orElseGet(TraceContext::newSpanId);
        if (legs.size() < MOST_LEGS) {
            legs.add(new LegTrace(
                    role,
                    leg,
                    instance,
                    why,
                    now(),
                    OptionalLong.empty(),
                    OptionalInt.empty(),
                    Optional.empty(),
                    Optional.empty()));
        }
        if (role.equals(PREFILL)) {
            localPrefill = Optional.empty();
        }
        step(role + " sent to " + instance + ": " + why);
        return context.traceparent(leg);
    }

    /** The last leg of a role has its whole answer. */
    public synchronized void answered(String role, int status) {
        change(role, leg -> leg.withEnded(OptionalLong.of(now())).withStatus(OptionalInt.of(status)));
        if (role.equals(PREFILL)) {
            step("prefill answered");
        }
    }

    /** The answer of the last leg of a role says how many tokens the prompt has. */
    public synchronized void promptTokens(String role, PromptTokens tokens) {
        change(role, leg -> leg.withPrompt(Optional.of(tokens)));
    }

    /** The last leg of a role that was sent to an instance has failed. */
    public synchronized void failed(String role, String instance, String what) {
        for (int i = legs.size() - 1; i >= 0; i--) {
            LegTrace leg = legs.get(i);
            if (leg.role.equals(role) && leg.instance.equals(instance)) {
                legs.set(
                        i,
                        leg.withEnded(OptionalLong.of(leg.ended.orElse(now()))).withFailure(Optional.of(what)));
                return;
            }
        }
    }

    @GuardedBy("this")
    private void change(String role, UnaryOperator<LegTrace> change) {
        for (int i = legs.size() - 1; i >= 0; i--) {
            if (legs.get(i).role.equals(role)) {
                legs.set(i, change.apply(legs.get(i)));
                return;
            }
        }
    }

    /** The decode instance computes the prompt. */
    public synchronized void prefilledLocally(String reason) {
        localPrefill = Optional.of(reason);
        step("no prefill leg: " + reason);
    }

    /** The first byte of the answer goes to the client. */
    public synchronized void firstByte() {
        firstByte = now();
        step("first byte");
    }

    /**
     * A part of the answer goes to the client.
     *
     * @param pieces as {@link Answer} counts them
     */
    public synchronized void sent(int count, int pieces) {
        long now = now();
        if (lastWrite >= 0) {
            longestGap = Math.max(longestGap, now - lastWrite);
        }
        lastWrite = now;
        writes += pieces;
        bytes += count;
    }

    public synchronized void ended(String name, int status) {
        outcome = Optional.of(new Outcome(name, status, now()));
        step("ended: " + name);
    }

    public synchronized Snapshot snapshot() {
        return new Snapshot(
                head,
                now(),
                List.copyOf(steps),
                List.copyOf(legs),
                localPrefill,
                new Answer(
                        firstByte < 0 ? OptionalLong.empty() : OptionalLong.of(firstByte),
                        writes,
                        writes < 2 ? OptionalLong.empty() : OptionalLong.of((lastWrite - firstByte) / (writes - 1)),
                        longestGap,
                        bytes),
                outcome);
    }
}
