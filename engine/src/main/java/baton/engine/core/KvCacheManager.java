package baton.engine.core;

import baton.kv.BlockHash;
import baton.kv.KvEvent;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Gives requests the blocks of a pool and shares computed blocks between them (the prefix cache), as vLLM's class of that name. It
 * decides nothing about the order of requests; that is the {@link Scheduler}'s part.
 */
final class KvCacheManager {
    private final BlockPool pool;
    private final CacheEvents events;
    private final int blockSize;
    private final boolean prefixCaching;
    /** Blocks that are never handed out again. */
    private final List<Integer> withheld = new ArrayList<>();

    /**
     * @param events receives blocks that become shared
     * @param prefixCaching whether computed blocks are shared
     */
    KvCacheManager(BlockPool pool, CacheEvents events, int blockSize, boolean prefixCaching) {
        this.pool = pool;
        this.events = events;
        this.blockSize = blockSize;
        this.prefixCaching = prefixCaching;
    }

    int blocksFor(int tokens) {
        return Math.ceilDiv(tokens, blockSize);
    }

    /** Blocks that the request lacks to hold all its tokens; negative if it has more. */
    int missing(Request request) {
        return blocksFor(request.length()) - request.blocks.size();
    }

    /** All blocks that there are. */
    int size() {
        return pool.size();
    }

    boolean hasFree(int blocks) {
        return blocks <= pool.free();
    }

    /** The cached blocks of the request's longest known prefix that leaves a token to compute. */
    List<Integer> computedBlocks(Request request) {
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

    /** Adds the hashes of blocks that a running request has not published. */
    void addInFlight(Request request, Set<BlockHash> inFlight) {
        if (prefixCaching) {
            List<BlockHash> hashes = request.blockHashes();
            inFlight.addAll(hashes.subList(Math.min(request.publishedBlocks, hashes.size()), hashes.size()));
        }
    }

    /**
     * The hash of the first block that the cache lacks of a request's prefix, if that block is in flight and can be shared.
     *
     * @param hits blocks of the prefix that the cache has
     */
    Optional<BlockHash> nextInFlight(Request request, int hits, Set<BlockHash> inFlight) {
        boolean shareable =
                prefixCaching && !request.wantsPromptLogprobs() && hits < (request.length() - 1) / blockSize;
        return shareable ? Optional.of(request.blockHashes().get(hits)).filter(inFlight::contains) : Optional.empty();
    }

    /**
     * True if the free blocks suffice for all the request's tokens.
     *
     * @param hits blocks that it shares
     * @param reserved free blocks that are kept for other requests
     */
    boolean fits(Request request, List<Integer> hits, int reserved) {
        int fromFree = (int) hits.stream().filter(pool::isFree).count();
        return pool.free() - reserved >= missing(request) - hits.size() + fromFree;
    }

    /** Gives the request, which has no blocks, shares of computed ones. */
    void share(Request request, List<Integer> hits) {
        for (int block : hits) {
            pool.hold(block);
            request.blocks.add(block);
        }
        request.publishedBlocks = hits.size();
    }

    /** Gives the request blocks for that many of its tokens. False, and nothing is done, if too few are free. */
    boolean grow(Request request, int tokens) {
        int fresh = blocksFor(tokens) - request.blocks.size();
        if (!hasFree(fresh)) {
            return false;
        }
        for (int i = 0; i < fresh; i++) {
            request.blocks.add(pool.allocate());
        }
        return true;
    }

    /** Takes all blocks from the request, the last one first. */
    void free(Request request) {
        for (int i = request.blocks.size() - 1; i >= 0; i--) {
            pool.release(request.blocks.get(i));
        }
        request.blocks.clear();
        request.publishedBlocks = 0;
    }

    /** Keeps all of the request's blocks from ever being handed out again, as a transfer that cannot be ended may use them. */
    void withhold(Request request) {
        for (int i = 0; i < request.blocks.size(); i++) {
            pool.hold(request.blocks.get(i));
            withheld.add(request.blocks.get(i));
        }
    }

    /**
     * Publishes the request's blocks that have been filled since the last call, unless the request only warms up.
     *
     * @param filled called with the hash of each
     */
    void publish(Request request, Consumer<BlockHash> filled) {
        if (!prefixCaching) {
            return;
        }
        int full = request.computedTokens / blockSize;
        if (full > request.publishedBlocks) {
            List<BlockHash> hashes = request.blockHashes();
            int unknown = request.publishedBlocks;
            while (request.publishedBlocks < full) {
                int index = request.publishedBlocks++;
                if (request.warmsUp() || !pool.publish(request.blocks.get(index), hashes.get(index))) {
                    events.stored(request, unknown, index);
                    unknown = index + 1;
                }
                filled.accept(hashes.get(index));
            }
            events.stored(request, unknown, full);
        }
    }

    /** Unpublishes a block whose content is bad. False if the pool has no such block. */
    boolean invalidate(int block) {
        boolean known = block >= 0 && block < pool.size();
        if (known) {
            pool.forget(block);
        }
        return known;
    }

    /** Unpublishes all the request's blocks, shared ones as well: one of them has numbers that are not finite. */
    void unpublish(Request request) {
        for (int i = 0; i < request.blocks.size(); i++) {
            pool.forget(request.blocks.get(i));
        }
        request.publishedBlocks = 0;
    }

    /** Unpublishes the request's blocks from this index on; the tokens in them are to be computed again. */
    void invalidateFrom(Request request, int first) {
        for (int i = first; i < request.blocks.size(); i++) {
            pool.forget(request.blocks.get(i));
        }
        request.publishedBlocks = Math.min(request.publishedBlocks, first);
        request.computedTokens = first * blockSize;
    }

    /** Changes since the last call: blocks that became shared, or ceased to be, then the connector's own changes. */
    boolean hasEvents() {
        return events.any();
    }

    List<KvEvent> takeEvents(List<KvEvent> ofConnector) {
        return events.take(ofConnector);
    }

    /** Forgets all contents. False, and nothing is done, while blocks are held. */
    boolean reset() {
        return pool.reset();
    }

    /**
     * @param holders all requests that may hold blocks
     * @throws IllegalStateException naming the first broken invariant
     */
    void checkInvariants(Collection<Request> holders) {
        pool.checkInvariants();
        Map<Integer, Integer> held = new HashMap<>();
        for (Request request : holders) {
            for (int i = 0; i < request.blocks.size(); i++) {
                held.merge(request.blocks.get(i), 1, Integer::sum);
            }
            if (request.computedTokens > request.length()
                    || request.blocks.size() * blockSize < request.computedTokens) {
                throw new IllegalStateException("broken: " + request + " blocks=" + request.blocks.size());
            }
        }
        withheld.forEach(block -> held.merge(block, 1, Integer::sum));
        held.forEach((block, count) -> {
            if (pool.references(block) != count) {
                throw new IllegalStateException("block=%d is held %d times but has references=%d"
                        .formatted(block, count, pool.references(block)));
            }
        });
        if (held.size() != pool.used()) {
            throw new IllegalStateException(
                    "blocks held by requests or withheld=" + held.size() + " used in pool=" + pool.used());
        }
    }
}
