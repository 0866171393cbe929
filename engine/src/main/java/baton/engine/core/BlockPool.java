package baton.engine.core;

import baton.kv.BlockHash;
import baton.kv.KvGroups;
import baton.kv.OwnerThread;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/*
 * Invariants (checkInvariants tests them)
 *
 *   A block is free if no request holds it (reference count 0), and then it is in the free list exactly once.
 *   A block may have a hash; then its bytes are the KV of the tokens that the hash stands for, and the index maps the hash to it.
 *   A free block keeps its hash until it is handed out again, so freeing is also caching.
 *   A hash stands for a block in each group of layers. Where groups have windows, the null block is neither free nor held.
 *
 * Eviction
 *
 *   The free list is in the order of freeing, least recently used first, and blocks are handed out from its front. A request's
 *   blocks are freed last block first: the ends of sequences are evicted before the beginnings that other requests may share.
 *   Where tenants have shares, blocks without content, and those of a tenant that are more than its share, go before all others, in the
 *   same order, from a list of their own.
 *
 * Concurrency
 *
 *   None: the scheduler's thread owns it, which methods that change it check. Lists are arrays of indices; nothing is allocated per
 *   block.
 */

/** The blocks of one KV cache: how often each is held, which are free, and which content free or shared blocks still have. */
final class BlockPool {
    private static final int NONE = -1;

    private final OwnerThread owner = OwnerThread.firstToCheck();
    private final int[] references;
    private final @Nullable BlockHash[] hashes;
    /** The group of each block with a hash. */
    private final int[] groupOf;

    private final KvGroups groups;
    /** The blocks by hash, for each group. */
    private final List<Map<BlockHash, Integer>> index;
    /** The first block that is handed out. */
    private final int first;

    private final int[] next;
    private final int[] previous;
    /** Both ends of the free list: an extra element after the blocks. */
    private final int anchor;
    /** The same of the list of free blocks that go before all others. */
    private final int excess;

    /** The tenant of each block with a hash: that of the request which computed it. */
    private final @Nullable String[] tenants;
    /** Free blocks with content that one tenant has in the free list; all blocks if tenants have no shares. */
    private final int share;
    /** These blocks by tenant, least recently used first. Empty if tenants have no shares. */
    private final Map<String, LinkedHashSet<Integer>> ofTenants = new HashMap<>();

    private final CacheEvents events;
    private int free;

    BlockPool(int blocks) {
        this(blocks, KvGroups.one(1), CacheEvents.disabled(), 1);
    }

    /**
     * @param groups of layers that have blocks of their own
     * @param events receives hashes of evicted blocks
     * @param tenantShare of the blocks, as {@link baton.engine.EngineConfig#tenantCacheShare}
     */
    BlockPool(int blocks, KvGroups groups, CacheEvents events, double tenantShare) {
        this.groups = groups;
        this.events = events;
        index = Stream.<Map<BlockHash, Integer>>generate(HashMap::new)
                .limit(groups.size())
                .toList();
        first = groups.hasWindows() ? KvGroups.NULL_BLOCK + 1 : 0;
        groupOf = new int[blocks];
        references = new int[blocks];
        hashes = new @Nullable BlockHash[blocks];
        tenants = new @Nullable String[blocks];
        share = (int) Math.ceil(tenantShare * (blocks - first));
        next = new int[blocks + 2];
        previous = new int[blocks + 2];
        anchor = blocks;
        excess = blocks + 1;
        for (int end : new int[] {anchor, excess}) {
            next[end] = end;
            previous[end] = end;
        }
        for (int block = first; block < blocks; block++) {
            appendFree(block);
        }
    }

    KvGroups groups() {
        return groups;
    }

    /** Blocks that can be handed out. */
    int size() {
        return references.length - first;
    }

    /** Whether it is a block that can be handed out. */
    boolean has(int block) {
        return block >= first && block < references.length;
    }

    int free() {
        return free;
    }

    int used() {
        return size() - free;
    }

    /** The block that has the content of that hash in a group, held or free. */
    OptionalInt cached(int group, BlockHash hash) {
        Integer block = index.get(group).get(hash);
        return block == null ? OptionalInt.empty() : OptionalInt.of(block);
    }

    boolean isFree(int block) {
        return references[block] == 0;
    }

    /** How often the block is held. */
    int references(int block) {
        return references[block];
    }

    /** Hands out the first free block with one reference; its content is forgotten. */
    int allocate() {
        owner.check();
        int block = next[next[excess] == excess ? anchor : excess];
        if (block == anchor) {
            throw new IllegalStateException("no free block: blocks=" + size());
        }
        unlinkFree(block);
        references[block] = 1;
        forget(block);
        return block;
    }

