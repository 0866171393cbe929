package baton.connectors.bykey;

import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import baton.store.ValueRanges;

/**
 * Where a rank's share of a block lies in a store's values, which have the layers of a block of all stages and all heads of the model.
 *
 * @param model layout of a block with all of them
 * @param firstLayer index in it of the rank's first layer
 * @param firstHead likewise
 * @param copy whether the rank before has the same heads, as there are more ranks than heads
 */
record PoolRanges(KvCache cache, KvLayout model, int firstLayer, int firstHead, boolean copy) {
    /** @param layersBefore layers of all stages before the rank's */
    static PoolRanges of(KvCache cache, KvLayout model, Rank rank, int layersBefore, int tensorParallelSize) {
        int firstHead = model.kvHeads() * rank.tensor() / tensorParallelSize;
        boolean copy = rank.tensor() > 0 && model.kvHeads() * (rank.tensor() - 1) / tensorParallelSize == firstHead;
        return new PoolRanges(cache, model, layersBefore, firstHead, copy);
    }

    /** An empty list of ranges in this pool. */
    ValueRanges ranges() {
        return new ValueRanges(cache.host());
    }

    /**
     * Adds the share of a block.
     *
     * @param key index of the chunk's key
     * @param blockInChunk index of the block in its chunk
     */
    void add(ValueRanges ranges, int key, int blockInChunk, int block) {
        KvLayout own = cache.layout();
        long value = blockInChunk * model.blockBytes() + model.layerOffset(firstLayer) + firstHead * model.headBytes();
        if (own.kvHeads() == model.kvHeads()) {
            ranges.add(key, value, block * own.blockBytes(), own.blockBytes());
            return;
        }
        for (int layer = 0; layer < own.layers(); layer++) {
            long inPool = block * own.blockBytes() + own.layerOffset(layer);
            ranges.add(key, value + model.layerOffset(layer), inPool, own.layerBytes());
        }
    }
}
