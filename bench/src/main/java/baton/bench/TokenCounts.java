package baton.bench;

import baton.kv.ConfigException;
import java.util.List;

/** Lengths to measure, in tokens. */
final class TokenCounts {
    private TokenCounts() {}

    /**
     * The same counts, checked.
     *
     * @throws ConfigException if there is none, or one is not a positive multiple of the block size
     */
    static List<Integer> require(List<Integer> tokens, int blockSize) {
        if (tokens.isEmpty()) {
            throw new ConfigException("tokens", "is empty, must have at least one number");
        }
        for (int count : tokens) {
            if (count < blockSize || count % blockSize != 0) {
                throw new ConfigException(
                        "tokens", "has %d, must be multiples of the block size of %d".formatted(count, blockSize));
            }
        }
        return List.copyOf(tokens);
    }
}
