package baton.memory;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The x86-64 instructions of {@link CopyKernel}: a function {@code copy(to, from, other to, other from, work)} by the System V calling
 * convention, which copies two ranges of {@code [row][run][run bytes]} and digests each run over all rows. Behind each run, bytes can be left
 * out.
 *
 * <p>{@code work} is {@code [remainder: 64 | factors: 64 | rows: 8 | runs: 8 | run bytes: 8 | from skip: 8 | to skip: 8 | pad: 24 | digests: int[run][lane]]}, aligned to
 * {@link #LINE}. Digests are a CRC's register, all ones at first, to be inverted at last.
 *
 * @see <a href="https://www.intel.com/sdm">Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2</a>
 */
final class CopyKernelCode {
    /** Bytes of a vector. */
    static final int LINE = 64;

    /** Ranges side by side. */
    static final int LANES = 2;

    static final int FACTORS_AT = 64;
    static final int ROWS_AT = 128;
    static final int RUNS_AT = 136;
    static final int RUN_BYTES_AT = 144;
    static final int FROM_SKIP_AT = 152;
    static final int TO_SKIP_AT = 160;
    private static final int DIGESTS_AT = 192;

    /** x^32 and the 32 lower terms of CRC32C's polynomial. */
    private static final long POLYNOMIAL = 0x11EDC6F41L;

    // General registers by number, and what they are used for. None of them has to be kept for the caller.
    private static final int NONE = -1;
    private static final int TO = 7; // rdi
    private static final int FROM = 6; // rsi
    private static final int OTHER_TO = 2; // rdx
    private static final int OTHER_FROM = 1; // rcx
    private static final int WORK = 8; // r8
    private static final int[] TO_LANE = {NONE, 10}; // r10: how far the other range is from TO
    private static final int[] FROM_LANE = {NONE, 11}; // r11
    private static final int ROWS_LEFT = 1; // rcx, when FROM_LANE is known
    private static final int RUNS_LEFT = 2; // rdx, when TO_LANE is known
    private static final int BYTES_LEFT = 0; // rax
    private static final int CRC = 0; // rax, between runs
    private static final int DIGEST = 9; // r9: of the run

    // Vector registers by number.
    private static final int[] REMAINDER = {0, 1};
    private static final int[] DATA = {2, 3};
    private static final int[] PRODUCT = {4, 5};
    private static final int FACTORS = 6;

    // Vector instructions' prefixes and maps of opcodes.
    private static final int PREFIX_66 = 1;
    private static final int PREFIX_F3 = 2;
    private static final int MAP_0F = 1;
    private static final int MAP_0F3A = 3;

    private final ByteBuffer code = ByteBuffer.allocate(2048).order(ByteOrder.LITTLE_ENDIAN);

    private CopyKernelCode() {}

    /** Where in {@code work} a run's digest is. */
    static long digestAt(int run, int lane) {
        return DIGESTS_AT + Integer.BYTES * ((long) run * LANES + lane);
    }

    /** What the lower halves of 128 bits are multiplied with to move them on by a line. */
    static long lowerFactor() {
        return reflectedPower(LINE * 8 + 32);
    }

    /** The same for the upper halves. */
    static long upperFactor() {
        return reflectedPower(LINE * 8 - 32);
    }

    /** The remainder of x^n, its bits in the order of a CRC that takes the lowest bit first, with which the product lacks one place. */
    private static long reflectedPower(int n) {
        long power = 1;
        for (int i = 0; i < n; i++) {
            power <<= 1;
            if ((power & 1L << 32) != 0) {
                power ^= POLYNOMIAL;
            }
        }
        return Long.reverse(power) >>> 31;
    }

    /**
     * @param digests whether it digests
     * @param pastCaches whether it stores past the caches, for which both destinations are aligned to {@link #LINE}
     */
    static byte[] copy(boolean digests, boolean pastCaches) {
        CopyKernelCode kernel = new CopyKernelCode();
        kernel.copyRows(digests, pastCaches);
        return Arrays.copyOf(kernel.code.array(), kernel.code.position());
    }

    private void copyRows(boolean digests, boolean pastCaches) {
        move(TO_LANE[1], OTHER_TO);
        subtract(TO_LANE[1], TO);
        move(FROM_LANE[1], OTHER_FROM);
        subtract(FROM_LANE[1], FROM);
        loadVector(FACTORS, WORK, NONE, FACTORS_AT);
        load(ROWS_LEFT, WORK, ROWS_AT);
        int row = here();
        load(RUNS_LEFT, WORK, RUNS_AT);
        loadAddress(DIGEST, WORK, DIGESTS_AT);
        int run = here();
        load(BYTES_LEFT, WORK, RUN_BYTES_AT);
        for (int lane = 0; lane < LANES; lane++) {
            moveLine(lane, pastCaches);
            if (digests) {
                loadInt(REMAINDER[lane], DIGEST, lane * Integer.BYTES);
                xor(REMAINDER[lane], REMAINDER[lane], DATA[lane]);
            }
        }
        goOn();
        int end = jumpAheadIfZero();
        int line = here();
        for (int lane = 0; lane < LANES; lane++) {
            moveLine(lane, pastCaches);
            if (digests) {
                multiplyLower(PRODUCT[lane], REMAINDER[lane], FACTORS);
                multiplyUpper(REMAINDER[lane], REMAINDER[lane], FACTORS);
                xor3(REMAINDER[lane], PRODUCT[lane], DATA[lane]);
            }
        }
        goOn();
        jumpBackIfNotZero(line);
        land(end);
        if (digests) {
            for (int lane = 0; lane < LANES; lane++) {
                storeVector(REMAINDER[lane], WORK, NONE);
                clear(CRC);
                for (int at = 0; at < LINE; at += Long.BYTES) {
                    crc32(CRC, WORK, at);
                }
                storeInt(CRC, DIGEST, lane * Integer.BYTES);
            }
        }
        addMemory(FROM, WORK, FROM_SKIP_AT);
        addMemory(TO, WORK, TO_SKIP_AT);
        addNumber(DIGEST, LANES * Integer.BYTES);
        subtractNumber(RUNS_LEFT, 1);
        jumpBackIfNotZero(run);
        subtractNumber(ROWS_LEFT, 1);
        jumpBackIfNotZero(row);
        bytes(0x0f, 0xae, 0xf8); // sfence: stores past the caches are seen before what comes after them
        bytes(0xc5, 0xf8, 0x77); // vzeroupper
        bytes(0xc3); // ret
    }

    private void moveLine(int lane, boolean pastCaches) {
        loadVector(DATA[lane], FROM, FROM_LANE[lane], 0);
        if (pastCaches) {
            storeVectorPastCaches(DATA[lane], TO, TO_LANE[lane]);
        } else {
            storeVector(DATA[lane], TO, TO_LANE[lane]);
        }
    }

    /** To the next line; zero if there is none in the run. */
    private void goOn() {
        addNumber(FROM, LINE);
        addNumber(TO, LINE);
        subtractNumber(BYTES_LEFT, LINE);
    }

    private void move(int to, int from) {
        registers(0x89, to, from);
    }

    private void subtract(int from, int what) {
        registers(0x29, from, what);
    }

    private void clear(int register) {
        registers(0x31, register, register);
    }

    private void registers(int opcode, int to, int from) {
        wide(from, to);
        bytes(opcode, 0xc0 | (from & 7) << 3 | to & 7);
    }

    private void addNumber(int to, int number) {
        wide(0, to);
        bytes(0x83, 0xc0 | to & 7, number);
    }

    private void addMemory(int to, int base, int offset) {
        wide(to, base);
        bytes(0x03);
        memory(to, base, NONE, offset);
    }

    private void subtractNumber(int from, int number) {
        wide(0, from);
        bytes(0x83, 0xe8 | from & 7, number);
    }

    private void load(int to, int base, int offset) {
        wide(to, base);
        bytes(0x8b);
        memory(to, base, NONE, offset);
    }

    private void loadAddress(int to, int base, int offset) {
        wide(to, base);
        bytes(0x8d);
        memory(to, base, NONE, offset);
    }

    private void storeInt(int from, int base, int offset) {
        bytes(0x40 | base >> 3, 0x89);
        memory(from, base, NONE, offset);
    }

    private void crc32(int crc, int base, int offset) {
        bytes(0xf2);
        wide(crc, base);
        bytes(0x0f, 0x38, 0xf1);
        memory(crc, base, NONE, offset);
    }

    /** The REX prefix of an instruction on 64 bits. */
    private void wide(int register, int base) {
        bytes(0x48 | register >> 3 << 2 | base >> 3);
    }

    /** ModRM, SIB if there is an index, and an offset of 32 bits. The base is neither rsp nor r12, which need another form. */
    private void memory(int register, int base, int index, int offset) {
        if (index == NONE) {
            bytes(0x80 | (register & 7) << 3 | base & 7);
        } else {
            bytes(0x84 | (register & 7) << 3, (index & 7) << 3 | base & 7);
        }
        number(offset);
    }

    private void loadVector(int to, int base, int index, int offset) {
        evex(PREFIX_F3, MAP_0F, true, 0, index, base);
        bytes(0x6f);
        memory(to, base, index, offset);
    }

    private void storeVector(int from, int base, int index) {
        evex(PREFIX_F3, MAP_0F, true, 0, index, base);
        bytes(0x7f);
        memory(from, base, index, 0);
    }

    private void storeVectorPastCaches(int from, int base, int index) {
        evex(PREFIX_66, MAP_0F, false, 0, index, base);
        bytes(0xe7);
        memory(from, base, index, 0);
    }

    /** Into the lowest 32 bits; the others become zero. */
    private void loadInt(int to, int base, int offset) {
        bytes(0xc4, 0xc1 | (base >> 3 ^ 1) << 5, 0x79, 0x6e);
        memory(to, base, NONE, offset);
    }

    private void xor(int to, int one, int other) {
        vectors(MAP_0F, 0xef, to, one, other);
    }

    /** {@code to} becomes the sum of all three. */
    private void xor3(int to, int one, int other) {
        vectors(MAP_0F3A, 0x25, to, one, other);
        bytes(0x96);
    }

    private void multiplyLower(int to, int one, int other) {
        vectors(MAP_0F3A, 0x44, to, one, other);
        bytes(0x00);
    }

    private void multiplyUpper(int to, int one, int other) {
        vectors(MAP_0F3A, 0x44, to, one, other);
        bytes(0x11);
    }

    private void vectors(int map, int opcode, int to, int one, int other) {
        evex(PREFIX_66, map, true, one, NONE, 0);
        bytes(opcode, 0xc0 | to << 3 | other);
    }

    /** The EVEX prefix for 512 bits without a mask. Vector registers are below 8; upper bits of registers are inverted in it. */
    private void evex(int prefix, int map, boolean wide, int source, int index, int base) {
        int high = Math.max(index, 0) >> 3 << 6 | base >> 3 << 5;
        bytes(0x62, (0xf0 ^ high) | map, (wide ? 0x80 : 0) | (~source & 0xf) << 3 | 4 | prefix, 0x48);
    }

    private int here() {
        return code.position();
    }

    private void jumpBackIfNotZero(int target) {
        bytes(0x0f, 0x85);
        number(target - (here() + Integer.BYTES));
    }

    /** Returns what is to {@link #land}. */
    private int jumpAheadIfZero() {
        bytes(0x0f, 0x84);
        number(0);
        return here();
    }

    private void land(int jump) {
        code.putInt(jump - Integer.BYTES, here() - jump);
    }

    private void bytes(int... values) {
        for (int value : values) {
            code.put((byte) value);
        }
    }

    private void number(int value) {
        code.putInt(value);
    }
}
