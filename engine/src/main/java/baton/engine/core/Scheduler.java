package baton.engine.core;

import baton.engine.core.Workers.StepReport;
import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.kv.KvEvent;
import baton.kv.LoadFailurePolicy;
import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * The semantics are those of vLLM V1's scheduler, except for what follows.
 *
 * A step
 *
 *   schedule() picks the tokens to compute under a budget: first the requests that are running, those with one token to compute
 *   before those in the middle of their prompt (so a long prompt never delays the next tokens of other requests), then waiting ones in
 *   order (of arrival, or of priority and arrival). A prompt that does not fit the budget, or its share of it, is computed in
 *   chunks (chunked prefill); there is no other prefill.
 *   The model runs. executed() takes the workers' report and updates all requests.
 *
 * Blocks
 *
 *   A waiting request is admitted if its whole prompt fits the free blocks, less what running requests need to complete theirs.
 *   If blocks run out all the same, the running request that is last in order loses its blocks and waits again.
 *   Blocks are published for sharing after the step that filled them, never before: a step may fail, a load may fail. Instead, a
 *   request whose next block is being computed by another request waits for that block, out of the queue, and then shares it.
 *   A request that waits for a load, or for its turn after it, has the rest of the blocks of its prompt reserved. So whatever
 *   is admitted can be completed: when all that run have ended, all that hold blocks fit together.
 *
 * Loads from elsewhere
 *
 *   The connector is asked about a request while none of its tokens are computed. A load within the step counts as computed at
 *   once; a load between steps parks the request, with its blocks, as WAITING_FOR_REMOTE_KVS. If the hidden state of the prompt's
 *   last token comes with all its KV, the request's first slice has no tokens: its next token is sampled from that. Blocks that fail to load cut the
 *   request's computed tokens at the first of them; by policy the rest is computed here or the request fails. What several
 *   requests share is computed again by the first of them, for which the other requests wait.
 *
 * Ends
 *
 *   The connector is told of each end exactly once and may ask to keep the blocks until a worker reports them as sent. Blocks that a load is
 *   still writing to are kept until it is reported as over. Reports about unknown requests are counted and ignored.
 *
 * A connector that throws
 *
 *   It may have lost track of its transfers, so nothing that it says from then on is believed, and a transfer that it began may still be
 *   running: its own, or a peer's that reads or writes this pool. Until that is over no block that it may use can be handed out again. What
 *   ends all transfers is the connector's close, as it also precedes the end of the pool's memory. So the connector is closed, between
 *   the ranks' parts of a step, and then disconnected() is called: all loads under way are invalid, by policy these requests are computed
 *   here or fail; blocks that were kept for transfers are released; all other requests go on. Up to then onFinished counts as delayed.
 *   If the close fails too, transfers may go on for ever: all blocks that requests have at this time are withheld, which is to say that
 *   they are never handed out again. So are not the blocks that a preemption has just taken back; in that case the engine ends.
 *   An InvalidFieldException from onNewRequest or match is no failure: a client's parameter is refused, and that request ends with an error.
 *
 * Warming up
 *
 *   A request that warms up is scheduled in the same way, but its blocks are not published and the connector does not see it.
 */

/** Decides what each step computes and which request has which blocks. One thread owns it, which methods that change it check. */
final class Scheduler {
    private static final Logger LOG = LoggerFactory.getLogger(Scheduler.class);
    /** At most this many requests with a pending match are asked about in a step; the next step continues behind them. */
    private static final int MAX_PENDING_MATCHES = 256;

    /**
     * One request's part in a step.
     *
     * @param start position of the first token to compute
     * @param count tokens to compute; 0 if the hidden state of the token before came from elsewhere and is only to be sampled from
     */
    record Slice(Request request, int start, int count) {}

