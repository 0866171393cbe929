package baton.router;

import baton.kv.ConfigException;
import baton.router.access.ClientPass;
import baton.router.body.JsonObjectText;
import baton.router.body.Prompts;
import baton.router.body.ReceivedBody;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.policy.Choice;
import baton.router.policy.Forecast;
import baton.router.policy.Measurement;
import baton.router.policy.Placement;
import baton.router.policy.RoutingRequest;
import baton.router.trace.RequestTrace;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Leg;
import baton.router.upstream.UpstreamClient;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import baton.trace.TraceContext;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerRequest;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One client's request and the legs that serve it, from the complete request body to the last byte of the answer.
 *
 * <h2>Course</h2>
 * The policy chooses a prefill and a decode instance for a completion, the {@link HandoffFlow} plans both legs. The prefill leg runs
 * under one deadline and its answer is read as a whole ({@link PrefillAnswer}). The decode leg's answer is relayed as it arrives
 * ({@link DecodeRelay}). Other requests are a decode leg alone.
 *
 * <h2>Failure and retry</h2>
 * The client gets nothing before the first byte (for server-sent events: the first whole event) of the decode leg's answer. Until then
 * a failed leg is sent to another instance: prefill once, decode as long as there are untried instances, if the instance refused or
 * dropped the connection or answered 503. After that there is no retry, as the client would get tokens twice: the answer ends with an
 * error event or is broken off. A 4xx of prefill becomes the client's answer. When the client disconnects, both legs are closed at
 * once. If configured so, a prompt that no prefill instance computes is left to the decode instance.
 *
 * <h2>Concurrency</h2>
 * Confined to the event loop of the client's connection; the {@link BodyWorker} reads and builds large bodies beside it. Results
 * that arrive after {@link #end}, or after a newer attempt has begun, are dropped.
 */
final class ProxiedRequest implements DecodeRelay.Request {
    private static final Logger log = LoggerFactory.getLogger(ProxiedRequest.class);

    private final RouterContext context;
    private final UpstreamClient upstream;
    private final HttpServerRequest request;
    private final Answer client;
    private final RequestReport report;
    private final ClientPass pass;
    private final HeldBody held;

    private final String givenId;
    private final MultiMap headers;

    private final List<Instance> triedPrefills = new ArrayList<>(2);
    private final List<Instance> triedDecodes = new ArrayList<>(2);
    private String requestId;
    private RoutingRequest routing = RoutingRequest.NONE;
    private String whyPrefill = "";
    private String whyDecode = "it was its turn";
    private @Nullable Plan plan;
    private @Nullable LocalPrefillReason localPrefill;
    private @Nullable Instance decode;
    private @Nullable Leg prefillLeg;
    private @Nullable Leg decodeLeg;
    /** Number of the current attempt; callbacks of earlier ones are ignored. */
    private int attempts;

    private boolean prefillRetried;
    /** Whether the last decode leg had the prefill answer's references, and may have used them up: a prefill instance gives them once. */
    private boolean spent;

    private boolean decodeCarries;
    /** Ends the count of this request at the decode instance that is chosen and has no leg yet. */
    private Instance.@Nullable RunningRequest reserved;

    private boolean ended;
    /** If its prompts are served by themselves. */
    private @Nullable BatchedRequest batch;

    /** A completion's body as the instances get it, and its fields. */
    private record Completion(Buffer body, JsonObjectText parsed, RoutingRequest routing) {}

    /** A hand-off between two instances, and the prefill leg's answer. */
    private record Plan(
            Completion completion, Instance prefill, HandoffFlow.Handoff handoff, Future<JsonObjectText> prefilled) {}

    /** @param repeatsPrefill whether the prefill leg is the same as in the last plan */
    private record Planned(HandoffFlow flow, HandoffFlow.Handoff handoff, boolean repeatsPrefill) {}

    /**
     * The request of a client.
     *
     * @param request its head
     * @param id its id
     */
    record Client(HttpServerRequest request, Answer answer, ClientPass pass, String id) {}

    private ProxiedRequest(RouterContext context, UpstreamClient upstream, Client from, int held) {
        this.context = context;
        this.pass = from.pass;
        this.upstream = upstream;
        this.request = from.request;
        this.client = from.answer;
        this.held = new HeldBody(context, held);
        this.givenId = from.id;
        TraceContext trace = TraceContext.of(
                request.headers().getAll(Headers.TRACEPARENT), context.spans().isPresent());
        this.report =
                new RequestReport(context, givenId, trace, request.method().name(), request.path(), pass);
        this.requestId = givenId;
        this.headers = Headers.toInstance(
                request.headers(), context.config().apiKey(), context.gate().isPresent());
        if (trace.parentId().isEmpty()) {
            headers.remove(Headers.TRACESTATE);
        }
        client.whenLeft(this::clientLeft);
    }

    /** Serves a completion by a prefill and a decode leg. The request is counted as running; its end counts it off. */
    static void handOff(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            ClientPass pass,
            ReceivedBody body) {
        new ProxiedRequest(context, upstream, client(context, request, pass), body.length()).startHandoff(body);
    }

    /** Passes a request to a decode instance as it is. Counted as with {@link #handOff}. */
    static void proxy(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            ClientPass pass,
            ReceivedBody body) {
        new ProxiedRequest(context, upstream, client(context, request, pass), body.length()).startProxy(body);
    }

    private static Client client(RouterContext context, HttpServerRequest request, ClientPass pass) {
        return new Client(
                request,
                Answer.to(request.response()),
                pass,
                Headers.requestId(request.headers(), context.config().trustClientKvParams()));
    }

    /** Serves one prompt of a request. */
    private void startPart(JsonObjectText body) {
        learnTokens(completion(body.text(), body));
    }

    private void startProxy(ReceivedBody body) {
        held.work(body.length(), () -> readProxied(body)).onComplete(this::proxy, this::rejectBody);
    }

    private void proxy(Buffer body) {
        if (!ended) {
            InstanceSet decodes = context.instances().decodes();
            decodes.next(List.of()).ifPresentOrElse(instance -> sendDecode(instance, body), () -> noInstance(decodes));
        }
    }

    private void startHandoff(ReceivedBody body) {
        held.work(body.length(), () -> read(body)).onComplete(this::splitOrGoOn, this::rejectBody);
    }

    /** @throws ConfigException if the body is not a JSON object, or names addresses */
    private Completion read(ReceivedBody received) {
        Buffer body = received.join();
        JsonObjectText parsed = JsonObjectText.parse("body", body.getBytes());
        refuseAddresses(parsed);
        return completion(body, parsed);
    }

    private void refuseAddresses(JsonObjectText parsed) {
        try {
            AddressFields.refuse(parsed, context.config());
        } catch (ConfigException e) {
            context.metrics().addressesRefused.increment();
            throw e;
        }
    }

    /** @throws ConfigException if the body is not a JSON object, or names addresses; instances read prompts of both kinds here too */
    private Buffer readProxied(ReceivedBody received) {
        Buffer body = received.join();
        if (request.method().equals(HttpMethod.POST)) {
            refuseAddresses(JsonObjectText.parse("body", body.getBytes()));
        }
        return body;
    }

    private Completion completion(Buffer body, JsonObjectText parsed) {
        Optional<String> session = Optional.ofNullable(request.getHeader(RoutingRequest.SESSION_HEADER));
        return new Completion(
                body,
                parsed,
                RoutingRequest.of(parsed, session, context.policy().needsPrefix()));
    }

    /** Serves each of several prompts by itself if a hand-over is of one. */
    private void splitOrGoOn(Completion completion) {
        try {
            List<byte[]> prompts =
                    ended || !context.flow().handsOverOne() ? List.of() : Prompts.split(completion.parsed);
            if (prompts.isEmpty()) {
                learnTokens(completion);
                return;
            }
            report.trace().step("its " + prompts.size() + " prompts are served by themselves");
            batch = BatchedRequest.start(completion.parsed, prompts, client, new BatchedRequest.Parent() {
                @Override
                public void serve(Answer answer, int number, JsonObjectText body) {
                    context.running().incrementAndGet();
                    new ProxiedRequest(
                                    context,
                                    upstream,
                                    new Client(request, answer, pass.ofPart(), givenId + "-" + number),
                                    0)
                            .startPart(body);
                }

                @Override
                public void sent(int bytes) {
                    report.sent(bytes);
                }

                @Override
                public void addHeaders() {
                    client.headers().set(Headers.REQUEST_ID, givenId);
                }

                @Override
                public void ending(boolean failed) {
                    end(failed ? Outcome.DECODE_FAILED : Outcome.OK);
                }
            });
        } catch (ConfigException e) {
            rejectBody(e);
        }
    }

    /** Learns the tokens of the prompt, if the policy looks at them, and goes on. */
    private void learnTokens(Completion completion) {
        if (ended || context.tokens().isEmpty()) {
            place(completion);
            return;
        }
        int maxBytes = context.config().limits().maxBodyBytes();
        held.reading(context.tokens().get().of(upstream, completion.parsed, headers, maxBytes, context.worker()))
                .onComplete(
                        tokens -> place(new Completion(
                                completion.body, completion.parsed, completion.routing.withTokens(tokens))),
                        this::rejectBody);
    }

    private void place(Completion completion) {
        if (ended) {
            return;
        }
        routing = completion.routing;
        report.tokens().asked(routing.prefix().promptBytes());
        switch (context.policy().place(completion.routing)) {
            case Placement.Pair(Choice prefill, Choice decoder, Optional<Forecast> forecast) -> {
                Instance first = chosen(prefill);
                Instance second = chosen(decoder);
                forecast.ifPresent(expected -> {
                    whyPrefill += "; " + expected.words();
                    decidedBy(expected, second);
                });
                attempt(completion, first, second);
            }
            case Placement.DecodeOnly(Choice decoder, LocalPrefillReason reason, Optional<Forecast> forecast) -> {
                Instance only = chosen(decoder);
                prefillLocally(
                        completion, only, reason, forecast.map(Forecast::words).orElse(""));
                forecast.ifPresent(expected -> decidedBy(expected, only));
            }
            case Placement.Unavailable(InstanceSet lacking) -> noInstance(lacking);
        }
    }

    /** The way is decided by goals: what comes of it is measured, unless another way or instance is taken in the end. */
    private void decidedBy(Forecast forecast, Instance chosen) {
        context.metrics()
                .decidedByGoals(
                        forecast.local() ? "local" : "remote", forecast.why().label());
        report.measure(context.policy().measure(forecast, forecast.local(), chosen));
    }

    /** Leaves the whole request to a decode instance. */
    private void prefillLocally(Completion completion, Instance chosen, LocalPrefillReason reason, String forecast) {
        report.measure(Measurement.NONE);
        report.prefilledLocally(reason, forecast);
        localPrefill = reason;
        attempts++;
        plan = null;
        requestId = context.flow().idWithoutHandoff(givenId);
        sendDecode(chosen, completion.body);
    }

    /** Runs the legs on these two instances. A prefill leg of the last attempt is used again if it would be the same. */
    private void attempt(Completion completion, Instance prefill, Instance chosen) {
        int attempt = ++attempts;
        Plan last = plan;
        held.work(completion.body.length(), () -> plan(completion, prefill, chosen, last))
                .onComplete(
                        planned -> {
                            if (isCurrent(attempt)) {
                                start(attempt, completion, prefill, chosen, planned);
                            }
                        },
                        cause -> {
                            if (isCurrent(attempt)) {
                                rejectBody(cause);
                            }
                        });
    }

    private boolean isCurrent(int attempt) {
        return attempt == attempts && !ended;
    }

    /** @throws ConfigException if the flow cannot serve the request */
    private Planned plan(Completion completion, Instance prefill, Instance chosen, @Nullable Plan last) {
        HandoffFlow flow = context.flow().flow(prefill, chosen);
        HandoffFlow.Handoff handoff = flow.begin(completion.parsed, givenId, prefill, chosen);
        return new Planned(
                flow,
                handoff,
                last != null
                        && last.prefill == prefill
                        && last.handoff.requestId().equals(handoff.requestId())
                        && last.handoff.prefillBody().equals(handoff.prefillBody()));
    }

    private void start(int attempt, Completion completion, Instance prefill, Instance chosen, Planned planned) {
        HandoffFlow.Handoff handoff = planned.handoff;
        Plan last = plan;
        requestId = handoff.requestId();
        decode = chosen;
        if (!planned.flow.equals(context.flow())) {
            whyDecode += "; the two hand over by " + planned.flow.name();
            context.metrics().flowChosen(planned.flow.name());
        }
        Future<JsonObjectText> prefilled = planned.repeatsPrefill && last != null && !last.prefilled.failed() && !spent
                ? last.prefilled
                : sendPrefill(prefill, handoff.prefillBody());
        spent = false;
        Plan current = new Plan(completion, prefill, handoff, prefilled);
        plan = current;
        prefilled.onFailure(cause -> {
            if (isCurrent(attempt)) {
                prefillFailed(current, cause);
            } else if (!ended && cause instanceof UpstreamFailure failure) {
                // The next attempt is being planned.
                note(failure);
            }
        });
        switch (handoff.decode()) {
            case HandoffFlow.AtOnce atOnce -> {
                prefilled.onSuccess(answer -> held.work(answer.length(), () -> {
                            atOnce.prefilled().accept(answer);
                            return answer;
                        })
                        .onFailure(cause ->
                                log.warn("{}: no connector address from {}: {}", givenId, prefill, cause.toString())));
                startDecode(
                        attempt,
                        current,
                        chosen,
                        0,
                        () -> new HandoffFlow.DecodeBody(atOnce.body().get(), true, true));
            }
            case HandoffFlow.AfterPrefill after ->
                prefilled.onSuccess(answer -> startDecode(
                        attempt,
                        current,
                        chosen,
                        answer.length(),
                        () -> after.body().apply(answer)));
        }
    }

    private void startDecode(
            int attempt, Plan current, Instance chosen, int answerBytes, Supplier<HandoffFlow.DecodeBody> body) {
        held.work((long) current.completion.body.length() + answerBytes, body::get)
                .onComplete(
                        made -> {
                            if (isCurrent(attempt)) {
                                if (triedDecodes.isEmpty()) {
                                    (made.carries() ? context.metrics().carried : context.metrics().notCarried)
                                            .increment();
                                }
                                decodeCarries = made.carries();
                                if (!made.isRendered()) {
                                    report.tokens().compare();
                                }
                                sendDecode(chosen, made.text());
                            }
                        },
                        cause -> {
                            if (isCurrent(attempt)) {
                                answerError(502, current.prefill + ": " + cause.getMessage(), Outcome.PREFILL_FAILED);
                            }
                        });
    }

    private Future<JsonObjectText> sendPrefill(Instance instance, Buffer prefillBody) {
        if (prefillLeg != null) {
            prefillLeg.abort();
        }
        if (!triedPrefills.contains(instance)) {
            triedPrefills.add(instance);
        }
        RouterConfig.Limits limits = context.config().limits();
        PrefillAnswer answer = new PrefillAnswer(instance, limits.maxBodyBytes(), context.worker(), report);
        Leg leg =
                new Leg(upstream, instance, answer, limits.prefill(), Leg.Bounds.WHOLE, Optional.of(instance.begin()));
        prefillLeg = leg;
        String parent = report.prefillSent(instance, whyPrefill);
        leg.send(request.method(), Headers.target(request), legHeaders(parent), prefillBody);
        return answer.future();
    }

    private void prefillFailed(Plan failed, Throwable cause) {
        if (report.hasFirstByte()) {
            log.warn("{}: prefill failed while decode already answers: {}", givenId, cause.getMessage());
            return;
        }
        if (decodeLeg != null) {
            decodeLeg.abort();
        }
        switch (cause) {
            case PrefillAnswer.Rejection rejection -> {
                Headers.toClient(rejection.headers, client.headers());
                addHeaders();
                report.sent(rejection.body.length());
                client.status(rejection.status);
                end(Outcome.REJECTED);
                client.end(rejection.body);
            }
            case UpstreamFailure failure -> prefillFailed(failed, failure);
            default -> answerError(502, failed.prefill + ": " + cause, Outcome.PREFILL_FAILED);
        }
    }

    private void prefillFailed(Plan failed, UpstreamFailure failure) {
        note(failure);
        Optional<Instance> other = prefillRetried || decode == null
                ? Optional.empty()
                : chosen(context.policy().otherPrefill(routing, triedPrefills, decode));
        if (other.isPresent() && decode != null) {
            log.info("{}: {}, trying {}", givenId, failure.describe(), other.get());
            context.metrics().retried(Instance.Role.PREFILL.label());
            prefillRetried = true;
            report.measure(Measurement.NONE);
            attempt(failed.completion, other.get(), decode);
        } else if (context.config().policy().localPrefill().asFallback() && decode != null) {
            log.warn("{}: {}, {} computes the prompt", givenId, failure.describe(), decode);
            prefillLocally(failed.completion, decode, LocalPrefillReason.FAILED, "");
        } else {
            answerError(failure.status(), failure.describe(), Outcome.PREFILL_FAILED);
        }
    }

    private void sendDecode(Instance instance, Buffer body) {
        decode = instance;
        triedDecodes.add(instance);
        Leg leg = new Leg(
                upstream,
                instance,
                new DecodeRelay(this, body, client, report),
                context.config().limits().idle(),
                Leg.Bounds.SILENCE,
                Optional.of(begun(instance)));
        decodeLeg = leg;
        String parent = report.trace().sent(RequestTrace.DECODE, instance.url(), whyDecode);
        leg.send(request.method(), Headers.target(request), legHeaders(parent), body);
    }

    /** What ends the count of a decode leg's request at its instance. */
    private Instance.RunningRequest begun(Instance instance) {
        Instance.RunningRequest chosen = reserved;
        reserved = null;
        return chosen == null ? instance.begin() : chosen;
    }

    private void release() {
        if (reserved != null) {
            reserved.run();
            reserved = null;
        }
    }

    /** Sends the leg to another instance if the failed instance, and not the request, was at fault. */
    @Override
    public void failedBeforeFirstByte(UpstreamFailure failure, Buffer body) {
        note(failure);
        spent = decodeCarries && failure.kind() == Kind.LOST;
        boolean retriable =
                failure.kind() == Kind.CONNECT || failure.kind() == Kind.LOST || failure.kind() == Kind.REFUSED;
        Optional<Instance> other = retriable ? otherDecode() : Optional.empty();
        if (other.isEmpty()) {
            answerError(failure.status(), failure.describe(), Outcome.DECODE_FAILED);
            return;
        }
        log.info("{}: {}, trying {}", givenId, failure.describe(), other.get());
        context.metrics().retried(Instance.Role.DECODE.label());
        report.measure(Measurement.NONE);
        if (plan == null) {
            sendDecode(other.get(), body);
        } else {
            attempt(plan.completion, plan.prefill, other.get());
        }
    }

    @Override
    public void brokenOff(UpstreamFailure failure) {
        note(failure);
        log.warn("{}: answer broken off after {} bytes: {}", givenId, report.bytes(), failure.describe());
    }

    @Override
    public boolean hasOtherDecode() {
        return context.policy().hasOtherDecode(triedDecodes, handingOver());
    }

    /** The prefill instance of a hand-over. */
    private Optional<Instance> handingOver() {
        return Optional.ofNullable(plan).map(Plan::prefill);
    }

    private Optional<Instance> otherDecode() {
        return chosen(context.policy().otherDecode(routing, triedDecodes, handingOver()));
    }

    /** Counts a choice. */
    private Instance chosen(Choice choice) {
        Instance instance = choice.instance();
        switch (instance.role()) {
            case PREFILL -> whyPrefill = choice.describe(routing);
            case DECODE -> {
                whyDecode = choice.describe(routing);
                // Counted from now on: its leg may wait for the whole prefill leg.
                release();
                reserved = instance.begin();
            }
        }
        context.metrics()
                .chosen(
                        instance.role().label(),
                        choice.why().label(),
                        routing.prefix().promptBytes(),
                        choice.known());
        return instance;
    }

    private Optional<Instance> chosen(Optional<Choice> choice) {
        return choice.map(this::chosen);
    }

    @Override
    public void clientLeft() {
        if (!ended) {
            context.metrics().disconnects.increment();
            end(Outcome.CLIENT_DISCONNECTED);
        }
    }

    /** Updates the instance's health after a failed leg. */
    private void note(UpstreamFailure failure) {
        Instance failed = failure.instance();
        report.trace().failed(failed.role().label(), failed.url(), failure.reason());
        report.trace().step(failure.describe());
        switch (failure.kind()) {
            case CONNECT -> failure.instance().markDown(failure.reason());
            case LOST, TIMEOUT, REFUSED -> context.probe().soon(failure.instance());
            case ANSWER, CLIENT_STALLED -> {}
        }
    }

    private void noInstance(InstanceSet set) {
        if (!ended && set.isFull()) {
            client.headers().set("Retry-After", "1");
        }
        List<Instance> others = context.instances().others(set);
        answerError(
                503,
                set.whyNone(
                        instance -> context.flow().fits(instance, others),
                        instance -> context.flow().whyNot(instance, others)),
                Outcome.UNAVAILABLE);
    }

    private void rejectBody(Throwable cause) {
        if (cause instanceof ConfigException malformed) {
            answer(ApiError.badRequest(malformed.field(), String.valueOf(malformed.getMessage())), Outcome.REJECTED);
        } else {
            log.error("{}: the body cannot be read", givenId, cause);
            answerError(503, "the body cannot be read: " + cause, Outcome.UNAVAILABLE);
        }
    }

    private void answerError(int status, String message, Outcome outcome) {
        report.trace().step("answered with HTTP " + status + ": " + message);
        answer(ApiError.upstream(status, message), outcome);
    }

    private void answer(ApiError error, Outcome outcome) {
        if (!ended) {
            addHeaders();
            client.status(error.status());
            end(outcome);
            error.send(client);
        }
    }

    @Override
    public void addHeaders() {
        client.headers().set(Headers.REQUEST_ID, givenId);
        if (!requestId.equals(givenId)) {
            client.headers().set(Headers.HANDOFF_ID, requestId);
        }
        if (plan != null) {
            client.headers().set(Headers.PREFILL, plan.prefill.url());
        }
        if (localPrefill != null) {
            client.headers().set(Headers.LOCAL_PREFILL, localPrefill.label());
        }
        if (decodeLeg != null && decode != null) {
            client.headers().set(Headers.DECODE, decode.url());
        }
    }

    private MultiMap legHeaders(String traceparent) {
        return MultiMap.caseInsensitiveMultiMap()
                .addAll(headers)
                .set(Headers.REQUEST_ID, requestId)
                .set(Headers.TRACEPARENT, traceparent);
    }

    /**
     * Ends the request, once. A leg that still runs is closed. To be called before the last bytes are sent, so that a client that has
     * its answer no longer counts as running.
     */
    @Override
    public void end(Outcome outcome) {
        if (ended) {
            return;
        }
        ended = true;
        context.running().decrementAndGet();
        if (report.hasFirstByte() && pass.countsTokens()) {
            pass.took(report.tokens().total());
        }
        pass.release();
        release();
        if (prefillLeg != null) {
            prefillLeg.abort();
        }
        if (decodeLeg != null) {
            decodeLeg.abort();
        }
        if (batch != null) {
            batch.abandon();
        }
        held.over();
        report.ended(
                outcome,
                new RequestReport.Line(
                        givenId,
                        requestId.equals(givenId) ? "-" : requestId,
                        request.path(),
                        client.status(),
                        plan != null
                                ? plan.prefill.url()
                                : localPrefill != null ? "local:" + localPrefill.label() : "-",
                        decodeLeg == null || decode == null ? "-" : decode.url()));
    }
}
