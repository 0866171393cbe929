package baton.kv;

import java.nio.charset.StandardCharsets;
import java.security.DigestException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
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
    private final Encoding encoding;
    private final BlockHash first;

    /** @param seed of the chains, see {@link HashAlgorithm#seed} */
    public BlockHasher(HashAlgorithm algorithm, String seed, int blockSize) {
        try {
            this.sha256 = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java platform has SHA-256", e);
        }
        this.blockSize = blockSize;
        this.encoding = switch (algorithm) {
            case SHA256 -> new Pickle();
            case SHA256_CBOR -> new Cbor();
        };
        encoding.begin();
        encoding.text(seed.getBytes(StandardCharsets.UTF_8));
        this.first = digest();
    }

    /** As vLLM by default. */
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

    /** Writes a value into a buffer. */
    private abstract static class Encoding {
        byte[] bytes = new byte[256];
        int length;

        abstract void begin();

        abstract void beginTuple(int size);

        abstract void endTuple(int size);

        abstract void hash(BlockHash hash);

        abstract void integer(int value);

        abstract void text(byte[] utf8);

        abstract void none();

        abstract void end();

        final void put(int value) {
            if (length == bytes.length) {
                bytes = Arrays.copyOf(bytes, 2 * length);
            }
            bytes[length++] = (byte) value;
        }

        final void put(byte[] values) {
            if (bytes.length - length < values.length) {
                bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, length + values.length));
            }
            System.arraycopy(values, 0, bytes, length, values.length);
            length += values.length;
        }

        final void bigEndian(long value, int count) {
            for (int i = count - 1; i >= 0; i--) {
                put((int) (value >>> 8 * i));
            }
        }

        final void littleEndian(long value, int count) {
            for (int i = 0; i < count; i++) {
                put((int) (value >>> 8 * i));
            }
        }

        final void digest(BlockHash hash) {
            bigEndian(hash.a(), 8);
            bigEndian(hash.b(), 8);
            bigEndian(hash.c(), 8);
            bigEndian(hash.d(), 8);
        }
    }

    /** Python's {@code pickle.dumps(value, protocol=5)}: Lib/pickletools.py describes the opcodes. */
    private static final class Pickle extends Encoding {
        private static final int FRAME_AT = 2;
        private static final int BODY_AT = FRAME_AT + 9;
        private static final int LEAST_FRAME = 4;
        private static final int MEMOIZE = 0x94;

        @Override
        void begin() {
            length = 0;
            put(0x80);
            put(5);
            put(0x95);
            littleEndian(0, 8);
        }

        @Override
        void beginTuple(int size) {
            if (size > 3) {
                put('(');
            }
        }

        @Override
        void endTuple(int size) {
            if (size > 3) {
                put('t');
            } else {
                put(0x84 + size);
            }
            put(MEMOIZE);
        }

        @Override
        void hash(BlockHash hash) {
            put('C');
            put(BlockHash.BYTES);
            digest(hash);
            put(MEMOIZE);
        }

        @Override
        void integer(int value) {
            if (value >= 0 && value < 1 << 8) {
                put('K');
                put(value);
            } else if (value >= 0 && value < 1 << 16) {
                put('M');
                littleEndian(value, 2);
            } else {
                put('J');
                littleEndian(value, 4);
            }
        }

        @Override
        void text(byte[] utf8) {
            if (utf8.length < 1 << 8) {
                put(0x8c);
                put(utf8.length);
            } else {
                put('X');
                littleEndian(utf8.length, 4);
            }
            put(utf8);
            put(MEMOIZE);
        }

        @Override
        void none() {
            put('N');
        }

        @Override
        void end() {
            put('.');
            int body = length - BODY_AT;
            if (body < LEAST_FRAME) {
                throw new IllegalStateException("body=" + body + " bytes have no frame");
            }
            for (int i = 0; i < 8; i++) {
                bytes[FRAME_AT + 1 + i] = (byte) ((long) body >>> 8 * i);
            }
        }
    }

    /** RFC 8949, in its core deterministic form. */
    private static final class Cbor extends Encoding {
        private static final int UNSIGNED = 0;
        private static final int NEGATIVE = 1;
        private static final int BYTE_STRING = 2;
        private static final int TEXT_STRING = 3;
        private static final int ARRAY = 4;
        private static final int NULL = 0xf6;

        @Override
        void begin() {
            length = 0;
        }

        private void head(int type, int argument) {
            if (argument < 24) {
                put(type << 5 | argument);
            } else if (argument < 1 << 8) {
                put(type << 5 | 24);
                put(argument);
            } else if (argument < 1 << 16) {
                put(type << 5 | 25);
                bigEndian(argument, 2);
            } else {
                put(type << 5 | 26);
                bigEndian(argument, 4);
            }
        }

        @Override
        void beginTuple(int size) {
            head(ARRAY, size);
        }

        @Override
        void endTuple(int size) {}

        @Override
        void hash(BlockHash hash) {
            head(BYTE_STRING, BlockHash.BYTES);
            digest(hash);
        }

        @Override
        void integer(int value) {
            if (value >= 0) {
                head(UNSIGNED, value);
            } else {
                head(NEGATIVE, -1 - value);
            }
        }

        @Override
        void text(byte[] utf8) {
            head(TEXT_STRING, utf8.length);
            put(utf8);
        }

        @Override
        void none() {
            put(NULL);
        }

        @Override
        void end() {}
    }
}
