package baton.kv;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A digest of 61 bits for devices: of n words {@code w} of 32 bits it is {@code r^n + sum of w[i] * r^(n - 1 - i)} modulo the prime
 * {@code p = 2^61 - 1}. Words are little-endian; a run is filled up with zeros to a multiple of 4 bytes. The sum may be computed in any
 * order: each thread of a device adds up words of its own, times constants.
 *
 * <p>Damage within one word changes it, and so do two words in each other's place, because {@code r} is a primitive root modulo {@code
 * p}. Other damage stays undetected with a probability of n / p, as {@code r} was chosen at random.
 */
public final class Sum61 implements KvDigest.Running {
    public static final long P = (1L << 61) - 1;
    public static final long R = 0x0f3a_9c5d_71e2_4b87L;

    private static final long R2 = reduce(product(R, R));
    private static final long R3 = reduce(product(R2, R));
    private static final long R4 = reduce(product(R3, R));
    private static final long WORD = 0xffff_ffffL;

    private long sum = 1;

    Sum61() {}

    @Override
    public void add(ByteBuffer run) {
        ByteOrder before = run.order();
        run.order(ByteOrder.LITTLE_ENDIAN);
        long h = sum;
        int at = run.position();
        int end = run.limit();
        for (; end - at >= 16; at += 16) {
            long words = product(run.getInt(at) & WORD, R3)
                    + product(run.getInt(at + 4) & WORD, R2)
                    + product(run.getInt(at + 8) & WORD, R)
                    + (run.getInt(at + 12) & WORD);
            h = reduce(product(h, R4) + words);
        }
        for (; at < end; at += 4) {
            long word = 0;
            for (int i = 0; i < Math.min(4, end - at); i++) {
                word |= (run.get(at + i) & 0xffL) << 8 * i;
            }
            h = reduce(product(h, R) + word);
        }
        sum = h;
        run.position(end).order(before);
    }

    @Override
    public long value() {
        return sum;
    }

    /**
     * The product of two numbers below 2^61, modulo P, but below 2^62, and below 2^61 + 2^32 if one of them is a word: one product of two
     * full numbers and three with a word can be added up, unsigned.
     */
    private static long product(long a, long b) {
        long low = a * b;
        return (low & P) + (low >>> 61 | Math.multiplyHigh(a, b) << 3);
    }

    private static long reduce(long number) {
        long once = (number & P) + (number >>> 61);
        return once >= P ? once - P : once;
    }
}
