package baton.kv;

import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * Copies keys and values between the blocks of a pool, where a head's tokens are neighbours, and token-major memory, where a
 * token's heads are neighbours: the order of vLLM's tensors and files.
 *
 * @param cache the pool
 * @param firstHead the first of the pool's heads that are copied
 * @param heads how many
 */
public record BlockCopy(KvCache cache, int firstHead, int heads) {
    /**
     * Memory that holds one layer of some tokens, token by token.
     *
     * <p>It may have more heads than are copied, as a file of a whole model does.
     */
    public sealed interface TokenMajor {
        /** Heads of a token. */
        int heads();

        /** The head that stands for the first one that is copied. */
        int firstHead();

        /** {@code [token][head][K | V]}. */
        record Packed(MemorySegment memory, int heads, int firstHead) implements TokenMajor {}

        /** {@code [token][head][K]} and {@code [token][head][V]}. */
        record Split(MemorySegment keys, MemorySegment values, int heads, int firstHead) implements TokenMajor {}
    }

    /** All heads of a pool. */
    public BlockCopy(KvCache cache) {
        this(cache, 0, cache.layout().kvHeads());
    }

    public BlockCopy {
        Objects.checkFromIndexSize(firstHead, heads, cache.layout().kvHeads());
    }

    /**
     * Copies tokens out of blocks.
     *
     * @param layer of the pool
     * @param blocks the blocks of a sequence, in order; their tokens are counted from 0
     * @param from the first token
     * @param end behind the last token
     * @param at where {@code from} is in {@code to}, in tokens
     * @throws IndexOutOfBoundsException if the blocks or the memory do not hold the tokens, or the pool not the layer
     */
    public void gather(int layer, int[] blocks, int from, int end, TokenMajor to, long at) {
        copy(layer, blocks, from, end, to, at, false);
    }

    /** Copies tokens into blocks; parameters as in {@link #gather}. Other tokens of the blocks keep their bytes. */
    public void scatter(int layer, int[] blocks, int from, int end, TokenMajor source, long at) {
        copy(layer, blocks, from, end, source, at, true);
    }

    private void copy(int layer, int[] blocks, int from, int end, TokenMajor memory, long at, boolean toPool) {
        KvLayout layout = cache.layout();
        Objects.checkFromToIndex((long) from, (long) end, (long) blocks.length * layout.blockSize());
        Objects.checkFromIndexSize(memory.firstHead(), heads, memory.heads());
        long entry = layout.entryBytes();
        long vector = entry / 2;
        for (int token = from; token < end; ) {
            int slot = token % layout.blockSize();
            int count = Math.min(layout.blockSize() - slot, end - token);
            long inPool = cache.layerStart(blocks[token / layout.blockSize()], layer) + slot * entry;
            for (int head = 0; head < heads; head++) {
                long first = inPool + (firstHead + head) * layout.headBytes();
                // In vectors or entries from the beginning of the memory.
                long index = (at + token - from) * memory.heads() + memory.firstHead() + head;
                switch (memory) {
                    case TokenMajor.Packed(MemorySegment entries, int stride, int _) ->
                        copy(first, entry, entries, index * entry, stride * entry, count, toPool);
                    case TokenMajor.Split(MemorySegment keys, MemorySegment values, int stride, int _) -> {
                        copy(first, vector, keys, index * vector, stride * vector, count, toPool);
                        copy(first + vector, vector, values, index * vector, stride * vector, count, toPool);
                    }
                }
            }
            token += count;
        }
    }

    /** Copies a run of {@code bytes} of each of {@code count} neighbouring tokens of one head. */
    private void copy(
            long inPool, long bytes, MemorySegment memory, long inMemory, long tokenBytes, int count, boolean toPool) {
        MemorySegment pool = cache.host();
        long entry = cache.layout().entryBytes();
        for (int i = 0; i < count; i++) {
            if (toPool) {
                MemorySegment.copy(memory, inMemory + i * tokenBytes, pool, inPool + i * entry, bytes);
            } else {
                MemorySegment.copy(pool, inPool + i * entry, memory, inMemory + i * tokenBytes, bytes);
            }
        }
    }
}
