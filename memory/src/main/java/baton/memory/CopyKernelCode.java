package baton.memory;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RBP;
import static baton.memory.Assembler.Reg.RBX;
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
    /** Bytes that each lane copies at a time. */
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

    // General registers and their uses. None of them has to be kept for the caller.
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

    /** How far the lines to fetch are from {@link #FROM}, by lane. They have to be kept for the caller. */
    private static final List<Reg> AHEAD = List.of(RBX, RBP);

    /**
     * How far ahead the digesting loop fetches. With a digest's instructions, only a few lines fit between the oldest instruction of a
     * processor that has not ended and the newest that has begun, too few to keep its memory busy.
     */
    private static final int FETCHED_AHEAD = 4 * LINE;

    // Vector registers. A line has one to four vectors, and a remainder for each.
    private static final int FACTORS = 0;
    private static final int FIRST_REMAINDER = 1;
    private static final int MOST_VECTORS = 4;
    /** The first of the registers for data and products by turns, so that a vector need not wait for the one before it. */
    private static final int FIRST_SPARE = FIRST_REMAINDER + LANES * MOST_VECTORS;

    private static final int SPARES = 6;

    private final Assembler code;
    private final boolean digests;
    private final boolean pastCaches;
    private int spare;

    private CopyKernelCode(Width width, boolean digests, boolean pastCaches) {
        code = new Assembler(width);
        this.digests = digests;
        this.pastCaches = pastCaches;
    }

    /** Where in {@code work} a run's digest is. */
    static long digestAt(int run, int lane) {
        return DIGESTS_AT + Integer.BYTES * ((long) run * LANES + lane);
    }

    /** The factor of the lower halves of 128 bits that moves them on by a line. */
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
     * @param width of the vectors; the result is the same
     * @param digests whether it digests
     * @param pastCaches whether it stores past the caches, for which both destinations are aligned to {@link #LINE}
     */
    static byte[] copy(Width width, boolean digests, boolean pastCaches) {
        CopyKernelCode kernel = new CopyKernelCode(width, digests, pastCaches);
        kernel.copyRows();
        return kernel.code.code();
    }

    private void copyRows() {
        AHEAD.forEach(code::push);
        code.move(TO_DISTANCE, OTHER_TO);
        code.subtract(TO_DISTANCE, TO);
        code.move(FROM_DISTANCE, OTHER_FROM);
        code.subtract(FROM_DISTANCE, FROM);
        code.load(FACTORS, at(WORK, FACTORS_AT));
        code.load(ROWS_LEFT, at(WORK, ROWS_AT));
        code.loop(ROWS_LEFT, () -> {
            code.load(RUNS_LEFT, at(WORK, RUNS_AT));
            code.address(DIGEST, at(WORK, DIGESTS_AT));
            code.loop(RUNS_LEFT, this::copyRun);
        });
        // Stores past the caches are seen before those that come after them.
        code.fenceStores();
        AHEAD.reversed().forEach(code::pop);
        code.returnFromVectors();
    }

    private void copyRun() {
        code.load(BYTES_LEFT, at(WORK, RUN_BYTES_AT));
        code.move(AHEAD.getFirst(), FETCHED_AHEAD);
        code.address(AHEAD.getLast(), at(FROM_DISTANCE, FETCHED_AHEAD));
        forEachVector((lane, offset, remainder) -> {
            int data = copyVector(lane, offset);
            if (digests && offset == 0) {
                code.firstLane(Unary.LOAD, remainder, at(DIGEST, lane * Integer.BYTES));
                code.op(Binary.XOR_BITS, remainder, remainder, data);
            } else if (digests) {
                code.op(Unary.LOAD, remainder, data);
            }
        });
        goOn();
        Label end = code.label();
        code.jump(Condition.EQUAL, end);
        Label line = code.label();
        code.bind(line);
        if (digests) {
            fetchAhead();
        }
        forEachVector((lane, offset, remainder) -> {
            int data = copyVector(lane, offset);
            if (digests) {
                fold(remainder, data);
            }
        });
        goOn();
        code.jump(Condition.NOT_EQUAL, line);
        code.bind(end);
        if (digests) {
            for (int lane = 0; lane < LANES; lane++) {
                storeDigest(lane);
            }
        }
        code.add(FROM, at(WORK, FROM_SKIP_AT));
        code.add(TO, at(WORK, TO_SKIP_AT));
        code.add(DIGEST, LANES * Integer.BYTES);
    }

    /** Fetches from the next run when the lines of this one are fetched. */
    private void fetchAhead() {
        Label inRun = code.label();
        code.compare(BYTES_LEFT, FETCHED_AHEAD);
        code.jump(Condition.NOT_EQUAL, inRun);
        AHEAD.forEach(ahead -> code.add(ahead, at(WORK, FROM_SKIP_AT)));
        code.bind(inRun);
        AHEAD.forEach(ahead -> code.prefetch(at(FROM, ahead, 1, 0)));
    }

    private interface Vector {
        void emit(int lane, int offset, int remainder);
    }

    private void forEachVector(Vector vector) {
        int bytes = code.width().bytes();
        for (int lane = 0; lane < LANES; lane++) {
            for (int offset = 0; offset < LINE; offset += bytes) {
                vector.emit(lane, offset, remainder(lane, offset));
            }
        }
    }

    private int remainder(int lane, int offset) {
        return FIRST_REMAINDER + lane * MOST_VECTORS + offset / code.width().bytes();
    }

    private int nextSpare() {
        return FIRST_SPARE + spare++ % SPARES;
    }

    /** Returns the register that has the bytes, which are read once: the digest is of the bytes that are stored. */
    private int copyVector(int lane, int offset) {
        int data = nextSpare();
        Mem from = lane == 0 ? at(FROM, offset) : at(FROM, FROM_DISTANCE, 1, offset);
        Mem to = lane == 0 ? at(TO, offset) : at(TO, TO_DISTANCE, 1, offset);
        code.load(data, from);
        if (pastCaches) {
            code.storePastCaches(to, data);
        } else {
            code.store(to, data);
        }
        return data;
    }

    /** Moves a remainder on by a line and adds the line's data. */
    private void fold(int remainder, int data) {
        int product = nextSpare();
        code.multiplyPolynomials(product, remainder, FACTORS, false);
        code.multiplyPolynomials(remainder, remainder, FACTORS, true);
        if (code.width() == Width.ZMM) {
            code.xorBoth(remainder, product, data);
        } else {
            code.op(Binary.XOR_BITS, product, product, data);
            code.op(Binary.XOR_BITS, remainder, remainder, product);
        }
    }

    private void storeDigest(int lane) {
        for (int offset = 0; offset < LINE; offset += code.width().bytes()) {
            code.store(at(WORK, offset), remainder(lane, offset));
        }
        code.move(CRC, 0);
        for (int at = 0; at < LINE; at += Long.BYTES) {
            code.crc32c(CRC, at(WORK, at));
        }
        code.storeInt(at(DIGEST, lane * Integer.BYTES), CRC);
    }

    /** Advances to the next line; zero if the run has no further line. */
    private void goOn() {
        code.add(FROM, LINE);
        code.add(TO, LINE);
        code.subtract(BYTES_LEFT, LINE);
    }
}
