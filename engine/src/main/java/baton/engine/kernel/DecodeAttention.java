package baton.engine.kernel;

import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.util.Optional;

/**
 * Attention of one row's queries that share a key/value head, as in decode. They are too few to fill the lanes of a panel, as they do in
 * {@link PagedAttention}. Each sum's terms come in the same order as there, so the results are the same bits.
 */
sealed interface DecodeAttention permits VectorDecodeAttention, TileDecodeAttention {
    /**
     * With the working memory of one thread; empty if it cannot be used or is not faster: vectors of keys lie in one block, and a panel's lanes
     * would be half empty. Then the queries are all that share the head.
     */
    static Optional<DecodeAttention> of(
            Kernels kernels, KvCache cache, int queries, AttentionScores attentionScores, Arena arena) {
        KvLayout layout = cache.layout();
        boolean suits = 2 * queries <= kernels.panelWidth()
                && layout.blockSize() % kernels.width().lanes() == 0
                && layout.headDim() % kernels.panelWidth() == 0
                && layout.headDim() % DecodeCode.keyElements(kernels.width(), layout.dtype()) == 0;
        if (!suits) {
            return Optional.empty();
        }
        return Optional.of(
                kernels.hasTiles() && PagedAttention.suitsPairs(kernels, layout)
                        ? new TileDecodeAttention(kernels, cache, queries, attentionScores, arena)
                        : new VectorDecodeAttention(kernels, cache, queries, attentionScores, arena));
    }

    /**
     * Keys and values that a row attends to.
     *
     * @param blockTable of the row's sequence
     * @param head of keys and values
     * @param first position of the first run
     * @param visible first position that is attended to
     * @param end behind the last position
     */
    record Context(int[] blockTable, int head, int first, int visible, int end) {}

    /**
     * @param next the context that the thread will probably attend to next: its keys and values may be prefetched; {@code context} if there
     *     is none
     * @param from address of the first query in fp32, which the other queries follow
     * @param to address of the first query's result in fp32
     */
    void attend(int layer, Context context, Context next, long from, long to);
}
