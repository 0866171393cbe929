package baton.router;

import baton.router.RequestLegs.Target;
import baton.router.body.JsonObjectText;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.Carried;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.trace.RequestTrace;
import baton.router.upstream.Instance;
import baton.router.upstream.Leg;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.buffer.Buffer;
import java.util.Optional;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One attempt to serve a request by certain instances: a decode leg, and before or beside it a prefill leg, unless the decode instance computes the prompt.
 * The package's description draws its states. An attempt that fails before the answer has begun ends, and its request makes another one of it. Confined to the
 * request's event loop; results that arrive after the attempt's end are dropped.
 */
final class HandoffAttempt {
    private static final Logger log = LoggerFactory.getLogger(HandoffAttempt.class);

    /** The legs that there are to be. */
    sealed interface Course {}

    /**
     * A prefill and a decode leg.
     *
     * @param id of the request; that of the legs is planned
     * @param share of the prompt that the prefill instance computes, where the flow can hand a part over
     * @param before the answer to the prefill leg of the last attempt
     */
    record HandOver(String id, JsonObjectText body, Target prefill, double share, Optional<Prefilled> before)
            implements Course {
        HandOver(String id, JsonObjectText body, Target prefill) {
            this(id, body, prefill, 1, Optional.empty());
        }

        HandOver with(Target other, Optional<Prefilled> last) {
            return new HandOver(id, body, other, share, last);
        }
    }

    /**
     * A decode leg alone.
     *
     * @param bytes that are copied to make its body
     */
    record DecodeOnly(long bytes, Supplier<Buffer> body) implements Course {
        DecodeOnly(JsonObjectText body) {
            this(body.length(), body::text);
        }

        DecodeOnly(Buffer body) {
            this(0, () -> body);
        }
    }

    /** The decode instance answers: no other attempt is made of this one. */
    record Answering() implements Course {}

    /** An answer to a prefill leg, used again by an attempt of which the prefill leg would be the same. */
    record Prefilled(Instance instance, HandoffFlow.Handoff handoff, double share, JsonObjectText answer) {
        boolean serves(Instance other, HandoffFlow.Handoff planned, double plannedShare) {
            return instance == other
                    && share == plannedShare
                    && handoff.requestId().equals(planned.requestId())
                    && handoff.prefillBody().equals(planned.prefillBody());
        }
    }

    /**
     * @param share of the prompt that the prefill instance computes
     * @param before the answer to the prefill leg, if there is one already
     */
    private record Planned(HandoffFlow flow, HandoffFlow.Handoff handoff, double share, Optional<Prefilled> before) {}

    private final ProxiedRequest request;
    private final HeldBody held;
    private final RequestLegs legs;
    private final RequestReport report;
    private final RouterMetrics metrics;
    private final HandoffFlow flow;
    private Course course;
    private final Target decode;
    private final Instance.RunningRequest counted;

    private String id;
    /** The prefill instance of a planned hand-over. */
    private Optional<Instance> prefill = Optional.empty();

    private Optional<Prefilled> prefilled = Optional.empty();
    private @Nullable Leg prefillLeg;
    private @Nullable Leg decodeLeg;
    /** Whether the decode leg has references to blocks, which a prefill instance gives once. */
    private boolean carries;

    private boolean over;

    /**
     * @param id {@code X-Request-Id} of a decode leg alone; that of a hand-over is planned
     * @param counted the decode instance's count of the request, from its choice on: its leg may wait for the whole prefill leg
     */
    HandoffAttempt(ProxiedRequest request, String id, Course course, Target decode, Instance.RunningRequest counted) {
        this.request = request;
        this.held = request.held();
        this.legs = request.legs();
        this.report = request.report();
        this.metrics = request.metrics();
        this.flow = request.flow();
        this.id = id;
        this.course = course;
        this.decode = decode;
        this.counted = counted;
    }

    /** Whether a prefill instance has the prompt and has not answered. */
    boolean isPrefilling() {
        return prefillLeg != null;
    }

