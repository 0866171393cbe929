package baton.kv;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * Python's {@code hash()} of integers, tuples of integers and ASCII texts, as in CPython 3.11 and later on 64-bit machines:
 * Python/pyhash.c, Objects/longobject.c, Objects/tupleobject.c.
 */
final class PythonHash {
    static final String SEED = "PYTHONHASHSEED";

    /** The hash of {@code ()}. */
    static final long EMPTY_TUPLE = 5740354900026072187L;

    /** Integers are hashed modulo this Mersenne prime. */
    private static final long MODULUS = (1L << 61) - 1;

    private static final long PRIME_1 = 0x9E3779B185EBCA87L;
    private static final long PRIME_2 = 0xC2B2AE3D27D4EB4FL;
    private static final long PRIME_5 = 0x27D4EB2F165667C5L;
    private static final long OF_MINUS_ONE = 1546275796;

    private PythonHash() {}

    static long integer(long value) {
        // Long.MIN_VALUE's absolute value is 2^63 = 4 modulo the prime.
        long rest = value == Long.MIN_VALUE ? 4 : Math.abs(value) % MODULUS;
        long hash = value < 0 ? -rest : rest;
        return hash == -1 ? -2 : hash;
    }

    /** @param hashes of the elements */
    static long tuple(long... hashes) {
        long acc = PRIME_5;
        for (long hash : hashes) {
            acc = add(acc, hash);
        }
        return end(acc, hashes.length);
    }

    /** The hash of a tuple of tokens. */
    static long tuple(int[] tokens, int from, int count) {
        long acc = PRIME_5;
        for (int i = 0; i < count; i++) {
            acc = add(acc, integer(tokens[from + i]));
        }
        return end(acc, count);
    }

    private static long add(long acc, long hash) {
        return Long.rotateLeft(acc + hash * PRIME_2, 31) * PRIME_1;
    }

    private static long end(long acc, int length) {
        long hash = acc + (length ^ PRIME_5 ^ 3527539L);
        return hash == -1 ? OF_MINUS_ONE : hash;
    }

    /** @throws ConfigException if it is no number that CPython takes */
    static long seed(String text) {
        try {
            long seed = Long.parseLong(text);
            if (seed >= 0 && seed <= 0xffffffffL) {
                return seed;
            }
        } catch (NumberFormatException _) {
            // As one that is too large.
        }
        throw new ConfigException(SEED, "is '" + text + "', must be a number from 0 to 4294967295 for Python's hash()");
    }

    /** The hash of an ASCII text, by SipHash-1-3 with the key that CPython makes of a seed. */
    static long text(String ascii, long seed) {
        byte[] key = new byte[16];
        int x = (int) seed;
        for (int i = 0; seed != 0 && i < key.length; i++) {
            x = x * 214013 + 2531011;
            key[i] = (byte) (x >>> 16);
        }
        ByteBuffer keys = ByteBuffer.wrap(key).order(ByteOrder.LITTLE_ENDIAN);
        byte[] bytes = ascii.getBytes(StandardCharsets.US_ASCII);
        if (bytes.length == 0) {
            return 0;
        }
        long hash = new SipHash(keys.getLong(), keys.getLong()).hash(bytes);
        return hash == -1 ? -2 : hash;
    }

    private static final class SipHash {
        private long v0;
        private long v1;
        private long v2;
        private long v3;

        private SipHash(long k0, long k1) {
            v0 = k0 ^ 0x736f6d6570736575L;
            v1 = k1 ^ 0x646f72616e646f6dL;
            v2 = k0 ^ 0x6c7967656e657261L;
            v3 = k1 ^ 0x7465646279746573L;
        }

        private void round() {
            v0 += v1;
            v2 += v3;
            v1 = Long.rotateLeft(v1, 13) ^ v0;
            v3 = Long.rotateLeft(v3, 16) ^ v2;
            v0 = Long.rotateLeft(v0, 32);
            v2 += v1;
            v0 += v3;
            v1 = Long.rotateLeft(v1, 17) ^ v2;
            v3 = Long.rotateLeft(v3, 21) ^ v0;
            v2 = Long.rotateLeft(v2, 32);
        }

        private void add(long word) {
            v3 ^= word;
            round();
            v0 ^= word;
        }

        private long hash(byte[] bytes) {
            long word = 0;
            for (int i = 0; i < bytes.length; i++) {
                word |= (bytes[i] & 0xffL) << 8 * (i % 8);
                if (i % 8 == 7) {
                    add(word);
                    word = 0;
                }
            }
            add(word | (long) bytes.length << 56);
            v2 ^= 0xff;
            round();
            round();
            round();
            return v0 ^ v1 ^ v2 ^ v3;
        }
    }
}
