package baton.engine.core;

import baton.kv.BlockHash;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.NavigableSet;
import java.util.Set;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * The requests of a {@link Scheduler} that are not running, each in one of three places: in order without blocks, in order with
 * blocks (a load is filling them, or has filled them), or deferred until a block that a running request computes can be shared.
 */
final class WaitingQueue {
    private final NavigableSet<Request> withoutBlocks;
    private final NavigableSet<Request> withBlocks;
    /** Deferred requests, by the block that a running request is computing. Not scheduled before that block is there. */
    private final Map<BlockHash, Set<Request>> deferred = new HashMap<>();

    /** Requests without blocks that need a load between steps. */
    private final Set<Request> toLoad = new HashSet<>();

    private int deferredCount;
    /** Where the next iteration begins, if the last one was interrupted. */
    private @Nullable Request resumeAt;

    WaitingQueue(Comparator<Request> order) {
        this.withoutBlocks = new TreeSet<>(order);
        this.withBlocks = new TreeSet<>(order);
    }

    int size() {
        return withoutBlocks.size() + withBlocks.size() + deferredCount;
    }

    int deferredCount() {
        return deferredCount;
    }

    /** The number of requests with blocks that a load is filling. */
    int loadingCount() {
        int count = 0;
        for (Request request : withBlocks) {
            count += request.state == Request.State.WAITING_FOR_REMOTE_KVS ? 1 : 0;
        }
        return count;
    }

    /** Requests that need a load between steps which has not begun. */
    int toLoadCount() {
        return toLoad.size();
    }

    /** Notes whether a request without blocks needs a load between steps. */
    void setToLoad(Request request, boolean needed) {
        if (needed) {
            toLoad.add(request);
        } else {
            toLoad.remove(request);
        }
    }

    /** Adds a request that has no blocks. */
    void add(Request request) {
        withoutBlocks.add(request);
    }

    /** Adds a request with blocks that are being loaded. */
    void addWithBlocks(Request request) {
        toLoad.remove(request);
        withBlocks.add(request);
    }

    /** The requests in order; the iterator's {@code remove} takes them out of the queue. */
    Set<Request> withBlocks() {
        return withBlocks;
    }

    Set<Request> withoutBlocks() {
        return Collections.unmodifiableSet(withoutBlocks);
    }

    /** Requests without blocks, from the first in order or, once, from where {@link #resumeAt} said. {@code remove} takes them out. */
    Iterator<Request> startOfQueue() {
        Request from = resumeAt;
        resumeAt = null;
        return from == null
                ? withoutBlocks.iterator()
                : withoutBlocks.tailSet(from, true).iterator();
    }

    /** Requests without blocks, all of them. {@code remove} takes them out. */
    Iterator<Request> firstOfQueue() {
        return withoutBlocks.iterator();
    }

    /** Whether there are requests, not deferred, that are served before others. */
    boolean hasFirst() {
        return (!withoutBlocks.isEmpty() && withoutBlocks.getFirst().isFirst())
                || (!withBlocks.isEmpty() && withBlocks.getFirst().isFirst());
    }

    /** Lets the next iteration begin at this request. */
    void resumeAt(Request request) {
        resumeAt = request;
    }

    /** Lets a request that is in neither queue wait for a block. */
    void defer(Request request, BlockHash until) {
        request.deferredUntil = until;
        deferred.computeIfAbsent(until, _ -> new LinkedHashSet<>()).add(request);
        deferredCount++;
    }

    boolean hasDeferred() {
        return !deferred.isEmpty();
    }

    /** Queues the requests that wait for this block: it can be shared, or is no longer being computed. */
    void wake(BlockHash hash) {
        Set<Request> woken = deferred.remove(hash);
        if (woken != null) {
            deferredCount -= woken.size();
            for (Request request : woken) {
                request.deferredUntil = null;
                withoutBlocks.add(request);
            }
        }
    }

    /** Takes a request out of wherever it is, if it is anywhere. */
    void remove(Request request) {
        withoutBlocks.remove(request);
        withBlocks.remove(request);
        toLoad.remove(request);
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
}
