package baton.connectors.onesided;

import baton.kv.KvLayout;

/**
 * Where one rank's blocks lie, and which of the model's key/value heads they have.
 *
 * @param layout of a block
 * @param firstHead of the model's heads; the rank has {@code layout.kvHeads()} from there
 * @param blocks in the pool
 * @param address of block 0, in the rank's process
 */
public record PoolGeometry(KvLayout layout, int firstHead, int blocks, long address) {
    /** Address of a block. */
    long block(int block) {
        return address + block * layout.blockBytes();
    }
}
