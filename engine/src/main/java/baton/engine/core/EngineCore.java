package baton.engine.core;

import baton.engine.ConnectorCall;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineListener.PromptTokens;
import baton.engine.EngineListener.RequestStats;
import baton.engine.EngineListener.StepStats;
import baton.engine.EngineListener.StepTimes;
import baton.engine.EngineStatus;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.engine.StepPhase;
import baton.engine.core.Scheduler.LoadFailure;
import baton.engine.core.Scheduler.Outcome;
import baton.engine.core.Scheduler.Slice;
import baton.engine.core.Scheduler.Step;
import baton.engine.core.Workers.StepReport;
import baton.engine.model.Logits;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.sampling.Sampler;
import baton.engine.sampling.Sampler.Choice;
import baton.engine.sampling.Sampler.LogitRow;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvLayout;
import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The engine's core as a loop body: {@link #step} schedules, runs the model, samples and publishes. One thread owns it, the first
 * that adds a request or does a step; methods are for that thread unless they say otherwise. It starts no thread and reads no clock
 * but its ticker, so a whole cluster of cores can run step by step in a test.
 */
public final class EngineCore implements AutoCloseable {
    private static final String CONNECTOR_FAILURES = "baton:kv_connector_failures";
    private static final Logger LOG = LoggerFactory.getLogger(EngineCore.class);

    /** Limit of the memory for logits of prompt tokens in one step; rows over the whole vocabulary are large. */
    private static final int PROMPT_LOGITS_BYTES = 64 << 20;

    private final OwnerThread owner = OwnerThread.firstToCheck();
    private final Scheduler scheduler;
    private final BlockPool pool;
    private final Workers workers;
    private final Optional<SchedulerConnector> connector;
    private final ConnectorFailures failures;
    private boolean connectorIsOff;
    private final Set<Integer> eosTokens;
    private final EngineListener listener;
    private final Ticker ticker;
    private final Sampler sampler;
    private final StepClock clock;
    /** Of all ranks' pools together. */
    private final KvLayout layout;

    private volatile Optional<JsonFields> advertisedKvTransferParams;
    private long listenerFailures;
    private final HeldAnswers held = new HeldAnswers();
    /** The step before left work that can be computed at once. */
    private boolean busy;

    /**
     * @param runner the model, closed with this core
     * @param eosTokens ids that end a text
     */
    public EngineCore(
            EngineConfig config,
            ModelRunner runner,
            Set<Integer> eosTokens,
            Optional<KvConnector> kvConnector,
            EngineListener listener,
            Ticker ticker) {
        this(config, ModelRanks.of(runner), eosTokens, kvConnector, listener, ticker, () -> {});
    }

    /**
     * @param ranks the model, closed with this core; of several ranks each has a thread
     * @param eosTokens ids that end a text
     * @param wake called by any thread when the connector has something to report while nothing is computed
     */
    public EngineCore(
            EngineConfig config,
            ModelRanks ranks,
            Set<Integer> eosTokens,
            Optional<KvConnector> configured,
            EngineListener listener,
            Ticker ticker,
            Runnable wake) {
        ModelRunner runner = ranks.first();
        Optional<KvConnector> kvConnector = configured.map(c -> Workers.staged(c, config.kvTransfer(), runner.cache()));
        this.layout = ranks.layout();
        this.clock = new StepClock(ticker);
        this.failures = new ConnectorFailures(ticker);
        Function<ModelRunner, ConnectorContext> context = each -> new ConnectorContext(
                config.kvTransfer(),
                each.fingerprint(),
                each.cache().layout(),
                ranks.layout(),
                ranks.tensorParallelSize(),
                ranks.pipelineParallelSize(),
                ticker,
                wake);
        this.connector = kvConnector.map(c -> new GuardedScheduler(c.scheduler(context.apply(runner)), failures));
        try {
            this.workers =
                    new Workers(ranks, config.parallel().cpuBinding(), kvConnector, context, ticker, clock, failures);
        } catch (RuntimeException | Error e) {
            connector.ifPresent(SchedulerConnector::close);
            throw e;
        }
        try {
            Map<Rank, HandshakeMetadata> handshakes = workers.handshakes();
            if (!handshakes.isEmpty()) {
                connector.orElseThrow().onHandshakeMetadata(handshakes);
            }
            this.advertisedKvTransferParams = connector.flatMap(SchedulerConnector::advertisedKvTransferParams);
        } catch (RuntimeException | Error e) {
            workers.close();
            connector.ifPresent(SchedulerConnector::close);
            throw e;
        }
        CacheEvents cacheEvents = new CacheEvents(config.kvEvents(), config.blockSize());
        this.pool = new BlockPool(runner.cache().blocks(), cacheEvents);
        this.scheduler = new Scheduler(
                pool,
                cacheEvents,
                new SchedulerConfig(
                        layout.blockSize(),
                        config.maxNumSeqs(),
                        config.maxNumBatchedTokens(),
                        Math.max(1, PROMPT_LOGITS_BYTES / (runner.config().vocabularySize() * Float.BYTES)),
                        config.schedulingPolicy(),
                        config.longPrefillTokenThreshold(),
                        config.enablePrefixCaching(),
                        config.kvTransfer().loadFailurePolicy()),
                connector,
                ticker);
        this.eosTokens = Set.copyOf(eosTokens);
        this.listener = listener;
        this.ticker = ticker;
        this.sampler = new Sampler(runner.config().vocabularySize(), eosTokens);
    }

