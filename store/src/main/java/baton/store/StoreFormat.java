package baton.store;

import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import java.util.Optional;

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
 * @param sealedBy the name of the key that values are sealed with; empty if they are plain
 */
public record StoreFormat(
        ModelFingerprint model,
        KvLayout layout,
        int blocksPerChunk,
        int tensorParallelSize,
        int pipelineParallelSize,
        int groups,
        Optional<String> sealedBy) {
    /** Bytes that a sealed value is longer than a plain one: a nonce of 12 and a tag of 16. */
    public static final int SEAL_BYTES = 28;

    public StoreFormat {
        if (blocksPerChunk <= 0) {
            throw new IllegalArgumentException("blocksPerChunk=" + blocksPerChunk + " must be positive");
        }
    }

    /** The format of plain values. */
    public StoreFormat(
            ModelFingerprint model,
            KvLayout layout,
            int blocksPerChunk,
            int tensorParallelSize,
            int pipelineParallelSize,
            int groups) {
        this(model, layout, blocksPerChunk, tensorParallelSize, pipelineParallelSize, groups, Optional.empty());
    }

    /** The format of plain values with all layers. */
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
        return blocksPerChunk * layout.blockBytes() + (sealedBy.isPresent() ? SEAL_BYTES : 0);
    }

    /** The same of values that are sealed with a key of this name. */
    public StoreFormat sealedBy(String key) {
        return new StoreFormat(
                model, layout, blocksPerChunk, tensorParallelSize, pipelineParallelSize, groups, Optional.of(key));
    }

    /** A stable text of all that makes values interchangeable; stores put it, or a digest of it, before or beside their keys. */
    public String describe() {
        return "model=%s %s blocks_per_chunk=%d tp_size=%d pp_size=%d%s%s"
                .formatted(
                        model.digest(),
                        layout.describe(),
                        blocksPerChunk,
                        tensorParallelSize,
                        pipelineParallelSize,
                        groups == 1 ? "" : " groups=" + groups,
                        sealedBy.map(key -> " sealed_by=" + key).orElse(""));
    }
}
