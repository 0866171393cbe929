package baton.engine.core;

import baton.engine.core.Scheduler.Counters;
import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.kv.connector.KvMatch;
import baton.kv.connector.SchedulerConnector;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Optional;
import java.util.Set;

/**
 * Lets waiting requests run or load, if the free blocks that are not reserved for others suffice for all their tokens. It looks for
 * these in the prefix cache and then asks the connector.
 */
final class Admission {
    /** The limit of requests with a pending match that a step asks about; the next step continues behind them. */
    private static final int MAX_PENDING_MATCHES = 256;

    /** One in so many blocks may be of requests that load from peers which were never reached; but one such request may always load. */
    private static final int UNREACHED_PART = 4;

    private final SchedulerConfig config;
    private final KvCacheManager blocks;
    private final LiveRequests live;
    private final WaitingQueue waiting;
    private final DelayedReleases releases;
    private final ConnectorView connector;
    private final RemoteLoads loads;
    private final Counters counters;

    /** Free blocks that admitted requests need to hold all their tokens. */
    private int reserved;
    /** Blocks, held or reserved, of requests that load from peers which were never reached. */
    private int unreached;
    /** Hashes of blocks that running requests are computing. */
    private Set<BlockHash> inFlight = new HashSet<>();

    Admission(
            SchedulerConfig config,
            KvCacheManager blocks,
            LiveRequests live,
            DelayedReleases releases,
            ConnectorView connector,
            RemoteLoads loads,
            Counters counters) {
        this.config = config;
        this.blocks = blocks;
        this.live = live;
        this.waiting = live.waiting();
        this.releases = releases;
        this.connector = connector;
        this.loads = loads;
        this.counters = counters;
    }

    /** Adds waiting requests to a step that has all those that run, as far as there is room. */
    void admit(StepPlan plan) {
        if (waiting.size() > 0 && hasRoom(plan)) {
            admit(plan, false);
        }
    }

    /** As {@link #admit}, only requests that are served before others. */
    void admitFirst(StepPlan plan) {
        if (waiting.hasFirst() && hasRoom(plan)) {
            admit(plan, true);
        }
    }

    private void admit(StepPlan plan, boolean firstOnly) {
        reserved = 0;
        unreached = releases.blocksOfUnreachedPeers();
        for (Request request : waiting.withBlocks()) {
            reserved += blocks.missing(request);
            if (request.state == Request.State.WAITING_FOR_REMOTE_KVS && request.fromUnreachedPeer) {
                unreached += blocks.most(request);
            }
        }
        inFlight = new HashSet<>();
        for (Request request : live.running()) {
            reserved += Math.max(0, blocks.missing(request));
            blocks.addInFlight(request, inFlight);
        }
        // Requests with blocks come first: one without blocks, earlier in order, may need blocks that only their end
        // frees.
        admitLoaded(plan, firstOnly);
        admitFromQueue(plan, firstOnly);
    }

    private boolean hasRoom(StepPlan plan) {
        return !plan.isFull() && live.running().size() < config.maxNumSeqs();
    }

    private void admitLoaded(StepPlan plan, boolean firstOnly) {
        Iterator<Request> loaded = waiting.withBlocks().iterator();
        while (loaded.hasNext() && hasRoom(plan)) {
            Request request = loaded.next();
            if (firstOnly && !request.isFirst()) {
                break;
            }
            int fresh = blocks.missing(request);
            if (request.state == Request.State.WAITING_FOR_REMOTE_KVS || !blocks.hasFree(fresh)) {
                continue;
            }
            int known = request.computedTokens;
            int count = plan.tokensFor(request, known);
            if (count == 0 && request.hidden == null) {
                continue;
            }
            loaded.remove();
            run(request, known, count, known, 0, plan);
            reserved -= fresh - blocks.missing(request);
        }
    }

