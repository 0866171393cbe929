package baton.engine.core;

import baton.engine.core.Workers.StepReport;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.kv.InvalidFieldException;
import baton.kv.KvEvent;
import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.kv.VerifyKv;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * The semantics are those of vLLM V1's scheduler, except for the following.
 *
 * A step
 *
 *   schedule() picks the tokens to compute under a budget: first the requests that are running, those with one token to compute
 *   before those in the middle of their prompt (so a long prompt never delays the next tokens of other requests), then waiting ones in
 *   order (of arrival, or of priority and arrival). Requests that continue an answer, as the client has its beginning, are the first in each
 *   order, and are admitted before prompts that are being computed take the budget. A prompt that does not fit the budget, or its share of it, is computed in
 *   chunks (chunked prefill); there is no other prefill.
 *   The model runs. executed() takes the workers' report and updates all requests.
 *
 * Blocks
 *
 *   A waiting request is admitted if its whole prompt fits the free blocks, less the blocks that running requests need to complete their prompts.
 *   If blocks run out all the same, the running request that is last in order loses its blocks and waits again.
 *   Blocks are published for sharing after the step that filled them, never before: a step may fail, a load may fail. Instead, while
 *   another request computes a request's next block, that one waits for the block, out of the queue, and then shares it. A request that
 *   waits for a load, or for its turn after it, has the rest of the blocks of its prompt reserved. So whatever is admitted can be
 *   completed: when all that run have ended, all that hold blocks fit together.
 *
 * Loads from elsewhere
 *
 *   The connector is asked about a request while none of its tokens are computed. A load within the step counts as computed at
 *   once; a load between steps parks the request, with its blocks, as WAITING_FOR_REMOTE_KVS. Loads from peers that were never reached may
 *   take until a deadline, so all of them together have a part of the blocks only. If the hidden state of the prompt's
 *   last token comes with all its KV, the request's first slice has no tokens: its next token is sampled from that. Blocks that fail to load cut the
 *   request's computed tokens at the first of them; by policy the rest is computed here or the request fails. Blocks that several requests
 *   share are computed again by the first of them; the other requests wait for it.
 *
 * Ends
 *
 *   The connector is notified of each end exactly once and may ask to keep the blocks until a worker reports them as sent. Blocks that a load is
 *   still writing to are kept until it is reported as over. Reports about unknown requests are counted and ignored.
 *
 * A connector that throws
 *
 *   It may have lost track of its transfers, so its later reports are ignored, and a transfer that it began may still be running: its own,
 *   or a peer's that reads or writes this pool. Until that is over no block that it may use can be handed out again. The connector's close
 *   ends all transfers, as it also precedes the end of the pool's memory. So the connector is closed, between the ranks' parts of a step,
 *   and then disconnected() is called: all loads under way are invalid, by policy these requests are computed here or fail; blocks that
 *   were kept for transfers are released; all other requests go on. Up to then onFinished counts as delayed. If the close fails too,
 *   transfers may go on for ever: all blocks that requests have at this time are withheld, which is to say that they are never handed out
 *   again. So are not the blocks that a preemption has just taken back; in that case the engine ends. An InvalidFieldException from
 *   onNewRequest or match is no failure: a client's parameter is refused, and that request ends with an error.
 *
 * Requests with a cache_hit_threshold
 *
 *   One ends when it would be scheduled, for the first time or after a preemption, if the prefix cache and the connector together have less
 *   of its tokens than it requires; and when a load that fails leaves it with less.
 *
 * Warming up
 *
 *   A request that warms up is scheduled in the same way, but its blocks are not published and the connector does not see it.
 */

/**
 * Decides what each step computes and which request has which blocks. Here are the order of a step and preemption; its parts are
 * {@link LiveRequests}, {@link Admission} of waiting requests, {@link RemoteLoads} and {@link DelayedReleases}. One thread owns it and its
 * parts; methods that change state check this.
 */
final class Scheduler {
    private static final Logger LOG = LoggerFactory.getLogger(Scheduler.class);

    /**
     * One request's part in a step.
     *
     * @param start position of the first token to compute
     * @param count tokens to compute; 0 if the hidden state of the token before came from elsewhere and is only to be sampled from
     */
    record Slice(Request request, int start, int count) {}

