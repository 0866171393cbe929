package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.DigestException;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Hashes blocks of tokens in a chain, as vLLM 0.32 does ({@code vllm/v1/core/kv_cache_utils.py:hash_block_tokens}), so that a router that
 * knows the tokens knows the hashes: {@code hash(block) = SHA-256(encode((hash(previous block), tokens, extra keys)))}. Before the first block
 * comes the hash of a seed; extra keys are {@code (("cache_salt", salt),)} in the first block of a request that has a salt, else
 * {@code None}. A hash does not depend on the model: where caches of several models meet, its fingerprint has to stand beside.
 *
 * <p>Not thread-safe: it reuses one digest and one buffer.
 */
public final class BlockHasher {
    private static final byte[] CACHE_SALT = "cache_salt".getBytes(StandardCharsets.US_ASCII);

    private final MessageDigest sha256;
    private final int blockSize;
    private final HashEncoding encoding;
    private final BlockHash first;

    /** @param seed of the chains, see {@link HashAlgorithm#seed} */
    public BlockHasher(HashAlgorithm algorithm, String seed, int blockSize) {
        this.sha256 = Sha256.begin();
        this.blockSize = blockSize;
        this.encoding = HashEncoding.of(algorithm);
        encoding.begin();
        encoding.text(seed.getBytes(StandardCharsets.UTF_8));
        this.first = digest();
    }

    /** Hashes as vLLM does by default. */
    public BlockHasher(int blockSize) {
        this(HashAlgorithm.SHA256, HashAlgorithm.seed(Map.of()), blockSize);
    }

    public int blockSize() {
        return blockSize;
    }

    /** The hash of the full block that a request begins with. */
    public BlockHash first(int[] tokens, Optional<String> cacheSalt) {
        return hash(first, tokens, 0, cacheSalt.filter(salt -> !salt.isEmpty()));
    }

    /**
     * The hash of the full block that starts at {@code tokens[from]}.
     *
     * @param parent hash of the block before it
     */
    public BlockHash next(BlockHash parent, int[] tokens, int from) {
        return hash(parent, tokens, from, Optional.empty());
    }

    /** The hashes of all full blocks of {@code tokens}. */
    public List<BlockHash> chain(int[] tokens, Optional<String> cacheSalt) {
        List<BlockHash> hashes = new ArrayList<>(tokens.length / blockSize);
        for (int from = 0; from + blockSize <= tokens.length; from += blockSize) {
            hashes.add(from == 0 ? first(tokens, cacheSalt) : next(hashes.getLast(), tokens, from));
        }
        return hashes;
    }

    private BlockHash hash(BlockHash parent, int[] tokens, int from, Optional<String> salt) {
        encoding.begin();
        encoding.beginTuple(3);
        encoding.hash(parent);
        encoding.beginTuple(blockSize);
        for (int i = 0; i < blockSize; i++) {
            encoding.integer(tokens[from + i]);
        }
        encoding.endTuple(blockSize);
        if (salt.isPresent()) {
            encoding.beginTuple(1);
            encoding.beginTuple(2);
            encoding.text(CACHE_SALT);
            encoding.text(salt.get().getBytes(StandardCharsets.UTF_8));
            encoding.endTuple(2);
            encoding.endTuple(1);
        } else {
            encoding.none();
        }
        encoding.endTuple(3);
        return digest();
    }

    private BlockHash digest() {
        encoding.end();
        sha256.reset();
        sha256.update(encoding.bytes, 0, encoding.length);
        byte[] digest = new byte[BlockHash.BYTES];
        try {
            sha256.digest(digest, 0, digest.length);
        } catch (DigestException e) {
            throw new AssertionError("the digest fits its own length", e);
        }
        return BlockHash.of(digest);
    }
}