    /** After this one: another prefill instance for the same decode instance. */
    HandoffAttempt withPrefill(Target other) {
        HandOver by = handOver();
        close();
        return new HandoffAttempt(request, id, by.with(other, Optional.empty()), decode, countedForNext());
    }

    /** After this one: the same decode instance computes the prompt. */
    HandoffAttempt withoutPrefill(String decodeId) {
        HandOver by = handOver();
        close();
        return new HandoffAttempt(request, decodeId, new DecodeOnly(by.body), decode, countedForNext());
    }

    /** After this one, which ends: the legs with another decode instance. */
    Course courseAfter(UpstreamFailure failure) {
        end();
        boolean spent = carries && (failure.kind() == Kind.LOST || failure.kind() == Kind.TIMEOUT);
        return switch (course) {
            case DecodeOnly alone -> alone;
            case HandOver by -> by.with(by.prefill, spent ? Optional.empty() : prefilled);
            case Answering _ -> throw new IllegalStateException("the decode instance answers");
        };
    }

    private HandOver handOver() {
        if (course instanceof HandOver by) {
            return by;
        }
        throw new IllegalStateException("there is no prefill leg");
    }

    private Instance.RunningRequest countedForNext() {
        return decodeLeg == null ? counted : decode.instance().begin();
    }

    /** {@code X-Request-Id} of the legs. */
    String id() {
        return id;
    }

    Target decode() {
        return decode;
    }

    /** The decode instance, if it got a leg. */
    Optional<Instance> decodeSent() {
        return decodeLeg == null ? Optional.empty() : Optional.of(decode.instance());
    }

    /** The prefill instance of a hand-over that is planned. */
    Optional<Instance> prefill() {
        return prefill;
    }

    /** Forgets the bodies, which a new attempt would need. The answer of a stream may take minutes. */
    void dropBodies() {
        course = new Answering();
        prefilled = Optional.empty();
    }

    /** Closes the legs. */
    private void close() {
        over = true;
        if (prefillLeg != null) {
            prefillLeg.abort();
        }
        if (decodeLeg != null) {
            decodeLeg.abort();
        }
    }

    /** Ends the attempt. Legs that still run are closed. */
    void end() {
        close();
        counted.run();
    }

    void start() {
        switch (course) {
            case DecodeOnly alone -> held.work(alone.bytes, alone.body::get).onComplete(this::send, this::fail);
            case HandOver by ->
                held.work(by.body.length(), () -> plan(by)).onComplete(plan -> start(by, plan), this::fail);
            case Answering _ -> throw new IllegalStateException("it has started");
        }
    }

    private void fail(Throwable cause) {
        if (!over) {
            request.rejectBody(cause);
        }
    }

    /** @throws baton.kv.ConfigException if the flow cannot serve the request */
    private Planned plan(HandOver by) {
        Instance prefill = by.prefill.instance();
        Optional<HandoffFlow> ofPart = by.share < 1 ? flow.ofPart(prefill, decode.instance()) : Optional.empty();
        HandoffFlow chosen = ofPart.orElseGet(() -> flow.flow(prefill, decode.instance()));
        HandoffFlow.Handoff handoff = chosen.begin(by.body, by.id, prefill, decode.instance());
        double share = ofPart.isPresent() ? by.share : 1;
        return new Planned(chosen, handoff, share, by.before.filter(last -> last.serves(prefill, handoff, share)));
    }

    private void start(HandOver by, Planned plan) {
        if (over) {
            return;
        }
        prefill = Optional.of(by.prefill.instance());
        id = plan.handoff.requestId();
        if (!plan.flow.equals(flow)) {
            metrics.count(RouterMetric.PAIR_FLOWS, plan.flow.name());
        }
        plan.before.ifPresentOrElse(last -> prefilled(by, plan, last.answer), () -> sendPrefill(by, plan));
        if (plan.handoff.decode() instanceof HandoffFlow.AtOnce atOnce && !over) {
            startDecode(
                    by, plan, 0, () -> new HandoffFlow.DecodeBody(atOnce.body().get(), true, true));
        }
    }

