package baton.router.role;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.HandoffFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.MooncakeFlow;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.upstream.Instance;
import baton.router.upstream.Membership;
import baton.router.upstream.Question;
import io.vertx.core.Future;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Before an instance leaves, those that stay get its hottest prefixes: of each, it serves a prefill leg and they a decode leg for one token, so that they load
 * the blocks as for any hand-over and keep them in their prefix caches. Where the connector cannot move them, they compute the prefix. One prefix follows the
 * other, the hottest first. All state is confined to one event loop, except {@link #progress}.
 */
public final class CacheHandover {
    private static final Logger log = LoggerFactory.getLogger(CacheHandover.class);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /** Of all prefixes. */
    private static final int MOST_TOKENS = 1 << 17;
    /** Of an answer; a token has six digits at most. */
    private static final int MOST_ANSWER = 16 * MOST_TOKENS;

    private static final Duration EACH_LEG = Duration.ofSeconds(30);
    private static final Duration LONGEST = Duration.ofSeconds(60);
    /** Instances that get the prefixes. */
    public static final int MOST_TAKERS = 8;

    /** Whether a prefix was taken over; the label {@code result}. */
    private enum Result implements RouterMetrics.Label {
        LOADED,
        /** Without the blocks of the instance that leaves. */
        COMPUTED,
        FAILED
    }

    /**
     * How far it is.
     *
     * @param prefixes to be taken over
     * @param loaded times that an instance loaded one
     * @param computed times that an instance computed one
     * @param failed times that an instance did neither
     */
    public record Progress(int prefixes, int loaded, int computed, int failed, boolean done) {
        private Progress plus(Result result) {
            return new Progress(
                    prefixes,
                    loaded + (result == Result.LOADED ? 1 : 0),
                    computed + (result == Result.COMPUTED ? 1 : 0),
                    failed + (result == Result.FAILED ? 1 : 0),
                    done);
        }

        private Progress over() {
            return new Progress(prefixes, loaded, computed, failed, true);
        }
    }

    private final InstanceControl control;
    private final Membership membership;
    private final HandoffFlow flow;
    private final boolean toEach;
    private final RouterMetrics metrics;
    private final Map<String, Progress> known = new ConcurrentHashMap<>();

    /**
     * @param flow of the router's requests
     * @param toEach whether all instances that stay get each prefix; else one does, where the router knows the blocks of each
     */
    public CacheHandover(
            InstanceControl control, Membership membership, HandoffFlow flow, boolean toEach, RouterMetrics metrics) {
        this.control = control;
        this.membership = membership;
        // An instance that leaves may be one of decode, which is known to no flow that sends both legs at once.
        this.flow =
                flow instanceof ContentKeyedFlow || flow instanceof MooncakeFlow ? flow : new KvTransferParamsFlow();
        this.toEach = toEach;
        this.metrics = metrics;
    }

    /** How far the hand-over of the instance at that address is; empty if there was none. Any thread. */
    public Optional<Progress> progress(String url) {
        return Optional.ofNullable(known.get(url));
    }

    /** Begins, unless a hand-over of that instance is under way. Forgets instances that were removed. Any thread. */
    @SuppressWarnings("ReferenceEquality") // one that is under way may be equal to one that begins
    public void begin(Instance leaving, List<Instance> staying) {
        known.entrySet().removeIf(each -> each.getValue().done() && !membership.isKnown(each.getKey()));
        Progress begun = new Progress(0, 0, 0, 0, false);
        Progress now = known.compute(leaving.url(), (_, old) -> old == null || old.done() ? begun : old);
        if (now == begun) {
            control.context().runOnContext(_ -> run(leaving, staying));
        }
    }

    private void run(Instance leaving, List<Instance> staying) {
        long started = control.nanos();
        control.ask(leaving, HttpMethod.GET, "/v1/hot_prefixes?tokens=" + MOST_TOKENS, Buffer.buffer(), MOST_ANSWER)
                .compose(answer -> answer.status() == 200
                        ? Future.succeededFuture(prefixes(answer))
                        : Future.failedFuture("GET /v1/hot_prefixes answers " + answer.status()))
                .compose(prefixes -> {
                    known.put(leaving.url(), new Progress(prefixes.size(), 0, 0, 0, false));
                    Promise<Void> done = Promise.promise();
                    next(leaving, staying, prefixes, started, done);
                    return done.future();
                })
                .onComplete(end -> {
                    Progress progress = known.computeIfPresent(leaving.url(), (_, last) -> last.over());
                    if (end.failed()) {
                        log.warn(
                                "{}: its cache is lost: {}",
                                leaving,
                                end.cause().getMessage());
                    } else {
                        log.info("{}: its cache is with {}: {}", leaving, staying, progress);
                    }
                });
    }

    /** Bodies of completions for one token. */
    private static List<JsonObjectText> prefixes(Question.Answer answer) {
        List<JsonObjectText> bodies = new ArrayList<>();
        try {
            for (JsonNode prefix : MAPPER.readTree(answer.body().getBytes()).path("prefixes")) {
                ObjectNode body = MAPPER.createObjectNode().put("max_tokens", 1).put("temperature", 0);
                body.set("prompt", prefix.path("token_ids"));
                if (prefix.path("cache_salt").isString()) {
                    body.set("cache_salt", prefix.path("cache_salt"));
                }
                bodies.add(JsonObjectText.parse("a prefix", MAPPER.writeValueAsBytes(body)));
            }
        } catch (JacksonException e) {
            throw new ConfigException("prefixes", "not valid JSON: " + e.getOriginalMessage(), e);
        }
        return bodies;
    }

    /** Futures that are composed for each prefix would complete one within the other: the stack is too small for thousands. */
    private void next(
            Instance leaving, List<Instance> staying, List<JsonObjectText> rest, long started, Promise<Void> done) {
        if (rest.isEmpty() || staying.isEmpty() || control.nanos() - started > LONGEST.toNanos()) {
            done.complete();
            return;
        }
        List<Instance> takers = toEach ? staying : List.of(staying.get(rest.size() % staying.size()));
        Future.all(takers.stream()
                        .map(each -> move(leaving, each, rest.getFirst())
                                .otherwise(failure -> {
                                    log.warn("{} lacks a prefix of {}: {}", each, leaving, failure.getMessage());
                                    return Result.FAILED;
                                })
                                .onSuccess(result -> {
                                    metrics.count(RouterMetric.PREFIXES_TAKEN_OVER, result);
                                    known.computeIfPresent(leaving.url(), (_, last) -> last.plus(result));
                                }))
                        .toList())
                .onComplete(_ -> next(leaving, staying, rest.subList(1, rest.size()), started, done));
    }

    /** Sends both legs. The other instance computes a prefix without kept blocks. */
    private Future<Result> move(Instance leaving, Instance to, JsonObjectText body) {
        HandoffFlow.Handoff plan = flow.begin(body, "prefix-" + UUID.randomUUID(), leaving, to);
        return control.complete(leaving, plan.requestId(), plan.prefillBody(), EACH_LEG, MOST_ANSWER)
                .map(answer ->
                        answer.status() == 200 ? Optional.of(decodeBody(plan, answer)) : Optional.<Buffer>empty())
                .otherwise(Optional.empty())
                .compose(loading -> control.complete(
                                to, plan.requestId(), loading.orElseGet(body::text), EACH_LEG, MOST_ANSWER)
                        .compose(answer -> answer.status() == 200
                                ? Future.succeededFuture(loading.isPresent() ? Result.LOADED : Result.COMPUTED)
                                : Future.failedFuture("it answers " + answer.status() + ": " + answer.quoted())));
    }

    private static Buffer decodeBody(HandoffFlow.Handoff plan, Question.Answer answer) {
        return switch (plan.decode()) {
            case HandoffFlow.AtOnce atOnce -> atOnce.body().get();
            case HandoffFlow.AfterPrefill after ->
                after.body()
                        .apply(JsonObjectText.parse("the answer", answer.body().getBytes()))
                        .text();
        };
    }
}