    /**
     * The tokens that a step computes, in the order of the batch.
     *
     * @param refused requests that must end, since the connector refuses them, with its reasons
     * @param cacheMisses requests that must end, since caches hold less of them than they require
     */
    record Step(
            List<Slice> slices,
            Set<String> finished,
            Set<String> preempted,
            Map<Request, String> refused,
            List<Request> cacheMisses,
            ConnectorMetadata metadata) {
        /** This step without the slices of requests that do not run any more. */
        Step ofRunning() {
            List<Slice> left = slices.stream()
                    .filter(slice -> slice.request().state == Request.State.RUNNING)
                    .toList();
            return new Step(left, finished, preempted, refused, cacheMisses, metadata);
        }

        /** This step without its slices, which were not computed. */
        Step notComputed() {
            return new Step(List.of(), finished, preempted, refused, cacheMisses, metadata);
        }

        int tokens() {
            int tokens = 0;
            for (Slice slice : slices) {
                tokens += slice.count();
            }
            return tokens;
        }
    }

    /** A request that must end because that many of its blocks could not be loaded. */
    record LoadFailure(Request request, int invalidBlocks) {}

    /**
     * The result of a step.
     *
     * @param valid slices that were computed from good KV, in the step's order
     * @param failures requests to end with an error
     */
    record Outcome(Set<Request> valid, List<LoadFailure> failures) {}

    /** Counts since the start. */
    static final class Counters {
        long prefixQueries;
        long prefixHits;
        long externalQueries;
        long externalHits;
        long preempted;
        /** Reports of connectors about requests that are not, or no longer, known. */
        long unknownReports;
        /** Requests that were scheduled again after a failed load, and the tokens they had to compute. */
        long loadFailures;

        long recomputedTokens;

        Counters copy() {
            Counters copy = new Counters();
            copy.prefixQueries = prefixQueries;
            copy.prefixHits = prefixHits;
            copy.externalQueries = externalQueries;
            copy.externalHits = externalHits;
            copy.preempted = preempted;
            copy.unknownReports = unknownReports;
            copy.loadFailures = loadFailures;
            copy.recomputedTokens = recomputedTokens;
            return copy;
        }
    }

    private final OwnerThread owner = OwnerThread.firstToCheck();
    private final SchedulerConfig config;
    private final KvCacheManager blocks;
    /** The order in which requests are served. */
    private final Comparator<Request> order;

    private final LiveRequests live;
    private final DelayedReleases releases;
    private final RemoteLoads loads;
    private final Admission admission;
    /** The connector, for calls that are about no request. */
    private final Optional<SchedulerConnector> connector;

    private final ConnectorView connectorView;
    private final Set<String> finishedSinceStep = new LinkedHashSet<>();
    private final Counters counters = new Counters();

    /** @param ticker for when loads begin and end; nothing is decided by it */
    Scheduler(
            BlockPool pool,
            CacheEvents events,
            SchedulerConfig config,
            Optional<SchedulerConnector> connector,
            Ticker ticker) {
        this.config = config;
        this.blocks = new KvCacheManager(pool, events, config);
        Comparator<Request> arrival = Comparator.comparingLong(request -> request.sequence);
        this.order = Comparator.comparing(Request::isFirst)
                .reversed()
                .thenComparing(
                        switch (config.policy()) {
                            case FCFS -> arrival;
                            case PRIORITY ->
                                Comparator.comparingInt(Request::priority).thenComparing(arrival);
                        });
        this.live = new LiveRequests(order, blocks);
        this.releases = new DelayedReleases(blocks);
        this.loads = new RemoteLoads(config, blocks, live, counters, ticker);
        this.connector = connector;
        this.connectorView = new ConnectorView(connector, live);
        this.admission = new Admission(config, blocks, live, releases, connectorView, loads, counters);
    }

    /** Queues a request. Returns the connector's reason if it refuses the request, which must then end. */
    Optional<String> add(Request request) {
        owner.check();
        live.add(request);
        try {
            connectorView.of(request).ifPresent(c -> {
                c.onNewRequest(request);
                if (c.isPrefilledElsewhere(request)) {
                    live.waiting().setToLoad(request, true);
                }
            });
            return Optional.empty();
        } catch (InvalidFieldException e) {
            return Optional.of(refusal(request, e));
        }
    }