    private void sendPrefill(HandOver by, Planned plan) {
        long sent = report.now();
        prefillLeg = legs.prefill(
                by.prefill,
                id,
                plan.handoff.prefillBody(),
                plan.share,
                answer -> {
                    report.prefillEnded(sent, answer.status());
                    held.work(answer.text().length(), () -> PrefillAnswer.of(answer))
                            .onComplete(
                                    read -> prefillAnswered(by, plan, read),
                                    cause -> prefillAnswered(by, plan, new PrefillAnswer.Failed(cause.toString())));
                },
                request::prefillFailed);
    }

    private void prefillAnswered(HandOver by, Planned plan, PrefillAnswer answer) {
        prefillLeg = null;
        if (over) {
            return;
        }
        switch (answer) {
            case PrefillAnswer.Rejected(Question.Answer rejection) -> {
                if (request.hasBegun()) {
                    prefillFailed(by, "HTTP " + rejection.status() + ": " + rejection.quoted());
                } else {
                    request.prefillRejected(rejection);
                }
            }
            case PrefillAnswer.Failed(String reason) -> prefillFailed(by, reason);
            case PrefillAnswer.Prefilled(JsonObjectText text, Optional<RequestTrace.PromptTokens> prompt) -> {
                prompt.ifPresent(tokens -> {
                    report.trace().promptTokens(RequestTrace.PREFILL, tokens);
                    report.tokens().promptTokens(tokens.all());
                });
                prefilled(by, plan, text);
            }
        }
    }

    private void prefillFailed(HandOver by, String reason) {
        request.prefillFailed(new UpstreamFailure(by.prefill.instance(), Kind.ANSWER, reason));
    }

    private void prefilled(HandOver by, Planned plan, JsonObjectText answer) {
        if (!(course instanceof Answering)) {
            prefilled = Optional.of(new Prefilled(by.prefill.instance(), plan.handoff, plan.share, answer));
        }
        switch (plan.handoff.decode()) {
            case HandoffFlow.AtOnce atOnce ->
                held.work(answer.length(), () -> {
                            atOnce.prefilled().accept(answer);
                            return answer;
                        })
                        .onFailure(cause -> log.warn(
                                "{}: no connector address from {}: {}",
                                request.id(),
                                by.prefill.instance(),
                                cause.toString()));
            case HandoffFlow.AfterPrefill after ->
                startDecode(by, plan, answer.length(), () -> after.body().apply(answer));
        }
    }

    private void startDecode(HandOver by, Planned plan, int answerBytes, Supplier<HandoffFlow.DecodeBody> body) {
        held.work((long) by.body.length() + answerBytes, body::get)
                .onComplete(
                        made -> {
                            if (over) {
                                return;
                            }
                            if (!request.hasBegun() && legs.decodes().isEmpty()) {
                                metrics.count(RouterMetric.HANDOFFS, made.carries() ? Carried.CARRIED : Carried.NONE);
                            }
                            carries = made.carries();
                            if (!made.isRendered()) {
                                report.tokens().compare();
                            }
                            send(
                                    plan.flow.equals(flow)
                                            ? decode
                                            : new Target(
                                                    decode.instance(),
                                                    decode.why() + "; the two hand over by " + plan.flow.name()),
                                    made.text());
                        },
                        cause -> {
                            if (!over) {
                                request.answerError(
                                        502, by.prefill.instance() + ": " + cause.getMessage(), Outcome.PREFILL_FAILED);
                            }
                        });
    }

    private void send(Buffer body) {
        if (!over) {
            send(decode, body);
        }
    }

    private void send(Target to, Buffer body) {
        Instance instance = decode.instance();
        if ((!instance.isUp() || instance.isLeaving()) && !request.hasBegun() && request.hasOtherDecode()) {
            request.failedBeforeFirstByte(
                    new UpstreamFailure(instance, Kind.REFUSED, "it leaves or is down before the prompt is computed"));
            return;
        }
        decodeLeg = legs.decode(
                to,
                id,
                counted,
                body,
                new DecodeRelay(request),
                request.continuation().map(StreamContinuation::position));
    }
}
