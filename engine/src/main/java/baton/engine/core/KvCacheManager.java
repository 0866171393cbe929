package baton.engine.core;

import baton.kv.BlockHash;
import baton.kv.KvEvent;
import baton.kv.KvGroups;
import baton.kv.KvGroups.Group;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.IntConsumer;

/**
 * Gives requests the blocks of a pool and shares computed blocks between them (the prefix cache), as vLLM's class of that name. It
 * decides nothing about the order of requests; that is the {@link Scheduler}'s part.
 */
final class KvCacheManager {
    private final BlockPool pool;
    private final CacheEvents events;
    private final List<Group> groups;
    private final int blockSize;
    private final boolean prefixCaching;
    /** Tokens of a request that a step computes at most. */
    private final int step;
    /** Blocks that are never handed out again. */
    private final List<Integer> withheld = new ArrayList<>();

    /** @param events receives blocks that become shared */
    KvCacheManager(BlockPool pool, CacheEvents events, SchedulerConfig config) {
        this.pool = pool;
        this.events = events;
        this.groups = pool.groups().groups();
        this.blockSize = config.blockSize();
        this.prefixCaching = config.prefixCaching();
        this.step = config.maxTokensOfRequest();
    }

    int blocksFor(int tokens) {
        return Math.ceilDiv(tokens, blockSize);
    }

    /** Blocks that the request may lack until all its tokens are computed. */
    int missing(Request request) {
        return missing(request, request.blocks);
    }

    private int missing(Request request, BlockTable blocks) {
        int missing = 0;
        int atOnce = Math.clamp(request.length() - request.computedTokens, 1, step);
        for (int group = 0; group < groups.size(); group++) {
            int most = groups.get(group).blocksFor(request.length(), atOnce, blockSize);
            missing += Math.max(0, most - blocks.held(group));
        }
        return missing;
    }

    /** Blocks that the request holds at once, at most. */
    int most(Request request) {
        int atOnce = Math.clamp(request.length(), 1, step);
        return groups.stream()
                .mapToInt(group -> group.blocksFor(request.length(), atOnce, blockSize))
                .sum();
    }

    /** Whether some layers keep only the blocks that a window reaches. */
    boolean hasWindows() {
        return pool.groups().hasWindows();
    }

    /** All blocks that there are. */
    int size() {
        return pool.size();
    }

    boolean hasFree(int blocks) {
        return blocks <= pool.free();
    }

    /**
     * The cached blocks of the request's longest known prefix that leaves a token to compute: of groups that keep all positions all blocks, of
     * groups with a window those that the next token attends to.
     */
    BlockTable computedBlocks(Request request) {
        BlockTable hits = new BlockTable(groups.size());
        if (!prefixCaching || request.wantsPromptLogprobs()) {
            return hits;
        }
        List<BlockHash> hashes = request.blockHashes();
        int known = (request.length() - 1) / blockSize;
        for (int group = 0; group < groups.size(); group++) {
            if (groups.get(group).window().isEmpty()) {
                int whole = 0;
                while (whole < known && pool.cached(group, hashes.get(whole)).isPresent()) {
                    whole++;
                }
                known = whole;
            }
        }
        for (int group = 0; group < groups.size(); ) {
            if (groups.get(group).window().isEmpty()) {
                group++;
                continue;
            }
            int at = known - 1;
            int first = firstAttended(group, known * blockSize);
            while (at >= first && pool.cached(group, hashes.get(at)).isPresent()) {
                at--;
            }
            // A block that is missing in the window of a prefix is missing in the windows of all shorter ones that
            // contain it.
            group = at < first ? group + 1 : 0;
            known = at < first ? known : at;
        }
        for (int i = 0; i < known; i++) {
            BlockHash hash = hashes.get(i);
            hits.add(group -> pool.cached(group, hash).orElse(KvGroups.NULL_BLOCK));
        }
        leaveBehind(hits, known * blockSize);
        return hits;
    }

    /** The index of the first block of a group that the token at {@code position} attends to. */
    private int firstAttended(int group, int position) {
        return groups.get(group).firstOf(position) / blockSize;
    }

    /** Takes the blocks out of a table, which does not hold them, that the token at {@code position}, and later ones, do not attend to. */
    void leaveBehind(BlockTable hits, int position) {
        leaveBehind(hits, position, _ -> {});
    }