    /** Queues a request. Its id must not be in use. A connector that refuses it ends it with an error. */
    public void add(Request request) {
        owner.check();
        request.sampleWith(sampler);
        scheduler.add(request).ifPresent(why -> fail(request, why));
    }

    /** See {@link SchedulerConnector#advertisedKvTransferParams}. Does not change, except that a connector or child of one that fails has none; any thread. */
    public Optional<JsonFields> advertisedKvTransferParams() {
        return failures.any() ? Optional.empty() : advertisedKvTransferParams;
    }

    /** Passes on that a request was rejected before it was added; see {@link SchedulerConnector#onRefused}. */
    public void refused(String id, JsonFields kvTransferParams) {
        owner.check();
        connector.ifPresent(c -> c.onRefused(id, kvTransferParams));
    }

    /** True while a request of that id runs, or has ended and a transfer still uses its blocks. */
    public boolean knows(String id) {
        return scheduler.knows(id) || held.isHeld(id);
    }

    /** Ids that end a text. */
    public Set<Integer> eosTokens() {
        return eosTokens;
    }

    /** Ends a request, if it is there. */
    public void abort(String id) {
        owner.check();
        held.release(id);
        scheduler
                .find(id)
                .ifPresent(request -> finish(request, FinishReason.ABORT, Optional.empty(), Optional.empty()));
    }

    /** The answer to a request, which may have several samples, reached nobody: blocks are kept for no one who would learn of them from it. */
    public void answerLost(String requestId) {
        owner.check();
        scheduler.answerLost(requestId);
    }

    /** Ends all requests. */
    public void endAll(FinishReason reason, String why) {
        owner.check();
        held.releaseAll();
        for (Request request : scheduler.requests()) {
            try {
                finish(
                        request,
                        reason,
                        Optional.empty(),
                        reason == FinishReason.ERROR ? Optional.of(why) : Optional.empty());
            } catch (RuntimeException e) {
                LOG.error("Ending {} failed", request, e);
            }
        }
    }

    /** The call of the connector that has lasted longest, if there is one that has not returned; any thread. */
    public Optional<ConnectorCall> longestConnectorCall() {
        return failures.longestCall();
    }

    /** True while {@link #step} has something to do, if only to ask the connector. */
    public boolean hasWork() {
        return scheduler.hasWork() || !held.isEmpty();
    }

    /** Whether values that were computed are on their way to a store. */
    public boolean isStoring() {
        return scheduler.isStoring();
    }

    public boolean resetPrefixCache() {
        owner.check();
        return scheduler.resetPrefixCache();
    }

    public EngineStatus status(Optional<String> failure) {
        return new EngineStatus(
                scheduler.runningCount(),
                scheduler.waitingCount(),
                scheduler.waitingToLoadCount(),
                scheduler.waitingForRemoteKvCount(),
                scheduler.waitingLoadedCount(),
                scheduler.awaitingReleaseCount(),
                pool.size(),
                pool.used(),
                isStoring(),
                failure,
                Optional.empty());
    }

