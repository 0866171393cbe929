package baton.router;

import baton.router.trace.RequestTrace;
import baton.router.upstream.Instance;
import baton.router.upstream.Leg;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import baton.router.upstream.UpstreamFailure;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerRequest;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/** Sends the legs of one request, and knows which instances got one. Confined to the request's event loop. */
final class RequestLegs {
    /** An instance that gets a leg, and the reason in words. */
    record Target(Instance instance, String why) {}

    private final UpstreamClient upstream;
    private final RouterConfig.Limits limits;
    private final HttpServerRequest request;
    private final MultiMap headers;
    private final RequestReport report;
    private Optional<Instance> prefilledAt = Optional.empty();
    /** The incarnations by instance. */
    private final Map<Instance, Long> decodes = new HashMap<>(4);

    /** @param headers of each leg */
    RequestLegs(
            UpstreamClient upstream,
            RouterConfig.Limits limits,
            HttpServerRequest request,
            MultiMap headers,
            RequestReport report) {
        this.upstream = upstream;
        this.limits = limits;
        this.request = request;
        this.headers = headers;
        this.report = report;
    }

    /** The last prefill instance that got a leg. */
    Optional<Instance> prefilledAt() {
        return prefilledAt;
    }

    /** Instances that are not to get another decode leg: those that got one, unless they were started anew since. */
    List<Instance> decodes() {
        return decodes.entrySet().stream()
                .filter(each -> each.getKey().incarnation() == each.getValue())
                .map(Map.Entry::getKey)
                .toList();
    }

    /** The instance is not to get the request again. */
    void tried(Instance decode) {
        decodes.put(decode, decode.incarnation());
    }

    /** The instance may get the request again. */
    void forget(Instance decode) {
        decodes.remove(decode);
    }

    /** Forgets which instances got decode legs: all of them may get one again. */
    void forget() {
        decodes.clear();
    }

    /** The headers that all legs have. */
    MultiMap headers() {
        return headers;
    }

    /**
     * @param id {@code X-Request-Id} of the leg
     * @param share of the prompt that is to be computed
     */
    Leg prefill(
            Target to,
            String id,
            Buffer body,
            double share,
            Consumer<Question.Answer> answered,
            Consumer<UpstreamFailure> failed) {
        Instance instance = to.instance();
        MultiMap own = headers(id, report.prefillSent(instance, to.why()));
        if (instance.role() == Instance.Role.DECODE) {
            own.set(Headers.MOVE, "1");
        } else {
            prefilledAt = Optional.of(instance);
        }
        if (share < 1) {
            own.set(Headers.PROMPT_SHARE, String.format(Locale.ROOT, "%.6f", share));
        }
        Leg leg = new Question(
                        request.method(), Headers.target(request), own, body, limits.prefill(), limits.maxBodyBytes())
                .ask(upstream, instance, Optional.of(instance.begin()), answered, failed);
        limits.continueAfter().ifPresent(leg::within);
        return leg;
    }

    /**
     * @param id {@code X-Request-Id} of the leg
     * @param counted the instance's count of the request
     * @param position of an answer that can continue elsewhere
     */
    Leg decode(
            Target to,
            String id,
            Instance.RunningRequest counted,
            Buffer body,
            DecodeRelay relay,
            Optional<StreamPosition> position) {
        Instance instance = to.instance();
        tried(instance);
        Leg leg = new Leg(upstream, instance, relay, limits.idle(), Leg.Bounds.SILENCE, Optional.of(counted));
        MultiMap own = headers(id, report.trace().sent(RequestTrace.DECODE, instance.url(), to.why()));
        position.filter(answer -> answer.canBeAt(instance)).ifPresent(answer -> answer.ask(own));
        leg.send(request.method(), Headers.target(request), own, body);
        limits.continueAfter().ifPresent(leg::within);
        return leg;
    }

    private MultiMap headers(String id, String traceparent) {
        return MultiMap.caseInsensitiveMultiMap()
                .addAll(headers)
                .set(Headers.REQUEST_ID, id)
                .set(Headers.TRACEPARENT, traceparent);
    }
}
