package baton.store;

import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;

/**
 * The format of a store's values: stores of equal formats can exchange values, all other ones cannot. A value is a chunk: the blocks
 * that follow each other in a sequence, each as {@code [layer][kv head][token in block][K | V]} with all heads of the model and all layers, or
 * those of one group of layers. The share of a tensor-parallel rank is so a range of each layer of each block, that of a pipeline stage a
 * range of each block.
 *
 * @param model that computed the values
 * @param layout of a block with all heads of the model
 * @param blocksPerChunk blocks in a value
 * @param tensorParallelSize ranks that computed the heads: their sums round differently from those of another number of ranks. 0 where
 *     values of any number are taken
 * @param pipelineParallelSize stages that computed the layers; 0 likewise
 * @param groups of layers; a value has the layers of one
 */
public record StoreFormat(
        ModelFingerprint model,
        KvLayout layout,
        int blocksPerChunk,
        int tensorParallelSize,
        int pipelineParallelSize,
        int groups) {
    public StoreFormat {
        if (blocksPerChunk <= 0) {
            throw new IllegalArgumentException("blocksPerChunk=" + blocksPerChunk + " must be positive");
        }
    }

    /** Of values with all layers. */
    public StoreFormat(
            ModelFingerprint model,
            KvLayout layout,
            int blocksPerChunk,
            int tensorParallelSize,
            int pipelineParallelSize) {
        this(model, layout, blocksPerChunk, tensorParallelSize, pipelineParallelSize, 1);
    }

    /** Tokens of a value. */
    public int tokens() {
        return blocksPerChunk * layout.blockSize();
    }

    /** Bytes of a value. */
    public long valueBytes() {
        return blocksPerChunk * layout.blockBytes();
    }

    /** A stable text of all that makes values interchangeable; stores put it, or a digest of it, before or beside their keys. */
    public String describe() {
        return "model=%s %s blocks_per_chunk=%d tp_size=%d pp_size=%d%s"
                .formatted(
                        model.digest(),
                        layout.describe(),
                        blocksPerChunk,
                        tensorParallelSize,
                        pipelineParallelSize,
                        groups == 1 ? "" : " groups=" + groups);
    }
}