    /**
     * What a step computes, in the order of the batch.
     *
     * @param refused requests that must end, since the connector refuses them, and what it said
     */
    record Step(
            List<Slice> slices,
            Set<String> finished,
            Set<String> preempted,
            Map<Request, String> refused,
            ConnectorMetadata metadata) {
        /** This step without the slices of requests that do not run any more. */
        Step ofRunning() {
            List<Slice> left = slices.stream()
                    .filter(slice -> slice.request().state == Request.State.RUNNING)
                    .toList();
            return new Step(left, finished, preempted, refused, metadata);
        }

        /** This step without its slices, which were not computed. */
        Step notComputed() {
            return new Step(List.of(), finished, preempted, refused, metadata);
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
     * What became of a step.
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
    private final KvCacheManager blocks;
    private final SchedulerConfig config;
    private final int blockSize;
    private final int longPrefillTokenThreshold;
    private final Optional<SchedulerConnector> connector;

    /** The order in which requests are served. */
    private final Comparator<Request> order;

    private final Ticker ticker;
    private final WaitingQueue waiting;
    private final List<Request> running = new ArrayList<>();
    private final Map<String, Request> live = new LinkedHashMap<>();
    /** Finished requests whose blocks a transfer still uses. */
    private final Map<String, Request> awaitingRelease = new HashMap<>();
    /** Those of the waiting requests without blocks that need a load between steps. */
    private final Set<Request> toLoad = new HashSet<>();

    /** False once the connector has failed. */
    private boolean connected = true;

    private final Set<String> finishedSinceStep = new LinkedHashSet<>();
    /** Requests that lost their blocks after the last step. */
    private final Set<String> takenBackSinceStep = new HashSet<>();

    private final Counters counters = new Counters();
    private long arrivals;
    /** Rows of logits that this step may still make for prompt log probabilities. */
    private int logitsRowsLeft;

    /** @param ticker for when loads begin and end; nothing is decided by it */
    Scheduler(
            BlockPool pool,
            CacheEvents events,
            SchedulerConfig config,
            Optional<SchedulerConnector> connector,
            Ticker ticker) {
        this.blocks = new KvCacheManager(pool, events, config.blockSize(), config.prefixCaching());
        this.config = config;
        this.blockSize = config.blockSize();
        this.longPrefillTokenThreshold =
                config.longPrefillTokenThreshold() == 0 ? Integer.MAX_VALUE : config.longPrefillTokenThreshold();
        Comparator<Request> arrival = Comparator.comparingLong(request -> request.sequence);
        this.order = switch (config.policy()) {
            case FCFS -> arrival;
            case PRIORITY -> Comparator.comparingInt(Request::priority).thenComparing(arrival);
        };
        this.waiting = new WaitingQueue(order);
        this.connector = connector;
        this.ticker = ticker;
    }

    /** Queues a request. What the connector said, if it refuses it: the request must then end. */
    Optional<String> add(Request request) {
        owner.check();
        if (live.putIfAbsent(request.id(), request) != null) {
            throw new IllegalStateException("id=" + request.id() + " is in use");
        }
        request.sequence = arrivals++;
        waiting.add(request);
        try {
            connectorOf(request).ifPresent(c -> {
                c.onNewRequest(request);
                if (request.isPrefilledElsewhere()) {
                    toLoad.add(request);
                }
            });
            return Optional.empty();
        } catch (InvalidFieldException e) {
            return Optional.of(refusal(request, e));
        }
    }

    /** The connector, unless it must not see the request. */
    private Optional<SchedulerConnector> connectorOf(Request request) {
        return request.warmsUp() || !connected ? Optional.empty() : connector;
    }

    private static String refusal(Request request, InvalidFieldException e) {
        LOG.warn("The connector refuses {}: {}", request, e.getMessage());
        return "The connector refuses the request: " + e.getMessage();
    }

    boolean knows(String id) {
        return live.containsKey(id) || awaitingRelease.containsKey(id);
    }

    Optional<Request> find(String id) {
        return Optional.ofNullable(live.get(id));
    }

    List<Request> requests() {
        return List.copyOf(live.values());
    }

    int runningCount() {
        return running.size();
    }

    int waitingCount() {
        return waiting.size();
    }

    int waitingForRemoteKvCount() {
        int count = 0;
        for (Request request : waiting.withBlocks()) {
            count += request.state == Request.State.WAITING_FOR_REMOTE_KVS ? 1 : 0;
        }
        return count;
    }

    /** Requests that need a load between steps which has not begun. */
    int waitingToLoadCount() {
        return toLoad.size();
    }

    int waitingLoadedCount() {
        return waiting.withBlocks().size() - waitingForRemoteKvCount();
    }

    int awaitingReleaseCount() {
        return awaitingRelease.size();
    }

    Counters counters() {
        return counters;
    }

    /** True while steps are needed, with or without anything to compute. */
    boolean hasWork() {
        return !live.isEmpty()
                || !awaitingRelease.isEmpty()
                || !finishedSinceStep.isEmpty()
                || blocks.hasEvents()
                || connector.map(SchedulerConnector::hasPendingWork).orElse(false);
    }

    boolean isStoring() {
        return connector.map(SchedulerConnector::isStoring).orElse(false);
    }

    boolean resetPrefixCache() {
        return awaitingRelease.isEmpty()
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
        Map<Request, Slice> slices = new LinkedHashMap<>();
        Set<String> preempted = new HashSet<>();
        logitsRowsLeft = config.maxLogitsRows();
        int budget = scheduleRunning(slices, preempted, config.maxNumBatchedTokens());
        Map<Request, String> refused = new LinkedHashMap<>();
        if (preempted.isEmpty()) {
            scheduleWaiting(slices, refused, budget);
        }
        List<Slice> ordered = List.copyOf(slices.values());
        Set<String> finished = finishedSinceStep.isEmpty()
                ? Set.of()
                : Collections.unmodifiableSet(new LinkedHashSet<>(finishedSinceStep));
        finishedSinceStep.clear();
        preempted.addAll(takenBackSinceStep);
        takenBackSinceStep.clear();
        ConnectorMetadata metadata = connector
                .map(c -> c.buildMetadata(new ScheduledStep(
                        ordered.stream()
                                .filter(slice ->
                                        slice.count() > 0 && !slice.request().warmsUp())
                                .map(slice -> new ScheduledRequest(
                                        slice.request(),
                                        slice.request().blocks.toArray(),
                                        slice.start(),
                                        slice.count()))
                                .toList(),
                        finished,
                        preempted.stream()
                                .filter(id -> find(id).filter(Request::warmsUp).isEmpty())
                                .collect(Collectors.toUnmodifiableSet()))))
                .orElseGet(ConnectorMetadata.None::new);
        return new Step(ordered, finished, preempted, refused, metadata);
    }

    private int scheduleRunning(Map<Request, Slice> slices, Set<String> preempted, int budget) {
        // Decoding requests come first.
        List<Request> inOrder = new ArrayList<>(running.size());
        List<Request> prefilling = new ArrayList<>();
        for (Request request : running) {
            (request.length() - request.computedTokens > 1 ? prefilling : inOrder).add(request);
        }
        inOrder.sort(order);
        prefilling.sort(order);
        inOrder.addAll(prefilling);
        for (Request request : inOrder) {
            if (budget == 0) {
                break;
            }
            if (request.state != Request.State.RUNNING) {
                continue;
            }
            int count = tokensNow(request, request.computedTokens, budget);
            if (count == 0) {
                continue;
            }
            boolean fits = blocks.grow(request, request.computedTokens + count);
            while (!fits) {
                Request victim = running.stream().max(order).orElseThrow();
                Slice taken = slices.remove(victim);
                if (taken != null) {
                    budget += taken.count();
                }
                preempt(victim);
                preempted.add(victim.id());
                if (victim == request) {
                    break;
                }
                fits = blocks.grow(request, request.computedTokens + count);
            }
            if (fits) {
                takeLogitsRows(request, request.computedTokens, count);
                slices.put(request, new Slice(request, request.computedTokens, count));
                budget -= count;
            }
        }
        return budget;
    }

    private void scheduleWaiting(Map<Request, Slice> slices, Map<Request, String> refused, int budget) {
        if (waitingCount() == 0 || budget == 0 || running.size() >= config.maxNumSeqs()) {
            return;
        }
        int reserved = 0;
        for (Request request : waiting.withBlocks()) {
            reserved += blocks.missing(request);
        }
        Set<BlockHash> inFlight = new HashSet<>();
        for (Request request : running) {
            reserved += Math.max(0, blocks.missing(request));
            blocks.addInFlight(request, inFlight);
        }
        // Requests with blocks come first: one without blocks, earlier in order, may need blocks that only their end
        // frees.
        Iterator<Request> loaded = waiting.withBlocks().iterator();
        while (loaded.hasNext() && budget > 0 && running.size() < config.maxNumSeqs()) {
            Request request = loaded.next();
            int fresh = blocks.missing(request);
            if (request.state == Request.State.WAITING_FOR_REMOTE_KVS || !blocks.hasFree(fresh)) {
                continue;
            }
            int known = request.computedTokens;
            int count = tokensNow(request, known, budget);
            if (count == 0 && request.hidden == null) {
                continue;
            }
            loaded.remove();
            run(request, known, count, known, 0, slices);
            reserved -= fresh - blocks.missing(request);
            blocks.addInFlight(request, inFlight);
            budget -= count;
        }
        Iterator<Request> queue = waiting.startOfQueue();
        int pendingMatches = 0;
        while (queue.hasNext() && budget > 0 && running.size() < config.maxNumSeqs()) {
            Request request = queue.next();
            if (pendingMatches == MAX_PENDING_MATCHES) {
                waiting.resumeAt(request);
                break;
            }
            List<Integer> hits = blocks.computedBlocks(request);
            int local = hits.size() * blockSize;
            Optional<BlockHash> awaited = blocks.nextInFlight(request, hits.size(), inFlight);
            if (awaited.isPresent()) {
                queue.remove();
                waiting.defer(request, awaited.get());
                continue;
            }
            int external = 0;
            boolean async = false;
            Optional<SchedulerConnector> source = connectorOf(request);
            if (source.isPresent() && !request.connectorDone && request.mayLoad()) {
                KvMatch match;
                try {
                    match = source.get().match(request, local);
                } catch (InvalidFieldException e) {
                    refused.put(request, refusal(request, e));
                    continue;
                }
                switch (match) {
                    case KvMatch.None() -> {}
                    case KvMatch.Pending() -> {
                        pendingMatches++;
                        continue;
                    }
                    case KvMatch.Tokens(int count, boolean isAsync) -> {
                        // One token must be computed in the step that loads the other tokens.
                        external = Math.min(count, request.length() - local - (isAsync ? 0 : 1));
                        async = isAsync && external > 0;
                    }
                }
            }
            if (async) {
                toLoad.add(request);
            } else {
                toLoad.remove(request);
            }
            int known = local + external;
            int count = async ? 0 : tokensNow(request, known, budget);
            if (!async && count == 0) {
                continue;
            }
            if (!blocks.fits(request, hits, reserved)) {
                break;
            }
            blocks.share(request, hits);
            countHits(request, local, external);
            request.loadingTokens = external;
            if (external > 0) {
                request.load.begin(ticker.nanos(), external);
            }
            queue.remove();
            if (async) {
                toLoad.remove(request);
                request.state = Request.State.WAITING_FOR_REMOTE_KVS;
                waiting.addWithBlocks(request);
                allocate(request, known, local, external);
                request.computedTokens = known;
            } else {
                run(request, known, count, local, external, slices);
                blocks.addInFlight(request, inFlight);
                budget -= count;
            }
            reserved += blocks.missing(request);
        }
    }

    /**
     * How many of the request's tokens from {@code start} on this step can compute. Prompt log probabilities need the logits of
     * every token of a prompt; of these a step makes a bounded number, for all requests together.
     */
    private int tokensNow(Request request, int start, int budget) {
        int count = Math.min(Math.min(request.length() - start, longPrefillTokenThreshold), budget);
        return request.lacksPromptLogprobs(start) ? Math.min(count, logitsRowsLeft) : count;
    }

    private void takeLogitsRows(Request request, int start, int count) {
        if (request.lacksPromptLogprobs(start)) {
            logitsRowsLeft -= count;
        }
    }

    private void run(Request request, int known, int count, int local, int external, Map<Request, Slice> slices) {
        request.state = Request.State.RUNNING;
        running.add(request);
        request.computedTokens = known;
        takeLogitsRows(request, known, count);
        allocate(request, known + count, local, external);
        slices.put(request, new Slice(request, known, count));
    }

    private void allocate(Request request, int tokens, int local, int external) {
        if (!blocks.grow(request, tokens)) {
            throw new IllegalStateException("admitted without room: " + request);
        }
        connectorOf(request).ifPresent(c -> c.onAllocated(request, request.blocks.toArray(), local, external));
    }

    /** Requests no longer wait for blocks that a request which leaves {@link #running} has not published. */
    private void wakeWaitersOf(Request request) {
        if (waiting.hasDeferred()) {
            List<BlockHash> hashes = request.blockHashes();
            for (int i = request.publishedBlocks; i < hashes.size(); i++) {
                waiting.wake(hashes.get(i));
            }
        }
    }

    /** Takes a request out of whichever queue it is in. */
    private void unqueue(Request request) {
        if (running.remove(request)) {
            wakeWaitersOf(request);
        }
        waiting.remove(request);
        toLoad.remove(request);
    }

    private void countHits(Request request, int local, int external) {
        if (config.prefixCaching()) {
            counters.prefixQueries += request.length();
            counters.prefixHits += local;
        }
        if (connectorOf(request).isPresent() && !request.connectorDone) {
            counters.externalQueries += request.length() - local;
            counters.externalHits += external;
        }
        if (!request.everScheduled) {
            request.everScheduled = true;
            request.localHit = Math.min(local, request.promptLength());
            request.externalHit = Math.min(external, request.promptLength() - request.localHit);
        }
    }

    private void preempt(Request request) {
        waitAgain(request);
        request.preemptions++;
        counters.preempted++;
    }

    /** Puts a request back to where it has no blocks and nothing computed. */
    private void waitAgain(Request request) {
        unqueue(request);
        blocks.free(request);
        request.computedTokens = 0;
        request.loadingTokens = 0;
        request.hidden = null;
        request.state = Request.State.WAITING;
        waiting.add(request);
    }

    /** Updates all requests after a step. The step's slices count as computed from here on, unless their KV was bad. */
    Outcome executed(Step step, StepReport reports) {
        owner.check();
        connector.ifPresent(c -> c.onStepDone(reports.merged(), reports.metadata()));
        WorkerReport report = reports.merged();
        List<LoadFailure> failures = new ArrayList<>();
        Set<Request> cut = cutAtInvalidBlocks(report.invalidBlocks(), failures);
        Set<Request> valid = new LinkedHashSet<>();
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            request.hidden = null;
            request.loadingTokens = 0;
            if (!cut.contains(request) && request.state == Request.State.RUNNING) {
                request.computedTokens = slice.start() + slice.count();
                blocks.publish(request, waiting::wake);
                valid.add(request);
            }
        }
        for (String id : report.received()) {
            received(id, Optional.ofNullable(report.hidden().get(id)), failures);
        }
        for (String id : report.sent()) {
            Request request = awaitingRelease.get(id);
            if (request != null && request.awaitsSent) {
                request.awaitsSent = false;
                releaseIfUnused(request);
            } else {
                counters.unknownReports++;
            }
        }
        return new Outcome(valid, failures);
    }

    private Set<Request> cutAtInvalidBlocks(Set<Integer> invalid, List<LoadFailure> failures) {
        Set<Request> cut = new HashSet<>();
        if (invalid.isEmpty()) {
            return cut;
        }
        for (int block : invalid) {
            if (!blocks.invalidate(block)) {
                counters.unknownReports++;
            }
        }
        Set<Integer> recomputed = new HashSet<>();
        for (Request request : List.copyOf(live.values())) {
            int first = 0;
            while (first < request.blocks.size() && !invalid.contains(request.blocks.get(first))) {
                first++;
            }
            if (first * blockSize >= request.computedTokens) {
                continue;
            }
            cut.add(request);
            request.load.fail();
            counters.loadFailures++;
            if (config.loadFailurePolicy() == LoadFailurePolicy.RECOMPUTE) {
                counters.recomputedTokens += request.computedTokens - first * blockSize;
            }
            blocks.invalidateFrom(request, first);
            request.connectorDone = true;
            request.hidden = null;
            request.externalHit = Math.max(0, Math.min(request.externalHit, request.computedTokens - request.localHit));
            if (config.loadFailurePolicy() == LoadFailurePolicy.FAIL) {
                failures.add(new LoadFailure(request, request.blocks.count(invalid)));
            } else if (request.state != Request.State.WAITING_FOR_REMOTE_KVS
                    && (request.computedTokens == 0 || !recomputed.add(request.blocks.get(first)))) {
                // Nothing is left, or another request computes the next block anyway: it may share what other requests
                // compute.
                waitAgain(request);
                takenBackSinceStep.add(request.id());
            }
        }
        return cut;
    }

    private void received(String id, Optional<HiddenState> hidden, List<LoadFailure> failures) {
        Request gone = awaitingRelease.get(id);
        if (gone != null && gone.awaitsReceived) {
            gone.awaitsReceived = false;
            releaseIfUnused(gone);
            return;
        }
        Request request = live.get(id);
        if (request == null || request.state != Request.State.WAITING_FOR_REMOTE_KVS) {
            counters.unknownReports++;
            return;
        }
        request.state = Request.State.WAITING;
        request.loadingTokens = 0;
        request.load.end(ticker.nanos());
        if (failures.stream().anyMatch(failure -> failure.request() == request)) {
            return;
        }
        if (request.computedTokens == 0) {
            waitAgain(request);
            return;
        }
        if (hidden.isPresent() && request.outputLength() == 0 && request.computedTokens == request.length()) {
            request.hidden = hidden.get();
        } else {
            // The last token is computed here, for its logits.
            request.computedTokens = Math.min(request.computedTokens, request.length() - 1);
        }
        blocks.publish(request, waiting::wake);
    }

    /**
     * Ends a request. Its blocks are released now, or when the transfers that use them are over.
     *
     * @return what the connector has for the response
     */
    Release finish(Request request, RequestEnd end) {
        owner.check();
        if (live.remove(request.id()) == null) {
            throw new IllegalStateException("finished twice: " + request);
        }
        unqueue(request);
        request.awaitsReceived = request.state == Request.State.WAITING_FOR_REMOTE_KVS;
        request.state = Request.State.FINISHED;
        Release release = release(request, end);
        request.awaitsSent = release.delayed();
        if (!request.warmsUp()) {
            finishedSinceStep.add(request.id());
        }
        if (request.awaitsReceived || request.awaitsSent) {
            awaitingRelease.put(request.id(), request);
        } else {
            blocks.free(request);
        }
        return release;
    }

    private Release release(Request request, RequestEnd end) {
        return connectorOf(request)
                .map(c -> c.onFinished(request, end, request.blocks.toArray()))
                .orElse(Release.NOW);
    }

    /** The connector has failed and will be closed: hidden states that it gave are copied, as their memory may be its own. */
    void copyHiddenStates() {
        for (Request request : live.values()) {
            HiddenState hidden = request.hidden;
            if (hidden != null) {
                request.hidden = hidden.copy();
            }
        }
    }

    /** Requests that lost their blocks after the last step, of which the connector has not been told. */
    Set<String> takenBack() {
        return takenBackSinceStep;
    }

    /**
     * The connector has failed. Requests that it was loading wait again, without what it may have loaded.
     *
     * @param transfersOver whether it could be closed, so that none of its transfers uses the pool any more
     * @return requests to end with an error
     */
    List<LoadFailure> disconnected(boolean transfersOver) {
        connected = false;
        if (!transfersOver) {
            List<Request> holders = new ArrayList<>(live.values());
            holders.addAll(awaitingRelease.values());
            holders.removeIf(Request::warmsUp);
            for (Request request : holders) {
                blocks.withhold(request);
            }
        }
        List<LoadFailure> failures = new ArrayList<>();
        for (Request request : List.copyOf(live.values())) {
            if (request.loadingTokens == 0) {
                continue;
            }
            request.load.fail();
            counters.loadFailures++;
            if (config.loadFailurePolicy() == LoadFailurePolicy.RECOMPUTE) {
                counters.recomputedTokens += request.loadingTokens;
            } else {
                failures.add(new LoadFailure(request, blocks.blocksFor(request.loadingTokens)));
            }
            request.externalHit = 0;
            request.connectorDone = true;
            waitAgain(request);
        }
        for (Request request : List.copyOf(awaitingRelease.values())) {
            request.awaitsReceived = false;
            request.awaitsSent = false;
            releaseIfUnused(request);
        }
        return failures;
    }

    private void releaseIfUnused(Request request) {
        if (!request.awaitsReceived && !request.awaitsSent) {
            awaitingRelease.remove(request.id());
            blocks.free(request);
        }
    }

    /** @throws IllegalStateException naming the first broken invariant */
    void checkInvariants() {
        if (waitingCount() + running.size() != live.size()) {
            throw new IllegalStateException("waiting=%d waitingWithBlocks=%d deferred=%d running=%d but live=%d"
                    .formatted(
                            waiting.withoutBlocks().size(),
                            waiting.withBlocks().size(),
                            waiting.deferredCount(),
                            running.size(),
                            live.size()));
        }
        for (Request request : waiting.withoutBlocks()) {
            if (request.blocks.size() > 0 || request.computedTokens > 0) {
                throw new IllegalStateException("waits in the wrong queue: " + request);
            }
        }
        List<Request> holders = new ArrayList<>(live.values());
        holders.addAll(awaitingRelease.values());
        blocks.checkInvariants(holders);
    }
}