    /** Does one step. False if nothing was computed or loaded: the caller may wait a little before the next step. */
    public boolean step() {
        owner.check();
        if (!busy) {
            clock.reset();
        }
        clock.enter(StepPhase.SCHEDULE);
        long start = ticker.nanos();
        Scheduler.Counters before = scheduler.counters().copy();
        switchOffIfFailed(scheduler.takenBack());
        Step scheduled = scheduler.schedule();
        if (!failures.any()) {
            workers.startLoad(scheduled.metadata());
        }
        switchOffIfFailed(scheduled.preempted());
        Step step = scheduled.ofRunning();
        clock.enter(StepPhase.SCHEDULE);
        for (Slice slice : step.slices()) {
            if (slice.request().firstScheduledNanos == 0) {
                slice.request().firstScheduledNanos = start;
            }
        }
        int generated = 0;
        boolean loaded;
        List<Measurement> measurements = new ArrayList<>();
        try (StepLogits logits = execute(step)) {
            StepReport reported = workers.report(step.finished());
            // A worker that has failed does not report, so what the others say is not of all ranks.
            StepReport report = switchOffIfFailed(Set.of()) ? reported.measurementsOnly() : reported;
            loaded = !report.merged().received().isEmpty();
            clock.enter(StepPhase.SCHEDULE);
            measurements.addAll(report.merged().measurements());
            Outcome outcome = scheduler.executed(
                    logits.failure().isEmpty() ? step : step.notComputed(), report, logits.notFinite());
            // Before the step's results: a client that has an answer finds what it took in the metrics.
            measurements.addAll(scheduler.takeMeasurements());
            countScheduler(before, scheduler.counters(), measurements);
            if (measurements.stream().anyMatch(each -> each.name().equals(CONNECTOR_FAILURES))) {
                // A child of a connector has been switched off: its address must not be announced any more.
                advertisedKvTransferParams = connector.flatMap(SchedulerConnector::advertisedKvTransferParams);
            }
            count(CONNECTOR_FAILURES, failures.take(), measurements);
            count("baton:listener_failures", takeListenerFailures(), measurements);
            clock.enter(StepPhase.PUBLISH);
            if (!measurements.isEmpty()) {
                tell(() -> listener.onMeasurements(measurements));
            }
            List<KvEvent> events = scheduler.takeEvents();
            if (!events.isEmpty()) {
                tell(() -> listener.onKvEvents(events));
            }
            step.refused().forEach(this::fail);
            outcome.failures().forEach(this::fail);
            if (logits.failure().isPresent()) {
                String why = logits.failure().get();
                step.slices().forEach(slice -> fail(slice.request(), why));
            } else {
                generated = sample(step, outcome, logits);
            }
        }
        held.releaseReady();
        boolean computed = !step.slices().isEmpty();
        Scheduler.Counters after = scheduler.counters();
        StepStats stats = new StepStats(
                step.tokens(),
                generated,
                step.preempted().size(),
                after.prefixQueries - before.prefixQueries,
                after.prefixHits - before.prefixHits,
                after.externalQueries - before.externalQueries,
                after.externalHits - before.externalHits,
                (ticker.nanos() - start) / 1e9,
                status(Optional.empty()));
        tell(() -> listener.onStep(stats));
        busy = computed && hasWork();
        StepTimes times = clock.end(step.slices().size(), step.tokens());
        if (computed) {
            tell(() -> listener.onStepTimes(times));
        }
        return computed || loaded;
    }

    /**
     * Closes a connector that has thrown something, so that its transfers end, and goes on without it; the headed comment in
     * {@link Scheduler} says why that is safe. No rank runs meanwhile.
     *
     * @param takenBack requests that lost blocks which a transfer may use
     * @return true if it has failed since the last call
     * @throws IllegalStateException if blocks are free that its transfers may use for ever
     */
    private boolean switchOffIfFailed(Set<String> takenBack) {
        if (connectorIsOff || !failures.any()) {
            return false;
        }
        connectorIsOff = true;
        scheduler.copyHiddenStates();
        boolean closed = failures.guard("close", false, () -> {
            workers.disconnect();
            return true;
        });
        failures.guard("close", () -> connector.ifPresent(SchedulerConnector::close));
        if (!closed) {
            if (!takenBack.isEmpty()) {
                throw new IllegalStateException(
                        "The connector failed, could not be closed, and may use blocks of requests " + takenBack
                                + " that were preempted");
            }
            LOG.error("The connector could not be closed: the blocks that it may use stay in use until a restart");
        }
        scheduler.disconnected(closed).forEach(this::fail);
        return true;
    }

    @Override
    public void close() {
        try {
            workers.close();
        } finally {
            connector.ifPresent(SchedulerConnector::close);
        }
    }

    /** The blocks that the prefix cache would find. */
    Set<BlockHash> cachedHashes() {
        return pool.cachedHashes();
    }

    /** @throws IllegalStateException naming the first broken invariant */
    public void checkInvariants() {
        scheduler.checkInvariants();
    }