    private void admitFromQueue(StepPlan plan, boolean firstOnly) {
        Iterator<Request> queue = firstOnly ? waiting.firstOfQueue() : waiting.startOfQueue();
        int pendingMatches = 0;
        while (queue.hasNext() && hasRoom(plan)) {
            Request request = queue.next();
            if (firstOnly && !request.isFirst()) {
                break;
            }
            if (pendingMatches == MAX_PENDING_MATCHES) {
                waiting.resumeAt(request);
                break;
            }
            BlockTable hits = blocks.computedBlocks(request);
            int local = hits.size() * config.blockSize();
            Optional<BlockHash> awaited = blocks.nextInFlight(request, hits.size(), inFlight);
            if (awaited.isPresent()) {
                queue.remove();
                waiting.defer(request, awaited.get());
                continue;
            }
            int external = 0;
            boolean async = false;
            boolean reached = true;
            Optional<SchedulerConnector> source = connector.of(request);
            if (source.isPresent() && !request.connectorDone && request.mayLoad()) {
                KvMatch match;
                try {
                    match = source.get().match(request, local);
                } catch (InvalidFieldException e) {
                    plan.refuse(request, e);
                    continue;
                }
                switch (match) {
                    case KvMatch.None() -> {}
                    case KvMatch.Pending() -> {
                        pendingMatches++;
                        continue;
                    }
                    case KvMatch.Tokens(int count, boolean isAsync, boolean isReached) -> {
                        // One token must be computed in the step that loads the other tokens.
                        external = Math.min(count, request.length() - local - (isAsync ? 0 : 1));
                        async = isAsync && external > 0;
                        reached = isReached || !async;
                    }
                }
            }
            if (request.missesCacheThreshold(local + external)) {
                plan.missCache(request);
                continue;
            }
            waiting.setToLoad(request, async);
            int needed = blocks.most(request);
            if (!reached && unreached > 0 && unreached + needed > blocks.size() / UNREACHED_PART) {
                pendingMatches++;
                continue;
            }
            int known = local + external;
            // After a load between steps the prompt's last token is computed here in any case.
            int next = async ? Math.min(known, request.length() - 1) : loads.firstAfterStepLoad(request, local, known);
            int count = async ? 0 : plan.tokensFor(request, next);
            if (!async && count == 0) {
                continue;
            }
            blocks.leaveBehind(hits, next);
            if (!blocks.fits(request, hits, reserved)) {
                break;
            }
            blocks.share(request, hits);
            countHits(request, local, external);
            loads.begin(request, local, external);
            request.fromUnreachedPeer = !reached;
            unreached += reached ? 0 : needed;
            queue.remove();
            if (async) {
                live.awaitLoad(request);
                allocate(request, known, next, local, external);
                request.computedTokens = known;
            } else {
                run(request, next, count, local, external, plan);
            }
            reserved += blocks.missing(request);
        }
    }

    /**
     * @param known tokens that are not computed in this step, which begins behind them
     * @param local of these, tokens with KV that was here before
     * @param external of these, tokens that the connector loads within this step
     */
    private void run(Request request, int known, int count, int local, int external, StepPlan plan) {
        live.run(request);
        request.computedTokens = known;
        // The table has all tokens that are loaded, also those that a later step compares.
        allocate(request, Math.max(known + count, local + external), known, local, external);
        plan.add(request, known, count);
        blocks.addInFlight(request, inFlight);
    }

    /** @param next position of the first token that will be computed */
    private void allocate(Request request, int tokens, int next, int local, int external) {
        if (!blocks.grow(request, tokens, next)) {
            throw new IllegalStateException("admitted without room: " + request);
        }
        connector.of(request).ifPresent(c -> c.onAllocated(request, request.blocks.toArray(), local, external));
    }

    private void countHits(Request request, int local, int external) {
        if (config.prefixCaching()) {
            counters.prefixQueries += request.length();
            counters.prefixHits += local;
        }
        if (connector.of(request).isPresent() && !request.connectorDone) {
            counters.externalQueries += request.length() - local;
            counters.externalHits += external;
        }
        if (!request.everScheduled) {
            request.everScheduled = true;
            request.localHit = Math.min(local, request.outputStart());
            request.externalHit = Math.min(external, request.outputStart() - request.localHit);
        }
    }
}
