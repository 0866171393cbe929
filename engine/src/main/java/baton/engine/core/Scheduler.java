package baton.engine.core;

import baton.engine.SchedulingPolicy;
import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.LoadFailurePolicy;
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
import java.util.OptionalInt;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * The semantics are those of vLLM V1's scheduler; what differs is said here.
 *
 * A step
 *
 *   schedule() picks the tokens to compute under a budget: first the requests that are running, those with one token to compute
 *   before those in the middle of their prompt (so a long prompt never holds up the others' next tokens), then waiting ones in
 *   order (of arrival, or of priority and arrival). A prompt that does not fit the budget, or its share of it, is computed in
 *   chunks; there is no other prefill.
 *   The model runs. executed() takes what the workers report and moves everything on.
 *
 * Blocks
 *
 *   A waiting request is admitted if its whole prompt fits the free blocks, less what running requests need to complete theirs.
 *   If blocks run out all the same, the running request that is last in order loses its blocks and waits again.
 *   Blocks are published for sharing after the step that filled them, never before: a step may fail, a load may fail. Instead, a
 *   request whose next block is being computed by another waits for that block, out of the queue, and then shares it.
 *   A request that waits for a load, or for its turn after it, has the rest of the blocks of its prompt reserved. So whatever
 *   is admitted can be completed: when all that run have ended, all that hold blocks fit together.
 *
 * Loads from elsewhere
 *
 *   The connector is asked about a request while none of its tokens are computed. A load within the step counts as computed at
 *   once; a load between steps parks the request, with its blocks, as WAITING_FOR_REMOTE_KVS. If the hidden state of the prompt's
 *   last token comes with all its KV, the request's first slice has no tokens: its next token is sampled from that. Blocks that fail to load cut the
 *   request's computed tokens at the first of them; by policy the rest is computed here or the request fails. What several
 *   requests share is computed again by the first of them, for which the others wait.
 *
 * Ends
 *
 *   A connector that throws from onNewRequest or match loses that request, which ends with an error. If it throws from any other
 *   call its state and the engine's may differ: the step throws, and the owner ends everything.
 *   The connector is told exactly once and may ask to keep the blocks until a worker reports them as sent. Blocks that a load is
 *   still writing to are kept until it is reported as over. Reports about requests that nobody knows are counted and ignored.
 *
 * Warming up
 *
 *   A request that warms up takes the same way, save that its blocks are not published and the connector hears nothing of it.
 */

/** Decides what each step computes and owns the blocks. One thread uses it. */
final class Scheduler {
    private static final Logger LOG = LoggerFactory.getLogger(Scheduler.class);
    /** How many requests that are to be asked about again a step asks about; the next step goes on after them. */
    private static final int MOST_ASKED_AGAIN = 256;

    /**
     * One request's part in a step.
     *
     * @param start position of the first token to compute
     * @param count tokens to compute; none if the hidden state of the one before came from elsewhere and only waits to be sampled from
     */
    record Slice(Request request, int start, int count) {}

    /**
     * What a step computes, in the order of the batch.
     *
     * @param refused requests that must end, since the connector failed on them, and what it said
     */
    record Step(
            List<Slice> slices,
            Set<String> finished,
            Set<String> preempted,
            Map<Request, String> refused,
            ConnectorMetadata metadata) {
        /** This step, if its slices came to nothing. */
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

    private final BlockPool pool;
    private final int blockSize;
    private final int maxNumSeqs;
    private final int maxNumBatchedTokens;
    private final int maxLogitsRows;
    private final int longPrefillTokenThreshold;
    private final boolean prefixCaching;
    private final LoadFailurePolicy loadFailurePolicy;
    private final Optional<SchedulerConnector> connector;

    /** Who is served first. */
    private final Comparator<Request> order;
    /** Waiting requests without blocks. */
    private final TreeSet<Request> waiting;
    /** Waiting requests with blocks: a load is filling them, or has filled them. */
    private final TreeSet<Request> holding;
    /** Waiting requests, by the block that a running one is computing for them to share. Not looked at until it is there. */
    private final Map<BlockHash, Set<Request>> deferred = new HashMap<>();

    private int deferredCount;
    /** Where in {@link #waiting} the next step begins, if the last one had asked enough. */
    private @Nullable Request resumeAt;

    private final List<Request> running = new ArrayList<>();
    private final Map<String, Request> live = new LinkedHashMap<>();
    /** Finished requests whose blocks a transfer still uses. */
    private final Map<String, Request> lingering = new HashMap<>();

    private final Set<String> finishedSinceStep = new LinkedHashSet<>();
    /** Requests that lost their blocks after the last step. */
    private final Set<String> takenBackSinceStep = new HashSet<>();

    private final Counters counters = new Counters();
    private long arrivals;
    /** Of this step, for prompt log probabilities. */
    private int logitsRowsLeft;

    Scheduler(
            BlockPool pool,
            int blockSize,
            int maxNumSeqs,
            int maxNumBatchedTokens,
            int maxLogitsRows,
            SchedulingPolicy policy,
            int longPrefillTokenThreshold,
            boolean prefixCaching,
            LoadFailurePolicy loadFailurePolicy,
            Optional<SchedulerConnector> connector) {
        this.pool = pool;
        this.blockSize = blockSize;
        this.maxNumSeqs = maxNumSeqs;
        this.maxNumBatchedTokens = maxNumBatchedTokens;
        this.maxLogitsRows = maxLogitsRows;
        this.longPrefillTokenThreshold = longPrefillTokenThreshold == 0 ? Integer.MAX_VALUE : longPrefillTokenThreshold;
        this.prefixCaching = prefixCaching;
        Comparator<Request> arrival = Comparator.comparingLong(request -> request.sequence);
        this.order = switch (policy) {
            case FCFS -> arrival;
            case PRIORITY -> Comparator.comparingInt(Request::priority).thenComparing(arrival);
        };
        this.waiting = new TreeSet<>(order);
        this.holding = new TreeSet<>(order);
        this.loadFailurePolicy = loadFailurePolicy;
        this.connector = connector;
    }

    /** Queues a request. What the connector said, if it failed on it: the request must then end. */
    Optional<String> add(Request request) {
        if (live.putIfAbsent(request.id(), request) != null) {
            throw new IllegalStateException("id=" + request.id() + " is in use");
        }
        request.sequence = arrivals++;
        waiting.add(request);
        try {
            connectorOf(request).ifPresent(c -> c.onNewRequest(request));
            return Optional.empty();
        } catch (RuntimeException e) {
            return Optional.of(failed(request, "onNewRequest", e));
        }
    }

    /** The connector, unless it must not see the request. */
    private Optional<SchedulerConnector> connectorOf(Request request) {
        return request.warmsUp() ? Optional.empty() : connector;
    }

    private static String failed(Request request, String call, RuntimeException e) {
        LOG.error("The connector's {} failed for {}", call, request, e);
        return "The connector failed: " + e.getMessage();
    }

    boolean knows(String id) {
        return live.containsKey(id) || lingering.containsKey(id);
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
        return waiting.size() + holding.size() + deferredCount;
    }

    int waitingForRemoteKvCount() {
        int count = 0;
        for (Request request : holding) {
            count += request.state == Request.State.WAITING_FOR_REMOTE_KVS ? 1 : 0;
        }
        return count;
    }

    int lingeringCount() {
        return lingering.size();
    }

    Counters counters() {
        return counters;
    }

    /** True while steps are needed, with or without anything to compute. */
    boolean hasWork() {
        return !live.isEmpty()
                || !lingering.isEmpty()
                || !finishedSinceStep.isEmpty()
                || connector.map(SchedulerConnector::hasPendingWork).orElse(false);
    }

    boolean resetPrefixCache() {
        return lingering.isEmpty()
                && pool.reset()
                && connector.map(SchedulerConnector::resetCache).orElse(true);
    }

    List<Measurement> takeMeasurements() {
        return connector.map(SchedulerConnector::takeMeasurements).orElse(List.of());
    }

    // ---- before the step

    Step schedule() {
        Map<Request, Slice> slices = new LinkedHashMap<>();
        Set<String> preempted = new HashSet<>();
        logitsRowsLeft = maxLogitsRows;
        int budget = scheduleRunning(slices, preempted, maxNumBatchedTokens);
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
        // Those that decode first.
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
            boolean fits = grow(request, request.computedTokens + count);
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
                fits = grow(request, request.computedTokens + count);
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
        if (waitingCount() == 0 || budget == 0 || running.size() >= maxNumSeqs) {
            return;
        }
        int reserved = 0;
        for (Request request : holding) {
            reserved += blocksFor(request.length()) - request.blocks.size();
        }
        Set<BlockHash> inFlight = new HashSet<>();
        for (Request request : running) {
            reserved += Math.max(0, blocksFor(request.length()) - request.blocks.size());
            addInFlight(request, inFlight);
        }
        // Those that hold blocks come first: one without, earlier in order, may need what only their end sets free.
        Iterator<Request> loaded = holding.iterator();
        while (loaded.hasNext() && budget > 0 && running.size() < maxNumSeqs) {
            Request request = loaded.next();
            int fresh = blocksFor(request.length()) - request.blocks.size();
            if (request.state == Request.State.WAITING_FOR_REMOTE_KVS || fresh > pool.free()) {
                continue;
            }
            int known = request.computedTokens;
            int count = tokensNow(request, known, budget);
            if (count == 0 && request.hidden == null) {
                continue;
            }
            loaded.remove();
            run(request, known, count, known, 0, slices);
            reserved -= fresh - (blocksFor(request.length()) - request.blocks.size());
            addInFlight(request, inFlight);
            budget -= count;
        }
        Iterator<Request> queue = startOfQueue();
        int askAgain = 0;
        while (queue.hasNext() && budget > 0 && running.size() < maxNumSeqs) {
            Request request = queue.next();
            if (askAgain == MOST_ASKED_AGAIN) {
                resumeAt = request;
                break;
            }
            List<Integer> hits = lookUp(request);
            int local = hits.size() * blockSize;
            if (nextBlockInFlight(request, hits.size(), inFlight)) {
                queue.remove();
                defer(request, request.blockHashes().get(hits.size()));
                continue;
            }
            int external = 0;
            boolean async = false;
            Optional<SchedulerConnector> source = connectorOf(request);
            if (source.isPresent() && !request.connectorDone && request.mayLoad()) {
                KvMatch match;
                try {
                    match = source.get().match(request, local);
                } catch (RuntimeException e) {
                    refused.put(request, failed(request, "match", e));
                    continue;
                }
                switch (match) {
                    case KvMatch.None() -> {}
                    case KvMatch.Pending() -> {
                        askAgain++;
                        continue;
                    }
                    case KvMatch.Tokens(int count, boolean isAsync) -> {
                        // One token must be computed in the step that loads the others.
                        external = Math.min(count, request.length() - local - (isAsync ? 0 : 1));
                        async = isAsync && external > 0;
                    }
                }
            }
            int known = local + external;
            int count = async ? 0 : tokensNow(request, known, budget);
            if (!async && count == 0) {
                continue;
            }
            if (!fits(request, hits, reserved)) {
                break;
            }
            for (int block : hits) {
                pool.hold(block);
                request.blocks.add(block);
            }
            request.publishedBlocks = hits.size();
            countHits(request, local, external);
            queue.remove();
            if (async) {
                request.state = Request.State.WAITING_FOR_REMOTE_KVS;
                holding.add(request);
                allocate(request, known, local, external);
                request.computedTokens = known;
            } else {
                run(request, known, count, local, external, slices);
                addInFlight(request, inFlight);
                budget -= count;
            }
            reserved += blocksFor(request.length()) - request.blocks.size();
        }
    }

    /** The first in order, unless the last step had to stop on its way: then the one it would have looked at next. */
    private Iterator<Request> startOfQueue() {
        Request from = resumeAt;
        resumeAt = null;
        return from == null ? waiting.iterator() : waiting.tailSet(from, true).iterator();
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
        if (!grow(request, tokens)) {
            throw new IllegalStateException("admitted without room: " + request);
        }
        connectorOf(request).ifPresent(c -> c.onAllocated(request, request.blocks.toArray(), local, external));
    }

    /** The cached blocks of the request's longest known prefix that leaves a token to compute. */
    private List<Integer> lookUp(Request request) {
        if (!prefixCaching || request.wantsPromptLogprobs()) {
            return List.of();
        }
        List<Integer> hits = new ArrayList<>();
        int most = (request.length() - 1) / blockSize;
        for (BlockHash hash : request.blockHashes()) {
            OptionalInt block = hits.size() < most ? pool.cached(hash) : OptionalInt.empty();
            if (block.isEmpty()) {
                break;
            }
            hits.add(block.getAsInt());
        }
        return hits;
    }

    private void addInFlight(Request request, Set<BlockHash> inFlight) {
        if (prefixCaching) {
            List<BlockHash> hashes = request.blockHashes();
            for (int i = request.publishedBlocks; i < hashes.size(); i++) {
                inFlight.add(hashes.get(i));
            }
        }
    }

    private boolean nextBlockInFlight(Request request, int hits, Set<BlockHash> inFlight) {
        List<BlockHash> hashes = request.blockHashes();
        boolean shareable =
                prefixCaching && !request.wantsPromptLogprobs() && hits < (request.length() - 1) / blockSize;
        return shareable && inFlight.contains(hashes.get(hits));
    }

    private void defer(Request request, BlockHash until) {
        request.deferredUntil = until;
        deferred.computeIfAbsent(until, _ -> new LinkedHashSet<>()).add(request);
        deferredCount++;
    }

    /** The block is there, or whoever was computing it does so no longer. */
    private void wake(BlockHash hash) {
        Set<Request> woken = deferred.remove(hash);
        if (woken != null) {
            deferredCount -= woken.size();
            for (Request request : woken) {
                request.deferredUntil = null;
                waiting.add(request);
            }
        }
    }

    /** What a request that leaves {@link #running} has not published, others need not wait for. */
    private void wakeWhoWaitsFor(Request request) {
        if (!deferred.isEmpty()) {
            List<BlockHash> hashes = request.blockHashes();
            for (int i = request.publishedBlocks; i < hashes.size(); i++) {
                wake(hashes.get(i));
            }
        }
    }

    /** Takes a request out of whichever queue it is in. */
    private void unqueue(Request request) {
        if (running.remove(request)) {
            wakeWhoWaitsFor(request);
        }
        waiting.remove(request);
        holding.remove(request);
        BlockHash until = request.deferredUntil;
        if (until != null) {
            request.deferredUntil = null;
            deferredCount--;
            Set<Request> others = deferred.get(until);
            if (others != null && others.remove(request) && others.isEmpty()) {
                deferred.remove(until);
            }
        }
    }

    private boolean fits(Request request, List<Integer> hits, int reserved) {
        int fromFree = (int) hits.stream().filter(pool::isFree).count();
        int fresh = blocksFor(request.length()) - request.blocks.size() - hits.size();
        return pool.free() - reserved >= fresh + fromFree;
    }

    private void countHits(Request request, int local, int external) {
        if (prefixCaching) {
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

    private boolean grow(Request request, int tokens) {
        int fresh = blocksFor(tokens) - request.blocks.size();
        if (fresh > pool.free()) {
            return false;
        }
        for (int i = 0; i < fresh; i++) {
            request.blocks.add(pool.allocate());
        }
        return true;
    }

    private void preempt(Request request) {
        waitAgain(request);
        counters.preempted++;
    }

    /** Puts a request back to where it has no blocks and nothing computed. */
    private void waitAgain(Request request) {
        unqueue(request);
        releaseBlocks(request);
        request.computedTokens = 0;
        request.hidden = null;
        request.state = Request.State.WAITING;
        waiting.add(request);
    }

    // ---- after the step

    /** Takes in what the workers did. The step's slices count as computed from here on, unless their KV was bad. */
    Outcome executed(Step step, WorkerReport report) {
        connector.ifPresent(c -> c.onStepDone(report));
        List<LoadFailure> failures = new ArrayList<>();
        Set<Request> cut = cutAtInvalidBlocks(report.invalidBlocks(), failures);
        Set<Request> valid = new LinkedHashSet<>();
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            request.hidden = null;
            if (!cut.contains(request)) {
                request.computedTokens = slice.start() + slice.count();
                publish(request);
                valid.add(request);
            }
        }
        for (String id : report.received()) {
            received(id, Optional.ofNullable(report.hidden().get(id)), failures);
        }
        for (String id : report.sent()) {
            Request request = lingering.get(id);
            if (request != null && request.awaitsSent) {
                request.awaitsSent = false;
                releaseLingering(request);
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
            if (block >= 0 && block < pool.size()) {
                pool.forget(block);
            } else {
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
            for (int i = first; i < request.blocks.size(); i++) {
                pool.forget(request.blocks.get(i));
            }
            cut.add(request);
            counters.loadFailures++;
            if (loadFailurePolicy == LoadFailurePolicy.RECOMPUTE) {
                counters.recomputedTokens += request.computedTokens - first * blockSize;
            }
            request.publishedBlocks = Math.min(request.publishedBlocks, first);
            request.computedTokens = first * blockSize;
            request.connectorDone = true;
            request.hidden = null;
            request.externalHit = Math.max(0, Math.min(request.externalHit, request.computedTokens - request.localHit));
            if (loadFailurePolicy == LoadFailurePolicy.FAIL) {
                failures.add(new LoadFailure(request, request.blocks.count(invalid)));
            } else if (request.state != Request.State.WAITING_FOR_REMOTE_KVS
                    && (request.computedTokens == 0 || !recomputed.add(request.blocks.get(first)))) {
                // Nothing is left, or another computes the next block anyway: it may share what others compute.
                waitAgain(request);
                takenBackSinceStep.add(request.id());
            }
        }
        return cut;
    }

    private void received(String id, Optional<HiddenState> hidden, List<LoadFailure> failures) {
        Request gone = lingering.get(id);
        if (gone != null && gone.awaitsReceived) {
            gone.awaitsReceived = false;
            releaseLingering(gone);
            return;
        }
        Request request = live.get(id);
        if (request == null || request.state != Request.State.WAITING_FOR_REMOTE_KVS) {
            counters.unknownReports++;
            return;
        }
        request.state = Request.State.WAITING;
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
            // The last token is computed here: its logits are wanted.
            request.computedTokens = Math.min(request.computedTokens, request.length() - 1);
        }
        publish(request);
    }

    private void publish(Request request) {
        if (!prefixCaching) {
            return;
        }
        int full = request.computedTokens / blockSize;
        if (full > request.publishedBlocks) {
            List<BlockHash> hashes = request.blockHashes();
            while (request.publishedBlocks < full) {
                int index = request.publishedBlocks++;
                if (!request.warmsUp()) {
                    pool.publish(request.blocks.get(index), hashes.get(index));
                }
                wake(hashes.get(index));
            }
        }
    }

    /**
     * Ends a request. Its blocks are released now, or when the transfers that use them are over.
     *
     * @return what the connector wants in the response
     */
    Optional<JsonFields> finish(Request request, RequestEnd end) {
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
            lingering.put(request.id(), request);
        } else {
            releaseBlocks(request);
        }
        return release.kvTransferParams();
    }

    /** A connector that fails here has no claim to the blocks. */
    private Release release(Request request, RequestEnd end) {
        try {
            return connectorOf(request)
                    .map(c -> c.onFinished(request, end, request.blocks.toArray()))
                    .orElse(Release.NOW);
        } catch (RuntimeException e) {
            failed(request, "onFinished", e);
            return Release.NOW;
        }
    }

    private void releaseLingering(Request request) {
        if (!request.awaitsReceived && !request.awaitsSent) {
            lingering.remove(request.id());
            releaseBlocks(request);
        }
    }

    private void releaseBlocks(Request request) {
        for (int i = request.blocks.size() - 1; i >= 0; i--) {
            pool.release(request.blocks.get(i));
        }
        request.blocks.clear();
        request.publishedBlocks = 0;
    }

    private int blocksFor(int tokens) {
        return Math.ceilDiv(tokens, blockSize);
    }

    /** @throws IllegalStateException naming the first broken invariant */
    void checkInvariants() {
        pool.checkInvariants();
        if (waitingCount() + running.size() != live.size()) {
            throw new IllegalStateException("waiting=%d holding=%d deferred=%d running=%d but live=%d"
                    .formatted(waiting.size(), holding.size(), deferredCount, running.size(), live.size()));
        }
        for (Request request : waiting) {
            if (request.blocks.size() > 0 || request.computedTokens > 0) {
                throw new IllegalStateException("waits in the wrong queue: " + request);
            }
        }
        Map<Integer, Integer> held = new HashMap<>();
        List<Request> holders = new ArrayList<>(live.values());
        holders.addAll(lingering.values());
        for (Request request : holders) {
            for (int i = 0; i < request.blocks.size(); i++) {
                held.merge(request.blocks.get(i), 1, Integer::sum);
            }
            if (request.computedTokens > request.length()
                    || request.blocks.size() * blockSize < request.computedTokens) {
                throw new IllegalStateException("broken: " + request + " blocks=" + request.blocks.size());
            }
        }
        held.forEach((block, count) -> {
            if (pool.references(block) != count) {
                throw new IllegalStateException("block=%d is held %d times but has references=%d"
                        .formatted(block, count, pool.references(block)));
            }
        });
        if (held.size() != pool.used()) {
            throw new IllegalStateException("blocks held by requests=" + held.size() + " used in pool=" + pool.used());
        }
    }
}
