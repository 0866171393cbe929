package baton.memory;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;

import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;

/**
 * The x86-64 instructions of {@link CopyKernel}: a function {@code copy(to, from, other to, other from, work)} by the System V calling
 * convention, which copies two ranges of {@code [row][run][run bytes]} and digests each run over all rows. Behind each run, bytes can be left
 * out.
 *
 * <p>{@code work} is {@code [remainder: 64 | factors: 64 | rows: 8 | runs: 8 | run bytes: 8 | from skip: 8 | to skip: 8 | pad: 24 | digests: int[run][lane]]}, aligned to
 * {@link #LINE}. Digests are a CRC's register, all ones at first, to be inverted at last.
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

    // General registers, and what they are used for. None of them has to be kept for the caller.
    private static final Reg TO = RDI;
    private static final Reg FROM = RSI;
    private static final Reg OTHER_TO = RDX;
    private static final Reg OTHER_FROM = RCX;
    private static final Reg WORK = R8;
    /** How far the other range is from {@link #TO}. */
    private static final Reg TO_DISTANCE = R10;

    /** How far the other range is from {@link #FROM}. */
    private static final Reg FROM_DISTANCE = R11;

    /** When {@link #FROM_DISTANCE} is known. */
    private static final Reg ROWS_LEFT = OTHER_FROM;

    /** When {@link #TO_DISTANCE} is known. */
    private static final Reg RUNS_LEFT = OTHER_TO;

    private static final Reg BYTES_LEFT = RAX;
    /** Between runs. */
    private static final Reg CRC = RAX;

    /** Address of the run's digest. */
    private static final Reg DIGEST = R9;

    // Vector registers, of each lane.
    private static final int[] REMAINDER = {0, 1};
    private static final int[] DATA = {2, 3};
    private static final int[] PRODUCT = {4, 5};
    private static final int FACTORS = 6;

    private static final List<Mem> FROM_PLACES = List.of(at(FROM, 0), at(FROM, FROM_DISTANCE, 1, 0));
    private static final List<Mem> TO_PLACES = List.of(at(TO, 0), at(TO, TO_DISTANCE, 1, 0));

    private final Assembler code = new Assembler(Width.ZMM);

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
        return kernel.code.code();
    }

    private void copyRows(boolean digests, boolean pastCaches) {
        code.move(TO_DISTANCE, OTHER_TO);
        code.subtract(TO_DISTANCE, TO);
        code.move(FROM_DISTANCE, OTHER_FROM);
        code.subtract(FROM_DISTANCE, FROM);
        code.load(FACTORS, at(WORK, FACTORS_AT));
        code.load(ROWS_LEFT, at(WORK, ROWS_AT));
        code.loop(ROWS_LEFT, () -> {
            code.load(RUNS_LEFT, at(WORK, RUNS_AT));
            code.address(DIGEST, at(WORK, DIGESTS_AT));
            code.loop(RUNS_LEFT, () -> copyRun(digests, pastCaches));
        });
        // Stores past the caches are seen before those that come after them.
        code.fenceStores();
        code.returnFromVectors();
    }

    private void copyRun(boolean digests, boolean pastCaches) {
        code.load(BYTES_LEFT, at(WORK, RUN_BYTES_AT));
        for (int lane = 0; lane < LANES; lane++) {
            moveLine(lane, pastCaches);
            if (digests) {
                code.firstLane(Unary.LOAD, REMAINDER[lane], at(DIGEST, lane * Integer.BYTES));
                code.op(Binary.XOR_BITS, REMAINDER[lane], REMAINDER[lane], DATA[lane]);
            }
        }
        goOn();
        Label end = code.label();
        code.jump(Condition.EQUAL, end);
        Label line = code.label();
        code.bind(line);
        for (int lane = 0; lane < LANES; lane++) {
            moveLine(lane, pastCaches);
            if (digests) {
                code.multiplyPolynomials(PRODUCT[lane], REMAINDER[lane], FACTORS, false);
                code.multiplyPolynomials(REMAINDER[lane], REMAINDER[lane], FACTORS, true);
                code.xorBoth(REMAINDER[lane], PRODUCT[lane], DATA[lane]);
            }
        }
        goOn();
        code.jump(Condition.NOT_EQUAL, line);
        code.bind(end);
        if (digests) {
            for (int lane = 0; lane < LANES; lane++) {
                code.store(at(WORK, 0), REMAINDER[lane]);
                code.move(CRC, 0);
                for (int at = 0; at < LINE; at += Long.BYTES) {
                    code.crc32c(CRC, at(WORK, at));
                }
                code.storeInt(at(DIGEST, lane * Integer.BYTES), CRC);
            }
        }
        code.add(FROM, at(WORK, FROM_SKIP_AT));
        code.add(TO, at(WORK, TO_SKIP_AT));
        code.add(DIGEST, LANES * Integer.BYTES);
    }

    private void moveLine(int lane, boolean pastCaches) {
        code.load(DATA[lane], FROM_PLACES.get(lane));
        if (pastCaches) {
            code.storePastCaches(TO_PLACES.get(lane), DATA[lane]);
        } else {
            code.store(TO_PLACES.get(lane), DATA[lane]);
        }
    }

    /** To the next line; zero if there is none in the run. */
    private void goOn() {
        code.add(FROM, LINE);
        code.add(TO, LINE);
        code.subtract(BYTES_LEFT, LINE);
    }
}
