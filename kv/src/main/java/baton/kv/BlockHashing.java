package baton.kv;

import java.util.Map;

/**
 * How an instance hashes blocks. Instances that share stores, and routers that know hashes, need the same.
 *
 * @param seed of the hash chains
 */
public record BlockHashing(HashAlgorithm algorithm, String seed) {
    /** The hashing with the seed that an environment sets. */
    public static BlockHashing of(HashAlgorithm algorithm, Map<String, String> environment) {
        return new BlockHashing(algorithm, HashAlgorithm.seed(environment));
    }

    public BlockHasher hasher(int blockSize) {
        return new BlockHasher(algorithm, seed, blockSize);
    }
}
