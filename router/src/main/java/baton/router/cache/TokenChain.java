package baton.router.cache;

import baton.messages.events.ExtraKeys;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * A prompt's tokens and the hashes of its blocks. A block's hash depends on its tokens, on all before them, and on the keys that separate
 * caches (cache salt, LoRA adapter). These are hashes of the router's own, so that blocks of engines that hash in different ways are the
 * same here. One thread at a time.
 */
public final class TokenChain {
    /** Hash of the block before the first. */
    static final long ROOT = 0x2545F4914F6CDD1DL;

    private static final long MULTIPLIER = 0x9E3779B97F4A7C15L;
    private static final long SECOND = 0xD6E8FEB86659FD93L;

    private final int[] tokens;
    private final long first;
    private final long later;
    private int blockSize;
    private int lookahead;
    private long[] hashes = new long[0];

    /**
     * @param tokens of the prompt; not copied
     * @param salt the request's {@code cache_salt}
     * @param lora name of the LoRA adapter that the request is for
     */
    public TokenChain(int[] tokens, Optional<String> salt, Optional<String> lora) {
        this.tokens = tokens;
        List<String> adapter = lora.map(List::of).orElse(List.of());
        this.later = ExtraKeys.of(adapter);
        this.first = salt.map(value ->
                        ExtraKeys.of(lora.map(name -> List.of(name, value)).orElse(List.of(value))))
                .orElse(later);
    }

    public int tokens() {
        return tokens.length;
    }

    /**
     * The hashes of the whole blocks of that size.
     *
     * @param behind tokens behind a block that its hash covers, too; without them in the prompt the block has none
     */
    long[] hashes(int size, int behind) {
        if (size != blockSize || behind != lookahead) {
            blockSize = size;
            lookahead = behind;
            hashes = new long[Math.max(0, tokens.length - behind) / size];
            long hash = ROOT;
            for (int i = 0; i < hashes.length; i++) {
                hash = next(hash, tokens, i * size, size + behind, i == 0 ? first : later);
                hashes[i] = hash;
            }
        }
        return hashes;
    }

    /**
     * The hash of a block.
     *
     * @param parent hash of the block before it, {@link #ROOT} for the first
     * @param extra {@link ExtraKeys} of the block
     */
    static long next(long parent, int[] tokens, int from, int count, long extra) {
        long hash = parent ^ extra * SECOND ^ count;
        for (int i = from; i < from + count; i++) {
            hash = (hash ^ tokens[i]) * MULTIPLIER;
            hash ^= hash >>> 32;
        }
        hash *= SECOND;
        hash ^= hash >>> 29;
        return hash == 0 ? 1 : hash;
    }

    @Override
    public String toString() {
        return tokens.length + " tokens " + Arrays.toString(Arrays.copyOf(tokens, Math.min(4, tokens.length)));
    }
}