    /**
     * Takes the blocks out of a table that the token at {@code position}, and later ones, do not attend to.
     *
     * @param left called with each block
     */
    private void leaveBehind(BlockTable blocks, int position, IntConsumer left) {
        for (int group = 0; group < groups.size(); group++) {
            int first = Math.min(blocks.size(), firstAttended(group, position));
            while (blocks.first(group) < first) {
                left.accept(blocks.leaveBehind(group));
            }
        }
    }

    /** Calls with each block of a table, the last ones first, that is not a null block. */
    private void forEach(BlockTable blocks, IntConsumer action) {
        for (int i = blocks.size() - 1; i >= 0; i--) {
            for (int group = 0; group < groups.size(); group++) {
                if (i >= blocks.first(group)) {
                    action.accept(blocks.get(group, i));
                }
            }
        }
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
    boolean fits(Request request, BlockTable hits, int reserved) {
        List<Integer> fromFree = new ArrayList<>();
        forEach(hits, block -> {
            if (pool.isFree(block)) {
                fromFree.add(block);
            }
        });
        return pool.free() - reserved >= missing(request, hits) + fromFree.size();
    }

    /** Gives the request, which has no blocks, shares of computed ones. */
    void share(Request request, BlockTable hits) {
        forEach(hits, pool::hold);
        request.blocks = hits;
        request.publishedBlocks = hits.size();
    }

    /**
     * Gives the request blocks for that many of its tokens, and takes those that its windows have left behind. False, and none are given, if too
     * few are free.
     *
     * @param next position of the first token that will be computed
     */
    boolean grow(Request request, int tokens, int next) {
        BlockTable table = request.blocks;
        leaveBehind(table, next, pool::release);
        int end = blocksFor(tokens);
        int fresh = 0;
        for (int group = 0; group < groups.size(); group++) {
            fresh += Math.max(0, end - Math.max(table.size(), firstAttended(group, next)));
        }
        if (!hasFree(fresh)) {
            return false;
        }
        for (int i = table.size(); i < end; i++) {
            int index = i;
            table.add(group -> index < firstAttended(group, next) ? KvGroups.NULL_BLOCK : pool.allocate());
        }
        leaveBehind(table, next);
        return true;
    }

    /** Takes all blocks from the request, the last one first. */
    void free(Request request) {
        forEach(request.blocks, pool::release);
        request.blocks.clear();
        request.publishedBlocks = 0;
    }

    /** Keeps all of the request's blocks from ever being handed out again, as a transfer that cannot be ended may use them. */
    void withhold(Request request) {
        forEach(request.blocks, block -> {
            pool.hold(block);
            withheld.add(block);
        });
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
            String tenant = request.tenant();
            for (int group = 0; group < groups.size(); group++) {
                int unknown = Math.min(full, Math.max(request.publishedBlocks, request.blocks.first(group)));
                for (int i = unknown; i < full; i++) {
                    if (request.warmsUp()
                            || !pool.publish(group, request.blocks.get(group, i), hashes.get(i), tenant)) {
                        events.stored(request, group, unknown, i);
                        unknown = i + 1;
                    }
                }
                events.stored(request, group, unknown, full);
            }
            hashes.subList(request.publishedBlocks, full).forEach(filled);
            request.publishedBlocks = full;
        }
    }

    /** Unpublishes a block with bad content. False if the pool has no such block. */
    boolean invalidate(int block) {
        boolean known = pool.has(block);
        if (known) {
            pool.forget(block);
        }
        return known;
    }

    /** Unpublishes all the request's blocks, shared ones as well: one of them has numbers that are not finite. */
    void unpublish(Request request) {
        forEach(request.blocks, pool::forget);
        for (int group = 0; group < groups.size(); group++) {
            // Blocks that its window has left behind.
            for (BlockHash hash : request.blockHashes().subList(0, request.blocks.first(group))) {
                pool.cached(group, hash).ifPresent(pool::forget);
            }
        }
        request.publishedBlocks = 0;
    }

    /** Unpublishes the request's blocks from this index on; the tokens in them are to be computed again. */
    void invalidateFrom(Request request, int first) {
        for (int group = 0; group < groups.size(); group++) {
            for (int i = Math.max(first, request.blocks.first(group)); i < request.blocks.size(); i++) {
                pool.forget(request.blocks.get(group, i));
            }
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
            forEach(request.blocks, block -> held.merge(block, 1, Integer::sum));
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
