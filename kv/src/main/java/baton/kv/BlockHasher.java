package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.DigestException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Hashes blocks of tokens in a chain: {@code hash(block) = SHA-256(hash(previous block) || tokens as little-endian int32)}.
 * The chain starts from a root that holds the model's fingerprint, the LoRA adapter and the request's {@code cache_salt},
 * so equal hashes mean interchangeable KV blocks, in every process and on every machine.
 *
 * <p>Not thread-safe: it reuses one digest.
 */
public final class BlockHasher {
    private final MessageDigest sha256;
    private final byte[] tokenBytes;
    private final int blockSize;
    private final ModelFingerprint model;

    public BlockHasher(ModelFingerprint model, int blockSize) {
        try {
            this.sha256 = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java platform has SHA-256", e);
        }
        this.model = model;
        this.blockSize = blockSize;
        this.tokenBytes = new byte[blockSize * Integer.BYTES];
    }

    public int blockSize() {
        return blockSize;
    }

    /** What the first block of a request chains to. */
    public BlockHash root(Optional<String> loraId, Optional<String> cacheSalt) {
        sha256.reset();
        field("model", model.digest());
        loraId.ifPresent(id -> field("lora", id));
        cacheSalt.ifPresent(salt -> field("salt", salt));
        return BlockHash.of(sha256.digest());
    }

    /**
     * The hash of the full block that starts at {@code tokens[from]}.
     *
     * @param parent hash of the block before it, or the root
     */
    public BlockHash next(BlockHash parent, int[] tokens, int from) {
        for (int i = 0, at = 0; i < blockSize; i++, at += Integer.BYTES) {
            int token = tokens[from + i];
            tokenBytes[at] = (byte) token;
            tokenBytes[at + 1] = (byte) (token >>> 8);
            tokenBytes[at + 2] = (byte) (token >>> 16);
            tokenBytes[at + 3] = (byte) (token >>> 24);
        }
        sha256.reset();
        sha256.update(parent.toBytes());
        sha256.update(tokenBytes);
        byte[] digest = new byte[BlockHash.BYTES];
        try {
            sha256.digest(digest, 0, digest.length);
        } catch (DigestException e) {
            throw new AssertionError("the digest fits its own length", e);
        }
        return BlockHash.of(digest);
    }

    /** The hashes of all full blocks of {@code tokens}. */
    public List<BlockHash> chain(BlockHash root, int[] tokens) {
        List<BlockHash> hashes = new ArrayList<>(tokens.length / blockSize);
        BlockHash parent = root;
        for (int from = 0; from + blockSize <= tokens.length; from += blockSize) {
            parent = next(parent, tokens, from);
            hashes.add(parent);
        }
        return hashes;
    }

    /** Name and length go in front of the value, so that no two different sets of fields give the same bytes. */
    private void field(String name, String value) {
        byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
        sha256.update((name + ":" + bytes.length + ":").getBytes(StandardCharsets.UTF_8));
        sha256.update(bytes);
    }
}
