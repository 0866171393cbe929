package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Random;
import java.util.function.Consumer;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

class KvDigestTest {
    private static final int BLOCK = 256;
    private final Random random = new Random(Long.getLong("tests.seed", 11));

    private byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    private static long digest(KvDigest kind, byte[] bytes) {
        KvDigest.Running digest = kind.begin();
        digest.add(ByteBuffer.wrap(bytes));
        return digest.value();
    }

    @Test
    void crc32cIsTheStandards() {
        byte[] bytes = bytes(1000);
        CRC32C crc = new CRC32C();
        crc.update(bytes);
        assertThat(digest(KvDigest.CRC32C, bytes)).isEqualTo(crc.getValue());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 3, 4, 15, 16, 17, 31, 64, 1001})
    void sum61IsAPolynomialOfTheWords(int length) {
        byte[] bytes = bytes(length);
        // The largest words, too.
        Arrays.fill(bytes, 0, length / 2, (byte) -1);
        BigInteger p = BigInteger.TWO.pow(61).subtract(BigInteger.ONE);
        BigInteger sum = BigInteger.ONE;
        ByteBuffer words = ByteBuffer.wrap(Arrays.copyOf(bytes, Math.ceilDiv(length, 4) * 4))
                .order(ByteOrder.LITTLE_ENDIAN);
        while (words.hasRemaining()) {
            sum = sum.multiply(BigInteger.valueOf(Sum61.R))
                    .add(BigInteger.valueOf(Integer.toUnsignedLong(words.getInt())))
                    .mod(p);
        }
        assertThat(digest(KvDigest.SUM61, bytes)).isEqualTo(sum.longValueExact());
    }

    /** The words of a digest can be computed in any order, and swapped words are detected. */
    @Test
    void theBaseOfSum61IsAPrimitiveRoot() {
        BigInteger p = BigInteger.valueOf(Sum61.P);
        BigInteger order = p.subtract(BigInteger.ONE);
        BigInteger product = BigInteger.ONE;
        for (int prime : new int[] {2, 3, 5, 7, 11, 13, 31, 41, 61, 151, 331, 1321}) {
            BigInteger power = BigInteger.valueOf(Sum61.R).modPow(order.divide(BigInteger.valueOf(prime)), p);
            assertThat(power).as("the power without the factor %d", prime).isNotEqualTo(BigInteger.ONE);
            product = product.multiply(BigInteger.valueOf(prime));
        }
        assertThat(product.multiply(BigInteger.valueOf(15))).isEqualTo(order);
    }

    @ParameterizedTest
    @EnumSource(names = {"CRC32C", "SUM61"})
    void runsAreDigestedAsOne(KvDigest kind) {
        byte[] bytes = bytes(4 * BLOCK);
        KvDigest.Running digest = kind.begin();
        for (int at = 0; at < bytes.length; at += 12) {
            digest.add(ByteBuffer.wrap(bytes, at, Math.min(12, bytes.length - at)));
        }
        assertThat(digest.value()).isEqualTo(digest(kind, bytes));
    }

    private void detects(KvDigest kind, Consumer<byte[]> damage) {
        for (int i = 0; i < 1000; i++) {
            byte[] bytes = bytes(8 * BLOCK);
            byte[] damaged = bytes.clone();
            damage.accept(damaged);
            if (!Arrays.equals(bytes, damaged)) {
                assertThat(digest(kind, damaged)).isNotEqualTo(digest(kind, bytes));
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"CRC32C", "SUM61"})
    void damageIsDetected(KvDigest kind) {
        byte[] base = bytes(BLOCK);
        for (int bit = 0; bit < BLOCK * 8; bit++) {
            byte[] flipped = base.clone();
            flipped[bit / 8] ^= (byte) (1 << bit % 8);
            assertThat(digest(kind, flipped)).as("bit %d", bit).isNotEqualTo(digest(kind, base));
        }
        detects(kind, bytes -> bytes[random.nextInt(bytes.length)] += (byte) (1 + random.nextInt(255)));
        // Words in each other's place.
        detects(kind, bytes -> swap(bytes, random.nextInt(bytes.length / 4), random.nextInt(bytes.length / 4), 4));
        detects(kind, bytes -> swap(bytes, random.nextInt(8), random.nextInt(8), BLOCK));
        detects(kind, bytes -> {
            int by = 1 + random.nextInt(64);
            System.arraycopy(bytes.clone(), 0, bytes, by, bytes.length - by);
        });
        detects(kind, bytes -> {
            int from = random.nextInt(bytes.length);
            Arrays.fill(bytes, from, from + random.nextInt(bytes.length - from + 1), (byte) 0);
        });
        detects(kind, bytes -> System.arraycopy(bytes, 0, bytes, BLOCK, BLOCK));
    }

    private static void swap(byte[] bytes, int one, int other, int size) {
        byte[] before = bytes.clone();
        System.arraycopy(before, one * size, bytes, other * size, size);
        System.arraycopy(before, other * size, bytes, one * size, size);
    }

    @Test
    void aDigestOfZerosIsNotZero() {
        assertThat(digest(KvDigest.SUM61, new byte[BLOCK])).isNotZero();
        assertThat(digest(KvDigest.SUM61, new byte[BLOCK])).isNotEqualTo(digest(KvDigest.SUM61, new byte[2 * BLOCK]));
    }
}
