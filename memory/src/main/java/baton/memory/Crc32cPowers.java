package baton.memory;

/*
 * A CRC's register is a polynomial over GF(2) modulo that of CRC32C, its bits in the order of a CRC that takes the lowest bit first: bit 31 is
 * the term x^0. Bytes that follow multiply it with x^8 each, so the register of a whole is the sum of those of its parts, begun with
 * zeros and moved on by the bytes behind each. See M. Adler, crc32_combine in zlib, and its comments.
 */

/** Powers of x by which registers of CRC32C are moved on. Remembers the last ones; for one thread. */
final class Crc32cPowers {
    private static final int POLYNOMIAL = 0x82F63B78;
    private static final int ONE = 1 << 31;
    private static final int REMEMBERED = 256;

    /** x^(8 * 2^i). */
    private static final int[] OF_TWO = ofTwo();

    /** Tables of one distance, by byte of the register; of {@link #tablesFor}. */
    private final int[] tables = new int[Integer.BYTES << 8];

    private long tablesFor = -1;

    private final long[] bytes = new long[REMEMBERED];
    private final int[] powers = new int[REMEMBERED];

    private static int[] ofTwo() {
        int[] all = new int[Long.SIZE - 1];
        all[0] = ONE >>> 8;
        for (int i = 1; i < all.length; i++) {
            all[i] = multiply(all[i - 1], all[i - 1]);
        }
        return all;
    }

    static int multiply(int one, int other) {
        int product = 0;
        int shifted = other;
        for (int bit = 31; bit >= 0; bit--) {
            product ^= shifted & -(one >>> bit & 1);
            shifted = shifted >>> 1 ^ POLYNOMIAL & -(shifted & 1);
        }
        return product;
    }

    /** x^(8 * count). */
    static int power(long count) {
        int power = ONE;
        for (long left = count; left != 0; left &= left - 1) {
            power = multiply(power, OF_TWO[Long.numberOfTrailingZeros(left)]);
        }
        return power;
    }

    /** A register after so many bytes of zeros more. */
    int move(int register, long count) {
        if (count == 0) {
            return register;
        }
        int place = (int) ((count >>> 6 ^ count >>> 14) & REMEMBERED - 1);
        if (bytes[place] != count) {
            bytes[place] = count;
            powers[place] = power(count);
        }
        return multiply(powers[place], register);
    }

    /** The same as {@link #move} by tables, which are made when the count differs from the last one's. */
    int step(int register, long count) {
        if (tablesFor != count) {
            makeTables(count);
        }
        return tables[register & 0xff]
                ^ tables[0x100 | register >>> 8 & 0xff]
                ^ tables[0x200 | register >>> 16 & 0xff]
                ^ tables[0x300 | register >>> 24];
    }

    private void makeTables(long count) {
        for (int at = 0; at < tables.length; at += 0x100) {
            for (int bit = 1; bit < 0x100; bit <<= 1) {
                int moved = move(bit << (at >>> 5), count);
                for (int i = 0; i < bit; i++) {
                    tables[at | bit | i] = tables[at | i] ^ moved;
                }
            }
        }
        tablesFor = count;
    }
}