    private static String refusal(Request request, InvalidFieldException e) {
        LOG.warn("The connector refuses {}: {}", request, e.getMessage());
        return "The connector refuses the request: " + e.getMessage();
    }

    boolean knows(String id) {
        return live.contains(id) || releases.contains(id);
    }

    Optional<Request> find(String id) {
        return live.find(id);
    }

    List<Request> requests() {
        return live.all();
    }

    int runningCount() {
        return live.running().size();
    }

    int waitingCount() {
        return live.waiting().size();
    }

    int waitingForRemoteKvCount() {
        return live.waiting().loadingCount();
    }

    /** Requests that need a load between steps which has not begun. */
    int waitingToLoadCount() {
        return live.waiting().toLoadCount();
    }

    int waitingLoadedCount() {
        return live.waiting().withBlocks().size() - waitingForRemoteKvCount();
    }

    int awaitingReleaseCount() {
        return releases.size();
    }

    Counters counters() {
        return counters;
    }

    /** True while steps are needed, with or without anything to compute. */
    boolean hasWork() {
        return !live.isEmpty()
                || !releases.isEmpty()
                || !finishedSinceStep.isEmpty()
                || blocks.hasEvents()
                || connector.map(SchedulerConnector::hasPendingWork).orElse(false);
    }

    boolean isStoring() {
        return connector.map(SchedulerConnector::isStoring).orElse(false);
    }

    boolean resetPrefixCache() {
        return releases.isEmpty()
                && blocks.reset()
                && connector.map(SchedulerConnector::resetCache).orElse(true);
    }

    List<KvEvent> takeEvents() {
        return blocks.takeEvents(connector.map(SchedulerConnector::takeEvents).orElse(List.of()));
    }

    List<Measurement> takeMeasurements() {
        return connector.map(SchedulerConnector::takeMeasurements).orElse(List.of());
    }

    Step schedule() {
        owner.check();
        StepPlan plan = new StepPlan(config);
        List<Request> decoding = new ArrayList<>(live.running().size());
        List<Request> prefilling = new ArrayList<>();
        for (Request request : live.running()) {
            (request.length() - request.computedTokens > 1 ? prefilling : decoding).add(request);
        }
        scheduleRunning(decoding, plan);
        if (plan.preempted().isEmpty()) {
            admission.admitFirst(plan);
        }
        scheduleRunning(prefilling, plan);
        if (plan.preempted().isEmpty()) {
            admission.admit(plan);
        }
        Map<Request, String> refused = new LinkedHashMap<>();
        plan.refused().forEach((request, why) -> refused.put(request, refusal(request, why)));
        List<Slice> slices = plan.slices();
        Set<String> finished = finishedSinceStep.isEmpty()
                ? Set.of()
                : Collections.unmodifiableSet(new LinkedHashSet<>(finishedSinceStep));
        finishedSinceStep.clear();
        Set<String> preempted = new HashSet<>(plan.preempted());
        preempted.addAll(loads.takenBack());
        loads.forgetTakenBack();
        ConnectorMetadata metadata = connectorView.metadata(slices, finished, preempted);
        return new Step(slices, finished, preempted, refused, plan.cacheMisses(), metadata);
    }

    private void scheduleRunning(List<Request> running, StepPlan plan) {
        running.sort(order);
        for (Request request : running) {
            if (plan.isFull()) {
                break;
            }
            if (request.state != Request.State.RUNNING) {
                continue;
            }
            int count = plan.tokensFor(request, request.computedTokens);
            if (count == 0) {
                continue;
            }
            boolean fits = blocks.grow(request, request.computedTokens + count, request.computedTokens);
            while (!fits) {
                Request victim = live.running().stream().max(order).orElseThrow();
                preempt(victim, plan);
                if (victim == request) {
                    break;
                }
                fits = blocks.grow(request, request.computedTokens + count, request.computedTokens);
            }
            if (fits) {
                plan.add(request, request.computedTokens, count);
            }
        }
    }

    private void preempt(Request victim, StepPlan plan) {
        plan.preempt(victim);
        live.waitAgain(victim);
        victim.preemptions++;
        counters.preempted++;
    }

