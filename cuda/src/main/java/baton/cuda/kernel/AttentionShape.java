package baton.cuda.kernel;

import baton.kv.DType;

/**
 * The shape that a kernel of attention is generated for.
 *
 * @param headDim elements of a key, a multiple of 8
 * @param blockSize of the cache
 * @param sharing query heads that share a key/value head
 * @param capped scores have a bound
 * @param sinks each query head has a score without a value
 * @param latent an entry is key and value
 */
record AttentionShape(
        DType queries,
        DType results,
        DType cache,
        int headDim,
        int blockSize,
        int sharing,
        boolean capped,
        boolean sinks,
        boolean latent) {
    /** Elements that a thread loads at once. */
    static final int CHUNK = 8;

    /** The largest score before any is seen, and the exponent below which a weight is 0 beside it. */
    static final float NO_SCORE = -1e30f;

    int chunks() {
        return headDim / CHUNK;
    }

    int entryBytes() {
        return valueStart() + headDim * cache.bytes();
    }

    /** Bytes of an entry before its value. */
    int valueStart() {
        return latent ? 0 : headDim * cache.bytes();
    }

    int headBytes() {
        return blockSize * entryBytes();
    }
}