    /** Adds a reference to a block to use its content. */
    void hold(int block) {
        owner.check();
        if (references[block]++ == 0) {
            unlinkFree(block);
        }
    }

    /** Drops a reference. The block becomes free with the last one, and keeps its content until handed out again. */
    void release(int block) {
        owner.check();
        if (references[block] <= 0) {
            throw new IllegalStateException("block=" + block + " is released but not held");
        }
        if (--references[block] == 0) {
            appendFree(block);
        }
    }

    /**
     * Records that a held block has the content of that hash in a group. If another block is cached for that, it stays the cached one.
     *
     * @param tenant the block counts for the share of this tenant
     * @return whether the hash was not known before
     */
    boolean publish(int group, int block, BlockHash hash, String tenant) {
        owner.check();
        if (references[block] <= 0) {
            throw new IllegalStateException("block=" + block + " is published but not held");
        }
        if (hashes[block] == null && index.get(group).putIfAbsent(hash, block) == null) {
            hashes[block] = hash;
            groupOf[block] = group;
            tenants[block] = tenant;
            return true;
        }
        return false;
    }

    /** Removes the block's hash: the hash does not, or no longer, match its content. */
    void forget(int block) {
        owner.check();
        BlockHash hash = hashes[block];
        if (hash != null) {
            index.get(groupOf[block]).remove(hash);
            hashes[block] = null;
            if (isFree(block)) {
                leaveShare(block);
            }
            events.removed(groupOf[block], hash);
        }
    }

    /** The hashes that {@link #cached} finds in a group. */
    Set<BlockHash> cachedHashes(int group) {
        return Set.copyOf(index.get(group).keySet());
    }

    /** Forgets all contents. False, and nothing is done, while blocks are held. */
    boolean reset() {
        owner.check();
        if (used() > 0) {
            return false;
        }
        index.forEach(Map::clear);
        Arrays.fill(hashes, null);
        ofTenants.clear();
        events.cleared();
        return true;
    }

    /** @throws IllegalStateException naming the first broken invariant */
    void checkInvariants() {
        int listed = 0;
        for (int end : new int[] {anchor, excess}) {
            for (int block = next[end]; block != end; block = next[block]) {
                require(references[block] == 0, "free, but has references", block);
                require(next[previous[block]] == block && previous[next[block]] == block, "broken links", block);
                require(++listed <= size(), "in a cycle of the free list", block);
            }
        }
        ofTenants.values().forEach(own -> require(own.size() <= share, "more than a tenant's share", own.size()));
        require(listed == free, "number of free blocks is not that of the free list", listed);
        int hashed = 0;
        for (int block = first; block < references.length; block++) {
            require(references[block] >= 0, "negative references", block);
            require(references[block] > 0 || next[block] != NONE, "neither held nor free", block);
            BlockHash hash = hashes[block];
            if (hash != null) {
                Integer indexed = index.get(groupOf[block]).get(hash);
                require(indexed != null && indexed == block, "index does not have its hash", block);
                hashed++;
            }
        }
        int indexed = 0;
        for (Map<BlockHash, Integer> ofGroup : index) {
            indexed += ofGroup.size();
        }
        require(indexed == hashed, "index has more hashes than blocks have", indexed);
    }

    /** Called for each block in each step of tests: so the message is only made if the rule is broken. */
    private static void require(boolean holds, String broken, int value) {
        if (!holds) {
            throw new IllegalStateException("block pool is broken: " + broken + ": " + value);
        }
    }

    private void appendFree(int block) {
        boolean divided = share < size();
        append(block, divided && hashes[block] == null ? excess : anchor);
        String tenant = tenants[block];
        if (divided && hashes[block] != null && tenant != null) {
            LinkedHashSet<Integer> own = ofTenants.computeIfAbsent(tenant, _ -> new LinkedHashSet<>());
            own.add(block);
            if (own.size() > share) {
                int oldest = own.getFirst();
                unlinkFree(oldest);
                append(oldest, excess);
            }
        }
    }

    /** Puts a block at the end of a list. */
    private void append(int block, int end) {
        int last = previous[end];
        next[last] = block;
        previous[block] = last;
        next[block] = end;
        previous[end] = block;
        free++;
    }

    private void leaveShare(int block) {
        String tenant = tenants[block];
        if (tenant != null) {
            ofTenants.computeIfPresent(tenant, (_, own) -> own.remove(block) && own.isEmpty() ? null : own);
        }
    }

    private void unlinkFree(int block) {
        next[previous[block]] = next[block];
        previous[next[block]] = previous[block];
        next[block] = NONE;
        previous[block] = NONE;
        free--;
        leaveShare(block);
    }
}
