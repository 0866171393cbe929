package baton.engine.core;

import baton.kv.BlockHash;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The requests that have not ended. Each of them runs or is in the {@link WaitingQueue}. */
final class LiveRequests {
    private final KvCacheManager blocks;
    private final WaitingQueue waiting;
    private final List<Request> running = new ArrayList<>();
    private final Map<String, Request> byId = new LinkedHashMap<>();
    private long arrivals;

    /** @param order in which requests are served; may depend on {@link Request#sequence} */
    LiveRequests(Comparator<Request> order, KvCacheManager blocks) {
        this.waiting = new WaitingQueue(order);
        this.blocks = blocks;
    }

    /** Queues a new request. */
    void add(Request request) {
        if (byId.putIfAbsent(request.id(), request) != null) {
            throw new IllegalStateException("id=" + request.id() + " is in use");
        }
        request.sequence = arrivals++;
        waiting.add(request);
    }

    boolean contains(String id) {
        return byId.containsKey(id);
    }

    Optional<Request> find(String id) {
        return Optional.ofNullable(byId.get(id));
    }

    /** All, in the order of arrival; a copy. */
    List<Request> all() {
        return List.copyOf(byId.values());
    }

    boolean isEmpty() {
        return byId.isEmpty();
    }

    List<Request> running() {
        return Collections.unmodifiableList(running);
    }

    WaitingQueue waiting() {
        return waiting;
    }

    /** Lets a request run that has been taken out of the queue. */
    void run(Request request) {
        request.state = Request.State.RUNNING;
        running.add(request);
    }

    /** Lets a request that has been taken out of the queue wait until its blocks are loaded. */
    void awaitLoad(Request request) {
        request.state = Request.State.WAITING_FOR_REMOTE_KVS;
        waiting.addWithBlocks(request);
    }

    /** Puts a request back to where it has no blocks and nothing computed. */
    void waitAgain(Request request) {
        unqueue(request);
        blocks.free(request);
        request.computedTokens = 0;
        request.loadingTokens = 0;
        request.loadedTo = request.loadedFrom;
        request.unverified = false;
        request.hidden = null;
        request.state = Request.State.WAITING;
        waiting.add(request);
    }

    /** Takes out a request that ends, with its blocks. */
    void end(Request request) {
        if (byId.remove(request.id()) == null) {
            throw new IllegalStateException("finished twice: " + request);
        }
        unqueue(request);
        request.state = Request.State.FINISHED;
    }

    /** Takes a request out of whichever queue it is in. */
    private void unqueue(Request request) {
        if (running.remove(request)) {
            wakeWaitersOf(request);
        }
        waiting.remove(request);
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

    /** @throws IllegalStateException naming the first broken invariant */
    void checkInvariants() {
        if (waiting.size() + running.size() != byId.size()) {
            throw new IllegalStateException("waiting=%d waitingWithBlocks=%d deferred=%d running=%d but live=%d"
                    .formatted(
                            waiting.withoutBlocks().size(),
                            waiting.withBlocks().size(),
                            waiting.deferredCount(),
                            running.size(),
                            byId.size()));
        }
        for (Request request : waiting.withoutBlocks()) {
            if (request.blocks.size() > 0 || request.computedTokens > 0) {
                throw new IllegalStateException("waits in the wrong queue: " + request);
            }
        }
    }
}