    private StepLogits execute(Step step) {
        clock.enter(StepPhase.BATCH);
        List<SequenceSlice> slices = new ArrayList<>(step.slices().size());
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            int end = slice.start() + slice.count();
            slices.add(new SequenceSlice(
                    request.tokens(slice.start(), end),
                    slice.start(),
                    request.blocks.toArray(),
                    logitsWanted(slice),
                    Optional.ofNullable(request.hidden)));
        }
        Map<Integer, String> hiddenOf = workers.wantHidden() ? promptEnds(step.slices()) : Map.of();
        try {
            Optional<Logits> logits = workers.forward(slices, hiddenOf);
            try {
                Set<Request> notFinite =
                        logits.map(each -> notFinite(step, each)).orElse(Set.of());
                if (slices.stream().anyMatch(slice -> slice.hidden().isEmpty())) {
                    workers.finishSaves(notFinite.stream()
                            .filter(request -> !request.warmsUp())
                            .map(Request::id)
                            .collect(Collectors.toSet()));
                }
                return new StepLogits(logits, Optional.empty(), notFinite);
            } catch (RuntimeException | Error e) {
                logits.ifPresent(Logits::close);
                throw e;
            }
        } catch (RuntimeException | OutOfMemoryError e) {
            // The requests of this step are lost; what is cached from earlier steps is untouched, so other requests
            // continue.
            LOG.error(
                    "A step of {} tokens in {} requests failed",
                    step.tokens(),
                    step.slices().size(),
                    e);
            return new StepLogits(Optional.empty(), Optional.of("The model failed: " + e.getMessage()), Set.of());
        }
    }

    private static Set<Request> notFinite(Step step, Logits logits) {
        Set<Request> found = new HashSet<>();
        int row = 0;
        for (Slice slice : step.slices()) {
            for (int end = row + logitsWanted(slice); row < end; row++) {
                if (!logits.isFinite(row)) {
                    found.add(slice.request());
                }
            }
        }
        return found;
    }

    /** The requests whose prompts end with a slice, by its index. */
    private static Map<Integer, String> promptEnds(List<Slice> slices) {
        Map<Integer, String> ends = new HashMap<>();
        for (int i = 0; i < slices.size(); i++) {
            Slice slice = slices.get(i);
            if (slice.count() > 0
                    && !slice.request().warmsUp()
                    && slice.start() + slice.count() == slice.request().promptLength()) {
                ends.put(i, slice.request().id());
            }
        }
        return ends;
    }

    private static int logitsWanted(Slice slice) {
        Request request = slice.request();
        int end = slice.start() + slice.count();
        if (request.lacksPromptLogprobs(slice.start())) {
            return slice.count();
        }
        return end == request.length() ? 1 : 0;
    }

    private int sample(Step step, Outcome outcome, StepLogits batch) {
        List<Request> chosenFor = new ArrayList<>();
        List<LogitRow> wanted = new ArrayList<>();
        clock.enter(StepPhase.SAMPLING);
        int row = 0;
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            int rows = logitsWanted(slice);
            int firstRow = row;
            row += rows;
            if (rows == 0
                    || request.state == Request.State.FINISHED
                    || !outcome.valid().contains(request)) {
                continue;
            }
            try {
                if (request.lacksPromptLogprobs(slice.start())) {
                    promptLogprobs(slice, batch.logits().orElseThrow(), firstRow);
                }
                if (request.computedTokens == request.length()) {
                    chosenFor.add(request);
                    wanted.add(new LogitRow(request.sampler(), firstRow + rows - 1));
                }
            } catch (RuntimeException e) {
                samplingFailed(request, e);
            }
        }
        List<Choice> choices =
                wanted.isEmpty() ? List.of() : choose(batch.logits().orElseThrow(), wanted);
        clock.enter(StepPhase.PUBLISH);
        int generated = 0;
        for (int i = 0; i < wanted.size(); i++) {
            Request request = chosenFor.get(i);
            try {
                switch (choices.get(i)) {
                    case Choice.Chosen(Sampled token) -> {
                        take(request, token);
                        generated++;
                    }
                    case Choice.NoneLeft() -> finish(request, FinishReason.STOP, Optional.empty(), Optional.empty());
                    case Choice.Failed(RuntimeException cause) -> samplingFailed(request, cause);
                }
            } catch (RuntimeException e) {
                samplingFailed(request, e);
            }
        }
        return generated;
    }

    private List<Choice> choose(Logits logits, List<LogitRow> wanted) {
        try {
            return workers.withThreads(threads -> sampler.choose(logits, wanted, threads));
        } catch (RuntimeException e) {
            return Collections.nCopies(wanted.size(), new Choice.Failed(e));
        }
    }

    private void samplingFailed(Request request, RuntimeException cause) {
        LOG.error("Sampling failed for {}", request, cause);
        fail(request, "Sampling failed: " + cause.getMessage());
    }

    /** Row i of a slice predicts the token after its i-th; the last prompt token's row predicts output, not prompt. */
    private void promptLogprobs(Slice slice, Logits logits, int firstRow) {
        Request request = slice.request();
        int start = Math.max(slice.start(), request.promptLogprobsReported);
        int end = Math.min(slice.start() + slice.count(), request.promptLength() - 1);
        if (end > start) {
            int[] next = request.tokens(start + 1, end + 1);
            request.listener()
                    .onPromptLogprobs(sampler.promptLogprobs(
                            logits,
                            firstRow + start - slice.start(),
                            next,
                            request.sampling().promptLogprobs().orElseThrow()));
            request.promptLogprobsReported = end;
        }
    }

    private void take(Request request, Sampled token) {
        request.append(token.id());
        long now = ticker.nanos();
        if (request.firstTokenNanos == 0) {
            request.firstTokenNanos = now;
            PromptTokens prompt = new PromptTokens(computed(request), request.localHit, request.externalHit);
            tell(() -> listener.onFirstToken((now - request.arrivalNanos()) / 1e9, prompt));
        } else {
            long before = request.lastTokenNanos;
            tell(() -> listener.onNextToken((now - before) / 1e9));
        }
        request.lastTokenNanos = now;
        boolean stops = request.stopsAt(token.id(), eosTokens);
        Optional<String> stopString = request.listener().onToken(token, stops);
        if (stopString.isPresent()) {
            finish(request, FinishReason.STOP, stopString.map(s -> s), Optional.empty());
        } else if (stops) {
            // An end-of-text token is the ordinary end and has no stop reason, as in vLLM.
            boolean eos = eosTokens.contains(token.id()) && !request.sampling().ignoreEos();
            finish(request, FinishReason.STOP, eos ? Optional.empty() : Optional.of(token.id()), Optional.empty());
        } else if (request.isFull()) {
            finish(request, FinishReason.LENGTH, Optional.empty(), Optional.empty());
        }
    }

    private void fail(LoadFailure failure) {
        fail(
                failure.request(),
                "KV load failed: " + failure.invalidBlocks()
                        + " of its blocks could not be loaded (kv_load_failure_policy=fail)");
    }

    private void fail(Request request, String why) {
        if (scheduler.find(request.id()).filter(found -> found == request).isPresent()) {
            LOG.error("Failing {}: {}", request, why);
            finish(request, FinishReason.ERROR, Optional.empty(), Optional.of(why));
        }
    }

    private void finish(Request request, FinishReason reason, Optional<Object> stopReason, Optional<String> error) {
        RequestEnd end = switch (reason) {
            case STOP -> RequestEnd.STOPPED;
            case LENGTH -> RequestEnd.LENGTH;
            case ABORT -> RequestEnd.ABORTED;
            case ERROR -> RequestEnd.ERROR;
        };
        Release release = scheduler.finish(request, end);
        boolean unanswerable = release.error().isPresent() && reason != FinishReason.ABORT && error.isEmpty();
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
        if (told == FinishReason.ABORT || told == FinishReason.ERROR) {
            answer.run();
        } else {
            held.giveWhenReady(request.id(), release.answerIsHeld(), answer);
        }
    }

    /** Calls the listener; an exception of it is logged and counted and does not end the engine. */
    private void tell(Runnable call) {
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
                request.promptLength(),
                request.outputLength(),
                request.maxTokens(),
                computed(request),
                request.localHit,
                request.externalHit,
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

    private static int computed(Request request) {
        return request.everScheduled ? request.promptLength() - request.localHit - request.externalHit : 0;
    }

    private static double seconds(long from, long to) {
        return (to - from) / 1e9;
    }

    private long takeListenerFailures() {
        long taken = listenerFailures;
        listenerFailures = 0;
        return taken;
    }

    private static void countScheduler(
            Scheduler.Counters before, Scheduler.Counters after, List<Measurement> measurements) {
        count("baton:kv_unknown_reports", after.unknownReports - before.unknownReports, measurements);
        count("baton:kv_load_failed_requests", after.loadFailures - before.loadFailures, measurements);
        count("baton:kv_recomputed_tokens", after.recomputedTokens - before.recomputedTokens, measurements);
    }

    private static void count(String name, long value, List<Measurement> measurements) {
        if (value > 0) {
            measurements.add(Measurement.count(name, (double) value));
        }
    }
}
