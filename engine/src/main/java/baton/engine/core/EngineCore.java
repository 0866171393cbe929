package baton.engine.core;

import baton.engine.ConnectorCall;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineListener.StepStats;
import baton.engine.EngineListener.StepTimes;
import baton.engine.EngineStatus;
import baton.engine.FinishReason;
import baton.engine.StepPhase;
import baton.engine.core.Scheduler.Outcome;
import baton.engine.core.Scheduler.Slice;
import baton.engine.core.Scheduler.Step;
import baton.engine.core.Workers.StepReport;
import baton.engine.model.Logits;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.Comparison;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.sampling.Sampler;
import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.kv.VerifyKv;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
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
    private final Publisher publisher;
    private final SamplingStep sampling;
    private final StepClock clock;
    private volatile Optional<JsonFields> advertisedKvTransferParams;
    private final HeldAnswers held = new HeldAnswers();
    /** The step before left work that can be computed at once. */
    private boolean busy;
    /** The greatest distances of loaded keys and values that were right, by layers. */
    private final Map<String, Double> distances = new HashMap<>();

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
        KvLayout layout = ranks.layout();
        this.clock = new StepClock(ticker);
        this.failures = new ConnectorFailures(ticker);
        Function<ModelRunner, ConnectorContext> context = each -> new ConnectorContext(
                config.kvTransfer(),
                each.fingerprint(),
                each.cache().layout(),
                ranks.layout(),
                each.cache().groups(),
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
        CacheEvents cacheEvents = new CacheEvents(
                config.kvEvents(), config.blockSize(), runner.cache().groups());
        this.pool =
                new BlockPool(runner.cache().blocks(), runner.cache().groups(), cacheEvents, config.tenantCacheShare());
        this.scheduler = new Scheduler(
                pool,
                cacheEvents,
                new SchedulerConfig(
                        layout.blockSize(),
                        config.maxNumSeqs(),
                        config.maxNumBatchedTokens(),
                        Math.max(1, PROMPT_LOGITS_BYTES / (runner.config().vocabularySize() * Float.BYTES)),
                        config.schedulingPolicy(),
                        config.maxTokensOfRequest(),
                        config.enablePrefixCaching(),
                        config.kvTransfer().loadFailurePolicy(),
                        verifyKv(config.kvTransfer(), runner)),
                connector,
                ticker);
        this.eosTokens = Set.copyOf(eosTokens);
        this.listener = listener;
        this.ticker = ticker;
        this.sampler = new Sampler(runner.config().vocabularySize(), eosTokens);
        this.publisher = new Publisher(scheduler, held, this.eosTokens, listener, ticker, layout);
        this.sampling = new SamplingStep(sampler, workers, clock, publisher);
    }

    /** Queues a request. Its id must not be in use. A connector that refuses it ends it with an error. */
    public void add(Request request) {
        owner.check();
        request.sampleWith(sampler);
        scheduler.add(request).ifPresent(why -> publisher.fail(request, why));
        publisher.replay(request);
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
                .ifPresent(
                        request -> publisher.finish(request, FinishReason.ABORT, Optional.empty(), Optional.empty()));
    }

    /**
     * The answer to a request, which may have several samples, was lost. Blocks are not kept for a peer that needs the answer to find them.
     */
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
                publisher.finish(
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
            // A worker that has failed does not report, so the merged report is not of all ranks.
            StepReport report = switchOffIfFailed(Set.of()) ? reported.measurementsOnly() : reported;
            loaded = !report.merged().received().isEmpty();
            clock.enter(StepPhase.SCHEDULE);
            measurements.addAll(report.merged().measurements());
            Outcome outcome = scheduler.executed(
                    logits.failure().isEmpty() ? step : step.notComputed(),
                    report,
                    logits.notFinite(),
                    logits.failure().isEmpty()
                            ? deviating(step, report.merged().invalidBlocks(), measurements)
                            : Set.of());
            // Before the step's results: a client that has an answer finds its figures in the metrics.
            measurements.addAll(scheduler.takeMeasurements());
            countScheduler(before, scheduler.counters(), measurements);
            if (measurements.stream().anyMatch(each -> each.name().equals(CONNECTOR_FAILURES))) {
                // A child of a connector has been switched off: its address must not be announced any more.
                advertisedKvTransferParams = connector.flatMap(SchedulerConnector::advertisedKvTransferParams);
            }
            count(CONNECTOR_FAILURES, failures.take(), measurements);
            count("baton:listener_failures", publisher.takeListenerFailures(), measurements);
            clock.enter(StepPhase.PUBLISH);
            if (!measurements.isEmpty()) {
                publisher.tell(() -> listener.onMeasurements(measurements));
            }
            List<KvEvent> events = scheduler.takeEvents();
            if (!events.isEmpty()) {
                publisher.tell(() -> listener.onKvEvents(events));
            }
            step.refused().forEach(publisher::fail);
            step.cacheMisses().forEach(publisher::endForCacheMiss);
            outcome.failures().forEach(publisher::fail);
            if (logits.failure().isPresent()) {
                String why = logits.failure().get();
                step.slices().forEach(slice -> publisher.fail(slice.request(), why));
            } else {
                generated = sampling.sample(step, outcome, logits);
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
        publisher.tell(() -> listener.onStep(stats));
        busy = computed && hasWork();
        StepTimes times = clock.end(step.slices().size(), step.tokens());
        if (computed) {
            publisher.tell(() -> listener.onStepTimes(times));
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
        scheduler.disconnected(closed).forEach(publisher::fail);
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

    /** The blocks of a group that the prefix cache would find. */
    Set<BlockHash> cachedHashes(int group) {
        return pool.cachedHashes(group);
    }

    /** @throws IllegalStateException naming the first broken invariant */
    public void checkInvariants() {
        scheduler.checkInvariants();
    }

    private StepLogits execute(Step step) {
        clock.enter(StepPhase.BATCH);
        List<SequenceSlice> slices = new ArrayList<>(step.slices().size());
        Map<Integer, LoadedTokens> loaded = new HashMap<>();
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            int index = slices.size();
            scheduler.toCompare(request).ifPresent(tokens -> loaded.put(index, tokens));
            int end = slice.start() + slice.count();
            slices.add(new SequenceSlice(
                    request.tokens(slice.start(), end),
                    slice.start(),
                    request.blocks.toArrays(),
                    SamplingStep.logitsWanted(slice),
                    Optional.ofNullable(request.hidden)));
        }
        Map<Integer, String> hiddenOf = workers.wantHidden() ? promptEnds(step.slices()) : Map.of();
        try {
            Optional<Logits> logits = workers.forward(slices, hiddenOf, loaded);
            try {
                Set<Request> notFinite =
                        logits.map(each -> notFinite(step, each)).orElse(Set.of());
                if (slices.stream().anyMatch(slice -> slice.hidden().isEmpty())) {
                    Set<Request> wrong = new HashSet<>(notFinite);
                    workers.comparison()
                            .wrong()
                            .keySet()
                            .forEach(slice -> wrong.add(step.slices().get(slice).request()));
                    workers.finishSaves(wrong.stream()
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
            // The requests of this step are lost; blocks cached in earlier steps are untouched, so other requests
            // continue.
            LOG.error(
                    "A step of {} tokens in {} requests failed",
                    step.tokens(),
                    step.slices().size(),
                    e);
            return new StepLogits(Optional.empty(), Optional.of("The model failed: " + e.getMessage()), Set.of());
        }
    }

    /**
     * Requests of a step with loaded keys and values that differ from the model's.
     *
     * @param invalid blocks of loads that have failed, which were compared in vain
     */
    private Set<Request> deviating(Step step, Set<Integer> invalid, List<Measurement> measurements) {
        if (step.slices().isEmpty()) {
            return Set.of();
        }
        Set<Request> found = new HashSet<>();
        Comparison comparison = workers.comparison();
        distance("first", comparison.firstLayer(), measurements);
        distance("upper", comparison.upperLayers(), measurements);
        comparison.wrong().forEach((slice, deviation) -> {
            Request request = step.slices().get(slice).request();
            if (request.blocks.indicesOf(invalid).length > 0) {
                return;
            }
            found.add(request);
            VerifyKv level = scheduler.verifyKv();
            boolean last = level != VerifyKv.FULL
                    && deviation.position() >= step.slices().get(slice).start();
            String check = (last ? VerifyKv.LAST : level == VerifyKv.AUTO ? VerifyKv.FIRST_LAYER : level).configName();
            measurements.add(Measurement.count("baton:kv_verify_failures", 1, "check", check)
                    .of(request.id()));
            LOG.warn(
                    "Loaded keys and values of {} are not those of this model and prompt: of the token at {} they differ in layer {} by {} of their norm (verify_kv {})",
                    request,
                    deviation.position(),
                    deviation.layer(),
                    deviation.distance(),
                    check);
        });
        return found;
    }

    /** Measures how far right keys and values were from the model's, if they were further than all before. */
    private void distance(String layers, double greatest, List<Measurement> measurements) {
        if (greatest > distances.getOrDefault(layers, 0.0)) {
            distances.put(layers, greatest);
            measurements.add(Measurement.gauge("baton:kv_verify_distance", greatest, "layers", layers));
        }
    }

    /** @throws ConfigException if that is asked for and cannot be done */
    private static VerifyKv verifyKv(KvTransferConfig config, ModelRunner runner) {
        VerifyKv wanted = config.verifyKv();
        if (!runner.comparesLoaded()) {
            if (wanted != VerifyKv.AUTO && wanted != VerifyKv.OFF) {
                throw new ConfigException(
                        KvTransferConfig.VERIFY_KV,
                        "is " + wanted.configName() + ", but only models on the CPU can compare; use auto or off");
            }
            return VerifyKv.OFF;
        }
        if ((wanted == VerifyKv.FULL || wanted == VerifyKv.EACH_BLOCK)
                && runner.cache().groups().hasWindows()) {
            throw new ConfigException(
                    KvTransferConfig.VERIFY_KV,
                    "is " + wanted.configName()
                            + ", but blocks that the model's windows have left are not kept; set disable_hybrid_kv_cache_manager, or use first_layer");
        }
        return wanted;
    }

    private static Set<Request> notFinite(Step step, Logits logits) {
        Set<Request> found = new HashSet<>();
        int row = 0;
        for (Slice slice : step.slices()) {
            for (int end = row + SamplingStep.logitsWanted(slice); row < end; row++) {
                if (!logits.isFinite(row)) {
                    found.add(slice.request());
                }
            }
        }
        return found;
    }

    /** The requests with a prompt that ends with a slice, by the slice's index. */
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
