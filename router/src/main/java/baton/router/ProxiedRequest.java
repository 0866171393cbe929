package baton.router;

import baton.kv.ConfigException;
import baton.router.HandoffAttempt.DecodeOnly;
import baton.router.HandoffAttempt.HandOver;
import baton.router.RequestLegs.Target;
import baton.router.access.ClientPass;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.body.ReceivedBody;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.ContinuationOutcome;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.metrics.RouterMetrics.PrefillWay;
import baton.router.policy.Choice;
import baton.router.policy.Forecast;
import baton.router.policy.LatencyMeasurement;
import baton.router.policy.LocalPrefillBytes;
import baton.router.policy.Placement;
import baton.router.policy.RoutingRequest;
import baton.router.upstream.Instance;
import baton.router.upstream.Instance.Role;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import baton.trace.TraceContext;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerRequest;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One client's request, from the complete request body to the last byte of the answer. The policy chooses a prefill and a decode instance for a completion; other
 * requests go to a decode instance alone. Each choice is a {@link HandoffAttempt}.
 *
 * <h2>Failure and retry</h2>
 * The client gets nothing before the first byte (for server-sent events: the first whole event) of the decode leg's answer. Until then
 * a failed leg is sent to another instance, by another attempt: prefill once for each decode instance, decode as long as there are untried instances. A request
 * that has lost its instances waits for others and is placed anew ({@link RequestPause}). After the first byte the request is not sent again, as the client
 * would get tokens twice: the answer ends with an error event or is broken off. A 4xx of prefill becomes the client's answer. When the client disconnects, both legs are
 * closed at once. If configured so, a prompt that no prefill instance computes is left to the decode instance. An answer with token ids continues at
 * another instance: see {@link StreamContinuation}.
 *
 * <h2>Concurrency</h2>
 * Confined to the event loop of the client's connection; the {@link BodyWorker} reads and builds large bodies beside it. Results
 * that arrive after {@link #end} are dropped.
 */
final class ProxiedRequest {
    private static final Logger log = LoggerFactory.getLogger(ProxiedRequest.class);
    private static final String CACHE_SALT = "cache_salt";

    private final RouterContext context;
    private final RouterContext.Routing routing;
    private final UpstreamClient upstream;
    private final HttpServerRequest request;
    private final Answer client;
    private final ClientPass pass;
    private final String id;
    private final RequestReport report;
    private final HeldBody held;
    private final RequestLegs legs;

    private RoutingRequest asked = RoutingRequest.NONE;
    /** The continuation of a completion that may continue at another instance. */
    private Optional<StreamContinuation> continuation = Optional.empty();

    private Optional<ShadowRequest> shadow = Optional.empty();
    /** The last attempt. */
    private @Nullable HandoffAttempt attempt;

    /** Whether the prefill leg for the present decode instance went to another instance after a failure. */
    private boolean prefillRetried;

    private Optional<RequestPause> pause = Optional.empty();
    /** Chooses instances anew; until the client has the first byte. */
    private Runnable again = () -> {};

    private boolean ended;
    /** If its prompts are served by themselves. */
    private @Nullable BatchedRequest batch;

    private record Completion(JsonObjectText body, RoutingRequest routing) {}

    private ProxiedRequest(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            Answer client,
            ClientPass pass,
            String id,
            int bodyBytes) {
        this.context = context;
        this.routing = context.routing();
        this.upstream = upstream;
        this.request = request;
        this.client = client;
        this.pass = pass;
        this.id = id;
        this.held = new HeldBody(context.inFlight(), bodyBytes);
        TraceContext trace = TraceContext.of(
                request.headers().getAll(Headers.TRACEPARENT),
                context.reporting().spans().isPresent());
        this.report = new RequestReport(
                context.reporting(), id, trace, request.method().name(), request.path(), pass);
        MultiMap headers = Headers.toInstance(
                request.headers(),
                context.config().apiKey(),
                context.guards().gate().isPresent());
        if (trace.parentId().isEmpty()) {
            headers.remove(Headers.TRACESTATE);
        }
        this.legs = new RequestLegs(upstream, context.config().limits(), request, headers, report);
        client.whenLeft(this::clientLeft);
    }

    private static ProxiedRequest of(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            ClientPass pass,
            ReceivedBody body) {
        String id = Headers.requestId(request.headers(), context.config().trustClientKvParams());
        return new ProxiedRequest(context, upstream, request, Answer.to(request.response()), pass, id, body.length());
    }

    /** Serves a completion by a prefill and a decode leg. The request is counted as running; its end counts it off. */
    static void handOff(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            ClientPass pass,
            ReceivedBody body) {
        ProxiedRequest own = of(context, upstream, request, pass, body);
        own.read(body.length(), () -> own.completion(own.salted(own.parse(body.join()))), own::splitOrGoOn);
    }

    /** Passes a request to a decode instance as it is. Counted as with {@link #handOff}. */
    static void proxy(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            ClientPass pass,
            ReceivedBody body) {
        ProxiedRequest own = of(context, upstream, request, pass, body);
        own.read(body.length(), () -> own.checked(body.join()), own::proxy);
    }

    private <T> void read(long bytes, Callable<T> reader, Consumer<T> next) {
        held.work(bytes, reader)
                .onComplete(
                        read -> {
                            if (!ended) {
                                next.accept(read);
                            }
                        },
                        this::rejectBody);
    }

    /** @throws ConfigException if the body is not a JSON object, or names addresses */
    private JsonObjectText parse(Buffer body) {
        JsonObjectText parsed = JsonObjectText.parse("body", body.getBytes());
        if (parsed.has(StreamPosition.FIELD)) {
            throw new ConfigException(StreamPosition.FIELD, "is refused: the router sets it itself");
        }
        try {
            AddressFields.refuse(parsed, context.config());
        } catch (ConfigException e) {
            metrics().count(RouterMetric.CLIENT_ADDRESSES_REFUSED);
            throw e;
        }
        return parsed;
    }

    /** The body with the salt of the client's tenant, where it has one, in place of the client's own. */
    private JsonObjectText salted(JsonObjectText body) {
        if (pass.salt().isEmpty()) {
            return body;
        }
        Optional<String> own = PromptTokens.text(body, CACHE_SALT);
        if (body.hasNonNull(CACHE_SALT) && own.filter(salt -> !salt.isEmpty()).isEmpty()) {
            throw new ConfigException(CACHE_SALT, "must be a non-empty string");
        }
        return body.edit()
                .set(CACHE_SALT, '"' + pass.salt().get().of(own) + '"')
                .object();
    }

    /** Instances read prompts of {@code POST} here too. */
    private Buffer checked(Buffer body) {
        if (request.method().equals(HttpMethod.POST)) {
            JsonObjectText _ = parse(body);
        }
        return body;
    }

    private void proxy(Buffer body) {
        again = () -> proxy(body);
        InstanceSet decodes = routing.instances().decodes();
        decodes.next(List.of())
                .ifPresentOrElse(
                        instance -> begin(id, new DecodeOnly(body), new Target(instance, "it was its turn")),
                        () -> noInstance(decodes));
    }

    private Completion completion(JsonObjectText body) {
        Optional<String> session = Optional.ofNullable(request.getHeader(RoutingRequest.SESSION_HEADER));
        return new Completion(
                body, RoutingRequest.of(body, session, routing.policy().needsPrefix()));
    }

    /** Serves each of several prompts by itself if a hand-over is of one. */
    private void splitOrGoOn(Completion completion) {
        JsonObjectText body = completion.body;
        try {
            List<byte[]> prompts = flow().handsOverOne() ? PromptField.split(body) : List.of();
            if (prompts.isEmpty()) {
                learnTokens(completion);
                return;
            }
            report.trace().step("its " + prompts.size() + " prompts are served by themselves");
            batch = BatchedRequest.start(body, prompts, client, this);
        } catch (ConfigException e) {
            rejectBody(e);
        }
    }

    /** Serves one of several prompts. */
    void serve(Answer answer, int number, JsonObjectText body) {
        context.inFlight().running().incrementAndGet();
        ProxiedRequest part = new ProxiedRequest(
                context, upstream, request, answer, pass.ofPart(), HandoffFlow.idWithEnd(id, "-" + number), 0);
        part.learnTokens(part.completion(body));
    }

    /** Bytes of the answer to several prompts go to the client. */
    void sent(int bytes) {
        report.sent(bytes);
    }

    /** Learns the tokens of the prompt, if the policy looks at them, and goes on. */
    private void learnTokens(Completion completion) {
        if (routing.tokens().isEmpty()) {
            place(completion.body, completion.routing);
            return;
        }
        int maxBytes = context.config().limits().maxBodyBytes();
        BodyWorker worker = context.inFlight().worker();
        held.reading(routing.tokens().get().of(upstream, completion.body, legs.headers(), maxBytes, worker))
                .onComplete(tokens -> place(completion.body, completion.routing.withTokens(tokens)), this::rejectBody);
    }

    private void place(JsonObjectText body, RoutingRequest placed) {
        if (ended) {
            return;
        }
        asked = placed;
        again = () -> place(body, placed);
        if (continuation.isEmpty() && context.config().limits().continueAfter().isPresent()) {
            continuation = Optional.of(new StreamContinuation(this, body));
        }
        report.tokens().asked(placed.prefix().promptBytes());
        switch (routing.policy().place(placed, legs.decodes())) {
            case Placement.Pair(Choice prefill, Choice decode, double share, Optional<Forecast> forecast) -> {
                Target first = chosen(prefill);
                Target second = chosen(decode);
                Target told = forecast.map(
                                expected -> new Target(first.instance(), first.why() + "; " + expected.words()))
                        .orElse(first);
                forecast.ifPresent(expected -> decidedBy(expected, second.instance()));
                if (share < 1) {
                    split(share, second.instance(), forecast.isPresent());
                }
                shadow = context.reporting().shadows().choose(request.path(), body, report.now());
                begin(id, new HandOver(id, bodyFor(second, body), told, share, Optional.empty()), second);
            }
            case Placement.DecodeOnly(Choice decode, LocalPrefillReason reason, Optional<Forecast> forecast) -> {
                Target only = chosen(decode);
                report.prefilledLocally(reason, forecast.map(Forecast::words).orElse(""));
                forecast.ifPresent(expected -> decidedBy(expected, only.instance()));
                begin(flow().idWithoutHandoff(id), new DecodeOnly(bodyFor(only, body)), only);
            }
            case Placement.Unavailable(InstanceSet lacking) -> noInstance(lacking);
        }
    }

    private JsonObjectText bodyFor(Target decode, JsonObjectText body) {
        return continuation.map(stream -> stream.bodyFor(decode.instance())).orElse(body);
    }

    /** The decode instance counts the rest of the prompt until the first token, which the measurement of a forecast does too. */
    private void split(double share, Instance decode, boolean isForetold) {
        metrics().count(RouterMetric.PROMPTS_SPLIT);
        report.trace().step(String.format(Locale.ROOT, "prefill computes %.0f %% of the prompt", 100 * share));
        if (!isForetold) {
            report.measure(new LocalPrefillBytes(decode, (long) (asked.prefix().promptBytes() * (1 - share))));
        }
    }

    /** The way is decided by goals: its times are measured, unless another way or instance is taken in the end. */
    private void decidedBy(Forecast forecast, Instance chosen) {
        metrics()
                .count(
                        RouterMetric.GOAL_DECISIONS,
                        forecast.local() ? PrefillWay.LOCAL : PrefillWay.REMOTE,
                        forecast.why());
        report.measure(routing.policy().measure(forecast, forecast.local(), chosen));
    }

    /** Counts a choice. */
    Target chosen(Choice choice) {
        Instance instance = choice.instance();
        metrics().count(RouterMetric.CHOICES, instance.role(), choice.why());
        metrics().add(RouterMetric.PROMPT_BYTES, asked.prefix().promptBytes(), instance.role(), "all");
        metrics().add(RouterMetric.PROMPT_BYTES, choice.known(), instance.role(), "known");
        return new Target(instance, choice.describe(asked));
    }

    void begin(String legId, HandoffAttempt.Course course, Target decode) {
        prefillRetried = false;
        if (pause.isPresent()) {
            metrics().count(RouterMetric.RETRIES, decode.instance().role());
        }
        begin(new HandoffAttempt(this, legId, course, decode, decode.instance().begin()));
    }

    private void begin(HandoffAttempt next) {
        if (pause.isPresent()) {
            report.measure(LatencyMeasurement.NONE);
        }
        attempt = next;
        next.start();
    }

    /** The last attempt, of which a leg is under way. */
    private HandoffAttempt begun() {
        return Objects.requireNonNull(attempt, "no leg has been sent");
    }

    /** A prefill instance has refused the prompt of an answer that has not begun: its answer is the client's. */
    void prefillRejected(Question.Answer answer) {
        Buffer body = answer.body();
        Headers.toClient(answer.headers(), client.headers());
        addHeaders();
        report.sent(body.length());
        client.status(answer.status());
        end(Outcome.REJECTED);
        client.end(body);
    }

    /** The prefill leg has failed: the prompt goes to another prefill instance, or to the decode instance. */
    void prefillFailed(UpstreamFailure failure) {
        if (hasBegun() && pause.isEmpty()) {
            log.warn("{}: prefill failed while decode already answers: {}", id, failure.reason());
            return;
        }
        RequestPause current = note(failure);
        boolean mayRetry = current.failuresLeft(Role.PREFILL) > 0 && !prefillRetried;
        HandoffAttempt failed = begun();
        Instance decode = failed.decode().instance();
        Optional<Target> other = mayRetry
                ? routing.policy()
                        .otherPrefill(asked, List.of(failure.instance()), decode)
                        .map(this::chosen)
                : Optional.empty();
        if (other.isPresent()) {
            // An instance without a connection is down now.
            prefillRetried = failure.kind() != Kind.CONNECT;
            log.info("{}: {}, trying {}", id, failure.describe(), other.get().instance());
            metrics().count(RouterMetric.RETRIES, Role.PREFILL);
            begin(failed.withPrefill(other.get()));
        } else if (hasBegun()) {
            begin(failed.withoutPrefill(flow().idWithoutHandoff(failed.id())));
        } else if (context.config().policy().localPrefill().asFallback()) {
            log.warn("{}: {}, {} computes the prompt", id, failure.describe(), decode);
            report.prefilledLocally(LocalPrefillReason.FAILED, "");
            begin(failed.withoutPrefill(flow().idWithoutHandoff(id)));
        } else {
            waitOrFail(failure, current, Outcome.PREFILL_FAILED);
        }
    }

    /** No other instance gets the leg. If an instance has had the request, this waits until it can be placed anew. */
    private void waitOrFail(UpstreamFailure failure, RequestPause current, Outcome outcome) {
        begun().end();
        Role role = failure.instance().role();
        boolean mayBePrefilled = role == Role.DECODE && begun().prefill().isPresent();
        boolean waits = !failure.isOfSlowInstance()
                && failure.kind() != Kind.ANSWER
                && current.failuresLeft(role) > 0
                && (current.isLoss() || mayBePrefilled)
                && current.lookAgain(role, again);
        if (!waits) {
            answerError(failure.status(), failure.describe(), outcome);
        }
    }

    /** Whether the client has a part of the answer, or an instance has sent tokens of a whole one. */
    boolean hasBegun() {
        return report.hasFirstByte()
                || continuation.filter(StreamContinuation::hasBegunWhole).isPresent();
    }

    /** The leg failed after whole events of a stream, or tokens of a whole answer, which continues elsewhere or ends with an error. */
    void streamBrokenOff(UpstreamFailure failure) {
        boolean isFirst = pause.isEmpty();
        RequestPause current = note(failure);
        if (!failure.kind().isMove()) {
            warnBrokenOff(failure);
        }
        begun().end();
        continuation.ifPresentOrElse(
                stream -> stream.brokenOff(failure, current, isFirst),
                () -> answerError(failure.status(), failure.describe(), Outcome.DECODE_BROKEN));
    }

    /** Whether another instance would continue the stream. */
    boolean canContinueElsewhere() {
        Instance own = begun().decode().instance();
        return continuation.filter(stream -> stream.canContinueElsewhere(own)).isPresent();
    }

    /** Why the stream is to leave its instance now; empty if it stays. */
    Optional<Kind> leaves() {
        return hasBegun()
                ? continuation.flatMap(stream -> stream.leaves(begun().decode().instance()))
                : Optional.empty();
    }

    /** Bytes of the answer's body go to the client. */
    void answered(Buffer part) {
        shadow.ifPresent(second -> second.answered(part));
    }

    /** An instance answers: the pause is over, and its attempt is not made again. */
    void answering() {
        pause.ifPresent(over -> over.ends(ContinuationOutcome.CONTINUED));
        pause = Optional.empty();
        if (report.hasFirstByte()) {
            again = () -> {};
        }
        begun().dropBodies();
    }

    /** Chooses instances anew for an answer of which the client has nothing. */
    void placeAnew() {
        again.run();
    }

    Optional<StreamContinuation> continuation() {
        return continuation;
    }

    /** The request goes to another decode instance. */
    void failedBeforeFirstByte(UpstreamFailure failure) {
        RequestPause current = note(failure);
        boolean mayRetry = current.failuresLeft(Role.DECODE) > 0 && !failure.isOfSlowInstance();
        HandoffAttempt failed = begun();
        Optional<Target> other = mayRetry
                ? routing.policy()
                        .otherDecode(asked, legs.decodes(), failed.prefill())
                        .map(this::chosen)
                : Optional.empty();
        if (other.isEmpty()) {
            waitOrFail(failure, current, Outcome.DECODE_FAILED);
            return;
        }
        log.info("{}: {}, trying {}", id, failure.describe(), other.get().instance());
        begin(failed.id(), failed.courseAfter(failure), other.get());
    }

    /** The leg failed after the client got a part of an answer that is no stream. */
    void brokenOff(UpstreamFailure failure) {
        RequestPause _ = note(failure);
        warnBrokenOff(failure);
    }

    private void warnBrokenOff(UpstreamFailure failure) {
        log.warn(
                "{}: answer broken off after {} bytes: {}",
                id,
                report.trace().snapshot().answer().bytes(),
                failure.describe());
    }

    /** Whether a decode instance is left that has not been tried. */
    boolean hasOtherDecode() {
        return routing.policy().hasOtherDecode(legs.decodes(), begun().prefill());
    }

    /** The client reads no more. */
    void clientLeft() {
        if (!ended) {
            metrics().count(RouterMetric.CLIENT_DISCONNECTS);
            end(Outcome.CLIENT_DISCONNECTED);
        }
    }

    /** Updates the instance's health after a failed leg, and counts it. */
    private RequestPause note(UpstreamFailure failure) {
        Instance failed = failure.instance();
        report.trace().failed(failed.role().label(), failed.url(), failure.reason());
        report.trace().step(failure.describe());
        report.measure(LatencyMeasurement.NONE);
        switch (failure.kind()) {
            case CONNECT -> failed.markDown(failure.reason());
            case LOST, TIMEOUT, REFUSED -> routing.probe().soon(failed);
            case ANSWER, CLIENT_STALLED, LEAVING, BALANCE -> {}
        }
        RequestPause current = pause.orElseGet(() -> new RequestPause(this, failure.kind()));
        pause = Optional.of(current);
        current.failed(failure, begun().isPrefilling());
        return current;
    }

    private void noInstance(InstanceSet set) {
        if (pause.filter(current -> current.lookAgain(set.role(), again)).isPresent()) {
            return;
        }
        if (set.isFull()) {
            client.headers().set("Retry-After", "1");
        }
        List<Instance> others = routing.instances().others(set);
        answerError(
                503,
                set.whyNone(instance -> flow().fits(instance, others), instance -> flow().whyNot(instance, others)),
                Outcome.UNAVAILABLE);
    }

    void rejectBody(Throwable cause) {
        if (cause instanceof ConfigException malformed) {
            answer(ApiError.badRequest(malformed.field(), String.valueOf(malformed.getMessage())), Outcome.REJECTED);
        } else {
            log.error("{}: the body cannot be read", id, cause);
            answerError(503, "the body cannot be read: " + cause, Outcome.UNAVAILABLE);
        }
    }

    void answerError(int status, String message, Outcome outcome) {
        report.trace().step("answered with HTTP " + status + ": " + message);
        answer(ApiError.upstream(status, message), outcome);
    }

    private void answer(ApiError error, Outcome outcome) {
        if (ended) {
            return;
        }
        continuation.ifPresent(stream -> pause.ifPresent(over -> over.ends(stream.failure())));
        if (report.hasFirstByte()) {
            end(Outcome.DECODE_BROKEN);
            client.end(error.toEvent());
            return;
        }
        addHeaders();
        client.status(error.status());
        end(outcome);
        error.send(client);
    }

    /** The answer begins. */
    void begins() {
        addHeaders();
        answering();
    }

    /** Adds the router's own headers to the answer. */
    void addHeaders() {
        client.headers().set(Headers.REQUEST_ID, id);
        report.localPrefill().ifPresent(why -> client.headers().set(Headers.LOCAL_PREFILL, why.label()));
        HandoffAttempt last = attempt;
        if (last != null) {
            if (!last.id().equals(id)) {
                client.headers().set(Headers.HANDOFF_ID, last.id());
            }
            last.prefill().ifPresent(prefill -> client.headers().set(Headers.PREFILL, prefill.url()));
            last.decodeSent().ifPresent(decode -> client.headers().set(Headers.DECODE, decode.url()));
        }
    }

    /**
     * Ends the request, once. A leg that still runs is closed. To be called before the last bytes are sent, so that a client that has
     * its answer no longer counts as running.
     */
    void end(Outcome outcome) {
        if (ended) {
            return;
        }
        ended = true;
        context.inFlight().running().decrementAndGet();
        if (report.hasFirstByte() && pass.countsTokens()) {
            pass.took(report.tokens().total());
        }
        pass.release();
        Optional<HandoffAttempt> last = Optional.ofNullable(attempt);
        last.ifPresent(HandoffAttempt::end);
        if (outcome == Outcome.OK && client.status() == 200) {
            last.filter(handed -> handed.prefill().isPresent())
                    .flatMap(HandoffAttempt::decodeSent)
                    .ifPresent(decode -> shadow.ifPresent(
                            second -> second.start(context, upstream, request, legs.headers(), id, decode)));
        }
        if (batch != null) {
            batch.abandon();
        }
        held.over();
        String handoffId =
                last.map(HandoffAttempt::id).filter(other -> !other.equals(id)).orElse("-");
        report.ended(outcome, handoffId, client.status());
    }

    /** The client's id, or one made for it. */
    String id() {
        return id;
    }

    Answer client() {
        return client;
    }

    /** Since a leg has failed, until the next byte of an answer. */
    Optional<RequestPause> pause() {
        return pause;
    }

    HeldBody held() {
        return held;
    }

    RequestLegs legs() {
        return legs;
    }

    RequestReport report() {
        return report;
    }

    RouterMetrics metrics() {
        return context.reporting().metrics();
    }

    HandoffFlow flow() {
        return routing.flow();
    }

    RouterContext context() {
        return context;
    }

    RoutingRequest asked() {
        return asked;
    }

    boolean isEnded() {
        return ended;
    }

    Vertx vertx() {
        return upstream.vertx();
    }
}