    /**
     * Updates all requests after a step. The step's slices count as computed from here on, unless they had bad KV.
     *
     * @param notFinite requests with logits that are not finite: none of their blocks is shared from here on
     * @param deviating requests with loaded KV that differs from the model's
     */
    Outcome executed(Step step, StepReport reports, Set<Request> notFinite, Set<Request> deviating) {
        owner.check();
        connector.ifPresent(c -> c.onStepDone(reports.merged(), reports.metadata()));
        WorkerReport report = reports.merged();
        List<LoadFailure> failures = new ArrayList<>();
        Set<Integer> invalid = new HashSet<>(report.invalidBlocks());
        for (Request request : deviating) {
            connector.ifPresent(c -> c.onWrongLoad(request));
            loads.loadedBlocks(request).forEach(invalid::add);
        }
        Set<Request> cut = loads.cutAtInvalidBlocks(invalid, deviating, failures);
        Set<Request> valid = new LinkedHashSet<>();
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            request.hidden = null;
            request.loadingTokens = 0;
            if (!cut.contains(request) && request.state == Request.State.RUNNING) {
                request.computedTokens = slice.start() + slice.count();
                request.unverified &= request.computedTokens < request.loadedTo;
                if (notFinite.contains(request)) {
                    blocks.unpublish(request);
                } else {
                    blocks.publish(request, live.waiting()::wake);
                }
                valid.add(request);
            }
        }
        for (String id : report.received()) {
            if (!releases.received(id)
                    && !loads.received(
                            id,
                            Optional.ofNullable(report.hidden().get(id)),
                            report.unverified().contains(id),
                            failures)) {
                counters.unknownReports++;
            }
        }
        for (String id : report.sent()) {
            if (!releases.sent(id)) {
                counters.unknownReports++;
            }
        }
        return new Outcome(valid, failures);
    }

    VerifyKv verifyKv() {
        return config.verifyKv();
    }

    /** See {@link RemoteLoads#toCompare}. */
    Optional<LoadedTokens> toCompare(Request request) {
        return loads.toCompare(request);
    }

    /**
     * Ends a request. Its blocks are released now, or when the transfers that use them are over.
     *
     * @return the connector's part of the response
     */
    Release finish(Request request, RequestEnd end) {
        owner.check();
        boolean loading = request.state == Request.State.WAITING_FOR_REMOTE_KVS;
        live.end(request);
        Release release = release(request, end);
        if (!request.warmsUp()) {
            finishedSinceStep.add(request.id());
        }
        releases.release(request, loading, release.delayed());
        return release;
    }

    private Release release(Request request, RequestEnd end) {
        return connectorView
                .of(request)
                .map(c -> c.onFinished(request, end, request.blocks.toArray()))
                .orElse(Release.NOW);
    }

    /** The answer to a request was lost; see {@link SchedulerConnector#onAnswerLost}. */
    void answerLost(String requestId) {
        owner.check();
        connector.ifPresent(c -> releases.answerLost(requestId).forEach(c::onAnswerLost));
    }

    /** The connector has failed and will be closed: hidden states that it gave are copied, as their memory may be its own. */
    void copyHiddenStates() {
        for (Request request : live.all()) {
            HiddenState hidden = request.hidden;
            if (hidden != null) {
                request.hidden = hidden.copy();
            }
        }
    }

    /** Requests that lost their blocks after the last step; the connector has not been notified of them. */
    Set<String> takenBack() {
        return loads.takenBack();
    }

    /**
     * The connector has failed. Requests that it was loading wait again, without the tokens that it may have loaded.
     *
     * @param transfersOver whether it could be closed, so that none of its transfers uses the pool any more
     * @return requests to end with an error
     */
    List<LoadFailure> disconnected(boolean transfersOver) {
        connectorView.disconnect();
        if (!transfersOver) {
            for (Request request : holders()) {
                if (!request.warmsUp()) {
                    blocks.withhold(request);
                }
            }
        }
        List<LoadFailure> failures = loads.failAll();
        releases.releaseAll();
        return failures;
    }

    /** All requests that may have blocks. */
    private List<Request> holders() {
        List<Request> holders = new ArrayList<>(live.all());
        holders.addAll(releases.requests());
        return holders;
    }

    /** @throws IllegalStateException naming the first broken invariant */
    void checkInvariants() {
        live.checkInvariants();
        blocks.checkInvariants(holders());
    }
}
