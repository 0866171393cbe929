package baton.engine.core;

import baton.engine.EngineListener;
import baton.engine.EngineListener.PromptTokens;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.engine.TokenLogprobs;
import baton.engine.core.Scheduler.LoadFailure;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.KvLayout;
import baton.kv.Ticker;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Gives the results of steps to the listeners of requests and of the engine: tokens, and ends with their statistics. */
final class Publisher {
    private static final Logger LOG = LoggerFactory.getLogger(EngineCore.class);

    private final Scheduler scheduler;
    private final HeldAnswers held;
    private final Set<Integer> eosTokens;
    private final EngineListener listener;
    private final Ticker ticker;
    /** The layout of all ranks' pools together. */
    private final KvLayout layout;

    private long listenerFailures;

    Publisher(
            Scheduler scheduler,
            HeldAnswers held,
            Set<Integer> eosTokens,
            EngineListener listener,
            Ticker ticker,
            KvLayout layout) {
        this.scheduler = scheduler;
        this.held = held;
        this.eosTokens = eosTokens;
        this.listener = listener;
        this.ticker = ticker;
        this.layout = layout;
    }

    /** A request has its next token. */
    void take(Request request, Sampled token) {
        request.append(token.id());
        long now = ticker.nanos();
        if (request.firstTokenNanos == 0) {
            request.firstTokenNanos = now;
            PromptTokens prompt = promptTokens(request);
            tell(() -> listener.onFirstToken((now - request.arrivalNanos()) / 1e9, prompt));
        } else {
            long before = request.lastTokenNanos;
            tell(() -> listener.onNextToken((now - before) / 1e9));
        }
        request.lastTokenNanos = now;
        give(request, token, request.outputLength());
    }

    /**
     * Gives the output that another instance has generated to the request's listener and sampler. Where the output is complete with it, the
     * request ends.
     */
    void replay(Request request) {
        int[] generated = request.tokens(request.outputStart(), request.promptLength());
        boolean scored = request.sampling().logprobs().isPresent();
        try {
            for (int i = 0; i < generated.length; i++) {
                if (!isLive(request)) {
                    LOG.warn("{} ends before {} of its {} tokens to continue", request, i, generated.length);
                    return;
                }
                int id = generated[i];
                request.sampler().advance(id);
                Optional<TokenLogprobs> logprobs =
                        scored ? Optional.of(new TokenLogprobs(id, 0, 0, List.of())) : Optional.empty();
                give(request, new Sampled(id, logprobs), i + 1);
            }
        } catch (RuntimeException e) {
            fail(request, "its output cannot be continued: " + e.getMessage());
        }
    }

    /** @param length of the output with this token */
    private void give(Request request, Sampled token, int length) {
        boolean stops = request.stopsAt(token.id(), length, eosTokens);
        Optional<String> stopString = request.listener().onToken(token, stops);
        if (stopString.isPresent()) {
            finish(request, FinishReason.STOP, stopString.map(s -> s), Optional.empty());
        } else if (stops) {
            // An end-of-text token is the ordinary end and has no stop reason, as in vLLM.
            boolean eos = eosTokens.contains(token.id()) && !request.sampling().ignoreEos();
            finish(request, FinishReason.STOP, eos ? Optional.empty() : Optional.of(token.id()), Optional.empty());
        } else if (length >= request.maxTokens()) {
            finish(request, FinishReason.LENGTH, Optional.empty(), Optional.empty());
        }
    }

    /** Caches hold less of a request than it requires. */
    void endForCacheMiss(Request request) {
        finish(request, FinishReason.CACHE_THRESHOLD, Optional.empty(), Optional.empty());
    }

    void fail(LoadFailure failure) {
        if (failure.request().missesCacheThreshold(failure.request().computedTokens)) {
            endForCacheMiss(failure.request());
            return;
        }
        fail(
                failure.request(),
                "KV load failed: " + failure.invalidBlocks()
                        + " of its blocks could not be loaded, or are not those of the model (kv_load_failure_policy=fail)");
    }

