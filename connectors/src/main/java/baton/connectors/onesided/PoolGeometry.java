package baton.connectors.onesided;

import baton.kv.KvLayout;

/**
 * Where one rank's blocks lie, and which of the model's key/value heads they have.
 *
 * @param layout of a block
 * @param firstHead of the model's heads; the rank has {@code layout.kvHeads()} from there
 * @param blocks in the pool
 * @param regions where the layers of the blocks lie
 * @param interior how a layer's share of a block lies
 */
public record PoolGeometry(KvLayout layout, int firstHead, int blocks, LayerRegions regions, BlockInterior interior) {
    /** Whether the blocks lie as Baton's do. */
    boolean isPool() {
        return interior == BlockInterior.HEADS && regions.isContiguous(layout);
    }

    /** Address of a block of a pool. */
    long block(int block) {
        return regions.address(0, block);
    }

    /** Address of a layer's share of a block. */
    long page(int layer, int block) {
        return regions.address(layer, block);
    }

    /** Address of the key and value of a token, of pools that are not {@linkplain BlockInterior#isPacked packed}. */
    long entry(int layer, int block, int head, int slot) {
        long index =
                interior.isByHead() ? (long) head * layout.blockSize() + slot : (long) slot * layout.kvHeads() + head;
        return page(layer, block) + index * layout.entryBytes();
    }
}
