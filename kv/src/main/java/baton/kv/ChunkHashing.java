package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Map;
import java.util.Optional;

/**
 * Hashes chunks of tokens in a chain of 64-bit hashes, as LMCache 0.5.6 does (lmcache/v1/token_database.py): {@code hash(chunk) = N(H((hash(previous
 * chunk), tokens, ())))}, where N takes the first eight bytes of a digest. Before the first chunk comes the hash of a seed. Neither the model nor
 * a LoRA adapter nor a cache salt is in it.
 *
 * <p>Not thread-safe: it reuses one digest and one buffer.
 */
public abstract sealed class ChunkHashing {
    private final long first;

    private ChunkHashing(long first) {
        this.first = first;
    }

    /** Before the first chunk: LMCache's {@code NONE_HASH}. */
    public final long first() {
        return first;
    }

    /**
     * The hash of a chunk.
     *
     * @param parent of the chunk before it, or {@link #first}
     */
    public abstract long next(long parent, int[] tokens, int from, int count);

    /** Whether hashes are signed where they are written as text. */
    public abstract boolean isSigned();

    /** Hashes by a digest that begins with {@code seed}. */
    public static ChunkHashing digest(HashAlgorithm algorithm, String seed) {
        return new Digest(algorithm, seed);
    }

    /**
     * By Python's {@code hash()}, with the first hash that vLLM's {@code init_none_hash} gives LMCache when {@code PYTHONHASHSEED} is set; without
     * it that is different in each process, so it is 0 here, which it is in LMCache without vLLM.
     *
     * @throws ConfigException if {@code PYTHONHASHSEED} is no number from 0 to 4294967295
     */
    public static ChunkHashing python(Map<String, String> environment) {
        return new Python(Optional.ofNullable(environment.get(PythonHash.SEED))
                .map(seed -> PythonHash.text(seed, PythonHash.seed(seed)))
                .orElse(0L));
    }

    private static final class Python extends ChunkHashing {
        private Python(long first) {
            super(first);
        }

        @Override
        public long next(long parent, int[] tokens, int from, int count) {
            return PythonHash.tuple(
                    PythonHash.integer(parent), PythonHash.tuple(tokens, from, count), PythonHash.EMPTY_TUPLE);
        }

        @Override
        public boolean isSigned() {
            return true;
        }
    }

    private static final class Digest extends ChunkHashing {
        private final MessageDigest sha256 = Sha256.begin();
        private final HashEncoding encoding;

        private Digest(HashAlgorithm algorithm, String seed) {
            HashEncoding encoding = HashEncoding.of(algorithm);
            encoding.begin();
            encoding.text(seed.getBytes(StandardCharsets.UTF_8));
            super(digest(Sha256.begin(), encoding));
            this.encoding = encoding;
        }

        private static long digest(MessageDigest sha256, HashEncoding encoding) {
            encoding.end();
            sha256.reset();
            sha256.update(encoding.bytes, 0, encoding.length);
            return BlockHash.of(sha256.digest()).a();
        }

        @Override
        public long next(long parent, int[] tokens, int from, int count) {
            encoding.begin();
            encoding.beginTuple(3);
            encoding.unsigned(parent);
            encoding.beginTuple(count);
            for (int i = 0; i < count; i++) {
                encoding.integer(tokens[from + i]);
            }
            encoding.endTuple(count);
            encoding.emptyTuple();
            encoding.endTuple(3);
            return digest(sha256, encoding);
        }

        @Override
        public boolean isSigned() {
            return false;
        }
    }
}
