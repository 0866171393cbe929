package baton.kv;

/**
 * Where each cached key and value lies inside a block.
 *
 * <p>A block is one contiguous range, in this order: {@code [layer][kv head][token in block][K of head dim | V of head
 * dim]}. So a block of all layers is one transfer descriptor, a layer's slice of it is contiguous (layer-wise
 * hand-over), and so is a range of heads within a layer (a tensor-parallel rank's share). Within a layer the bytes are
 * those of vLLM's FlashAttention and FlashInfer blocks in HND order: {@code (blocks, heads, block_size, 2*head_dim)}.
 *
 * <p>Latent attention has one entry for each token in each layer, {@code [latent | rotated part]}, which is the key of all query heads and
 * the value too. It is a single head, so every tensor-parallel rank has the same entries. Within a layer the bytes are those of vLLM's MLA
 * blocks: {@code (blocks, block_size, head_dim)}.
 *
 * @param layers layers held by this pool
 * @param kvHeads key/value heads held by this pool
 * @param headDim elements of one key, and of one value
 * @param blockSize tokens in a block
 * @param dtype type of the elements
 * @param latent an entry is one vector of {@code headDim} elements; else it is a key and a value
 */
public record KvLayout(int layers, int kvHeads, int headDim, int blockSize, DType dtype, boolean latent) {
    /** The layout of a cache of keys and values. */
    public KvLayout(int layers, int kvHeads, int headDim, int blockSize, DType dtype) {
        this(layers, kvHeads, headDim, blockSize, dtype, false);
    }

    public KvLayout {
        requirePositive("layers", layers);
        requirePositive("kvHeads", kvHeads);
        requirePositive("headDim", headDim);
        requirePositive("blockSize", blockSize);
        if (latent && kvHeads != 1) {
            throw new IllegalArgumentException("kvHeads=" + kvHeads + " must be 1 where entries are latent");
        }
    }

    /** Elements of one token in one head of one layer. */
    public int entryElements() {
        return valueOffset() + headDim;
    }

    /** Elements of an entry in front of its value. */
    public int valueOffset() {
        return latent ? 0 : headDim;
    }

    /** Bytes of one token in one head of one layer. */
    public long entryBytes() {
        return (long) entryElements() * dtype.bytes();
    }

    /** Bytes of one head's tokens in one layer of a block. */
    public long headBytes() {
        return blockSize * entryBytes();
    }

    /** Bytes of one layer of a block. */
    public long layerBytes() {
        return kvHeads * headBytes();
    }

    /** Bytes of a block, all layers. */
    public long blockBytes() {
        return layers * layerBytes();
    }

    /** Bytes that one token occupies over all layers. */
    public long tokenBytes() {
        return (long) layers * kvHeads * entryBytes();
    }

    /** Offset of a layer inside a block. */
    public long layerOffset(int layer) {
        return layer * layerBytes();
    }

    /** Offset inside a block of the entry of one token. */
    public long entryOffset(int layer, int head, int slot) {
        return layerOffset(layer) + head * headBytes() + slot * entryBytes();
    }

    /** Blocks that {@code tokens} tokens need. */
    public int blocksFor(int tokens) {
        return Math.ceilDiv(tokens, blockSize);
    }

    /** A stable text form, part of the fingerprint two instances compare before they exchange blocks. */
    public String describe() {
        return "%s layers=%d kv_heads=%d head_dim=%d block_size=%d dtype=%s"
                .formatted(kind(), layers, kvHeads, headDim, blockSize, dtype.torchName());
    }

    /** How entries lie, in the text that {@link #describe} begins with. */
    public String kind() {
        return latent ? "latent" : "hnd-packed";
    }

    private static void requirePositive(String name, int value) {
        if (value <= 0) {
            throw new IllegalArgumentException(name + "=" + value + " must be positive");
        }
    }
}