    void fail(Request request, String why) {
        if (isLive(request)) {
            LOG.error("Failing {}: {}", request, why);
            finish(request, FinishReason.ERROR, Optional.empty(), Optional.of(why));
        }
    }

    private boolean isLive(Request request) {
        return scheduler.find(request.id()).filter(found -> found == request).isPresent();
    }

    /**
     * Ends a request. Its answer is given when the connector does not hold it any more; that of an aborted or failed one, and of one that misses its cache
     * threshold, at once.
     */
    void finish(Request request, FinishReason reason, Optional<Object> stopReason, Optional<String> error) {
        // An output that was complete when it came has no keys and values here.
        RequestEnd end = request.everScheduled || reason == FinishReason.ERROR ? end(reason) : RequestEnd.ABORTED;
        Release release = scheduler.finish(request, end);
        boolean unanswerable = release.error().isPresent() && end != RequestEnd.ABORTED && error.isEmpty();
        if (unanswerable) {
            LOG.error("Failing {}: {}", request, release.error().get());
        }
        FinishReason told = unanswerable ? FinishReason.ERROR : reason;
        Runnable answer = () -> {
            RequestStats stats = stats(request, told);
            tell(() -> listener.onFinished(stats));
            tell(() -> request.listener()
                    .onFinished(
                            told,
                            unanswerable ? Optional.empty() : stopReason,
                            stats,
                            release.kvTransferParams(),
                            unanswerable ? release.error() : error));
        };
        if (end == RequestEnd.ABORTED || told == FinishReason.ERROR) {
            answer.run();
        } else {
            held.giveWhenReady(request.id(), release.answerIsHeld(), answer);
        }
    }

    private static RequestEnd end(FinishReason reason) {
        return switch (reason) {
            case STOP -> RequestEnd.STOPPED;
            case LENGTH -> RequestEnd.LENGTH;
            case ABORT, CACHE_THRESHOLD -> RequestEnd.ABORTED;
            case ERROR -> RequestEnd.ERROR;
        };
    }

    /** Calls the listener; an exception of it is logged and counted and does not end the engine. */
    void tell(Runnable call) {
        try {
            call.run();
        } catch (RuntimeException e) {
            listenerFailures++;
            LOG.error("A listener failed", e);
        }
    }

    private RequestStats stats(Request request, FinishReason reason) {
        long now = ticker.nanos();
        long scheduled = request.firstScheduledNanos == 0 ? now : request.firstScheduledNanos;
        long first = request.firstTokenNanos == 0 ? now : request.firstTokenNanos;
        return new RequestStats(
                request.id(),
                reason,
                request.outputStart(),
                request.outputLength(),
                request.replayed(),
                request.maxTokens(),
                promptTokens(request),
                seconds(request.arrivalNanos(), scheduled),
                seconds(scheduled, first),
                seconds(first, now),
                seconds(request.arrivalNanos(), now),
                new RequestTimes(
                        request.load.times(request.arrivalNanos(), layout.blockSize(), layout.blockBytes()),
                        sinceArrival(request, request.firstScheduledNanos),
                        sinceArrival(request, request.firstTokenNanos),
                        seconds(request.arrivalNanos(), now),
                        request.preemptions));
    }

    /** Seconds from arrival until then; empty if then is 0, not yet. */
    private static OptionalDouble sinceArrival(Request request, long then) {
        return then == 0 ? OptionalDouble.empty() : OptionalDouble.of(seconds(request.arrivalNanos(), then));
    }

    private static PromptTokens promptTokens(Request request) {
        int computed = request.everScheduled ? request.outputStart() - request.localHit - request.externalHit : 0;
        return new PromptTokens(computed, request.localHit, request.externalHit);
    }

    private static double seconds(long from, long to) {
        return (to - from) / 1e9;
    }

    /** Exceptions of listeners since the last call. */
    long takeListenerFailures() {
        long taken = listenerFailures;
        listenerFailures = 0;
        return taken;
    }
}
