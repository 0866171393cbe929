package baton.engine.core;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Ended requests with blocks that a transfer still uses: a load writes to them, or the connector sends them. They are freed when all that
 * is reported as over.
 */
final class DelayedReleases {
    private final KvCacheManager blocks;
    private final Map<String, Held> byId = new HashMap<>();

    DelayedReleases(KvCacheManager blocks) {
        this.blocks = blocks;
    }

    /** A request and the reason why its blocks are kept. */
    private static final class Held {
        private final Request request;
        private boolean awaitsReceived;
        private boolean awaitsSent;
        private boolean answerLost;

        private Held(Request request, boolean awaitsReceived, boolean awaitsSent) {
            this.request = request;
            this.awaitsReceived = awaitsReceived;
            this.awaitsSent = awaitsSent;
        }
    }

    /**
     * Frees the blocks of a request that has ended, now or when the transfers that use them are over.
     *
     * @param awaitsReceived the connector has not yet reported that loading its blocks is over
     * @param awaitsSent the connector has not yet reported that its blocks are sent
     */
    void release(Request request, boolean awaitsReceived, boolean awaitsSent) {
        if (awaitsReceived || awaitsSent) {
            byId.put(request.id(), new Held(request, awaitsReceived, awaitsSent));
        } else {
            blocks.free(request);
        }
    }

    /** A load is over. False if none of a request here was awaited. */
    boolean received(String id) {
        Held held = byId.get(id);
        if (held == null || !held.awaitsReceived) {
            return false;
        }
        held.awaitsReceived = false;
        freeIfUnused(held);
        return true;
    }

    /** Blocks are sent. False if that was not awaited. */
    boolean sent(String id) {
        Held held = byId.get(id);
        if (held == null || !held.awaitsSent) {
            return false;
        }
        held.awaitsSent = false;
        freeIfUnused(held);
        return true;
    }

    private void freeIfUnused(Held held) {
        if (!held.awaitsReceived && !held.awaitsSent) {
            byId.remove(held.request.id());
            blocks.free(held.request);
        }
    }

    /**
     * The answer to a request was lost.
     *
     * @return its sequences with blocks being sent, or kept to be sent; each of them once
     */
    List<String> answerLost(String requestId) {
        List<String> ids = new ArrayList<>();
        for (Held held : byId.values()) {
            if (held.awaitsSent && !held.answerLost && held.request.isOf(requestId)) {
                held.answerLost = true;
                ids.add(held.request.id());
            }
        }
        return ids;
    }

    /** Blocks that loads from peers which were never reached may write to. */
    int blocksOfUnreachedPeers() {
        return byId.values().stream()
                .filter(held -> held.awaitsReceived && held.request.fromUnreachedPeer)
                .mapToInt(held -> held.request.blocks.heldByAll())
                .sum();
    }

    /** Frees all: nothing more will be reported. */
    void releaseAll() {
        for (Held held : byId.values()) {
            blocks.free(held.request);
        }
        byId.clear();
    }

    boolean contains(String id) {
        return byId.containsKey(id);
    }

    boolean isEmpty() {
        return byId.isEmpty();
    }

    int size() {
        return byId.size();
    }

    List<Request> requests() {
        return byId.values().stream().map(held -> held.request).toList();
    }
}
