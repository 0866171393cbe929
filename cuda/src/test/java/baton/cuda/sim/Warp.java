package baton.cuda.sim;

import java.util.Arrays;

/**
 * 32 threads of a block, its lanes. Lanes that are at the same instruction execute it together. Where they are at several, those at
 * the first in the text go on, until they reach the next ones.
 */
final class Warp {
    static final int LANES = 32;
    static final int ALL = -1;
    /** A value of registers that nothing has written. */
    private static final int GARBAGE = 0xbad0_bad1;
    /** A kernel that executes more instructions is taken for one that does not end. */
    private static final long MAX_STEPS = 1L << 32;

    private static final int NOWHERE = Integer.MAX_VALUE;

    final Block block;
    final int index;
    final int[] words;
    final long[] longs;
    final int[] predicates;
    /** For tensor products: 16 rows of the left matrix, 16 of the right one. */
    final float[] leftMatrix = new float[16 * 16];

    final float[] rightMatrix = new float[16 * 8];
    final AsyncCopies copies = new AsyncCopies();
    /** How many barriers of the warp it has passed. */
    long barriers;

    private int pc;
    private int lanes;
    /** Lanes that have not ended. */
    private int live;

    private boolean atBarrier;
    private long steps;
    private final int[] waitingAt = new int[LANES];
    private final int[] waitingLanes = new int[LANES];
    private int waiting;
    private int nextWaitingAt;

    Warp(Block block, int index) {
        this.block = block;
        this.index = index;
        KernelCode code = block.kernel;
        this.words = new int[(code.words() + code.constants().size()) * LANES];
        this.longs = new long[(code.longs() + code.wideConstants().size()) * LANES];
        this.predicates = new int[code.predicates()];
        for (int i = 0; i < code.constants().size(); i++) {
            fill(code.words() + i, code.constants().get(i));
        }
        for (int i = 0; i < code.wideConstants().size(); i++) {
            int row = (code.longs() + i) * LANES;
            Arrays.fill(longs, row, row + LANES, code.wideConstants().get(i));
        }
    }

    private void fill(int row, int value) {
        Arrays.fill(words, row * LANES, (row + 1) * LANES, value);
    }

    void begin() {
        KernelCode.Launch launch = block.launch;
        KernelCode code = block.kernel;
        Arrays.fill(words, Special.values().length * LANES, code.words() * LANES, GARBAGE);
        Arrays.fill(longs, 0, code.longs() * LANES, (long) GARBAGE << Integer.SIZE | GARBAGE);
        Arrays.fill(predicates, 0x5555_5555);
        predicates[Decoder.ALWAYS] = ALL;
        int first = index * LANES;
        for (int lane = 0; lane < LANES; lane++) {
            words[Special.TID_X.row * LANES + lane] = first + lane;
        }
        fill(Special.CTAID_X.row, block.x);
        fill(Special.CTAID_Y.row, block.y);
        fill(Special.CTAID_Z.row, block.z);
        fill(Special.NCTAID_X.row, launch.gridX());
        fill(Special.NCTAID_Y.row, launch.gridY());
        int count = Math.min(LANES, launch.threads() - first);
        lanes = count == LANES ? ALL : (1 << count) - 1;
        live = lanes;
        pc = 0;
        waiting = 0;
        nextWaitingAt = NOWHERE;
        atBarrier = false;
        barriers = 0;
        steps = 0;
        copies.clear();
    }

    /** Runs until all lanes have ended or are at a barrier of the block. */
    void run() {
        KernelCode.Step[] code = block.kernel.steps();
        KernelCode.Step step = code[0];
        try {
            while (live != 0 && !atBarrier) {
                if (pc >= nextWaitingAt) {
                    converge();
                }
                step = code[pc++];
                steps++;
                int executing = lanes & (predicates[step.guard()] ^ step.flip());
                if (executing != 0) {
                    step.operation().run(this, executing);
                }
            }
            if (steps > MAX_STEPS) {
                throw KernelFinding.failed(-1, "the kernel does not end");
            }
        } catch (KernelFinding finding) {
            throw finding.at(this, step.statement());
        }
    }

    long steps() {
        return steps;
    }

    boolean isAtBarrier() {
        return atBarrier;
    }

    void passBarrier() {
        atBarrier = false;
    }

    private void add(int at, int lane) {
        waitingAt[waiting] = at;
        waitingLanes[waiting++] = lane;
        nextWaitingAt = Math.min(nextWaitingAt, at);
    }

    /** Goes on with all lanes that are at the first of the instructions. */
    private void converge() {
        if (lanes != 0) {
            add(pc, lanes);
        }
        if (steps > MAX_STEPS) {
            throw KernelFinding.failed(-1, "the kernel does not end");
        }
        pc = nextWaitingAt;
        lanes = 0;
        nextWaitingAt = NOWHERE;
        int kept = 0;
        for (int i = 0; i < waiting; i++) {
            if (waitingAt[i] == pc) {
                lanes |= waitingLanes[i];
            } else {
                nextWaitingAt = Math.min(nextWaitingAt, waitingAt[i]);
                waitingAt[kept] = waitingAt[i];
                waitingLanes[kept++] = waitingLanes[i];
            }
        }
        waiting = kept;
    }

    void branch(int to, int taken) {
        if (taken == lanes) {
            pc = to;
            if (steps > MAX_STEPS) {
                throw KernelFinding.failed(-1, "the kernel does not end");
            }
        } else {
            lanes &= ~taken;
            add(to, taken);
        }
    }

    void end(int ended) {
        live &= ~ended;
        lanes &= ~ended;
        if (lanes == 0 && live != 0) {
            converge();
        }
    }

    /** Arrives at the barrier of the block. */
    void arrive(int arriving) {
        int all = Math.min(LANES, block.launch.threads() - index * LANES);
        int expected = all == LANES ? ALL : (1 << all) - 1;
        if (arriving != expected) {
            throw KernelFinding.failed(
                    -1,
                    "the barrier is divergent: lanes %08x are at it, %08x are elsewhere, %08x have ended",
                    arriving,
                    live & ~arriving,
                    expected & ~live);
        }
        atBarrier = true;
    }

    /** Checks that the lanes that an instruction names execute it, and no others. */
    void checkMembers(int members, int executing) {
        if (members != executing) {
            throw KernelFinding.failed(
                    -1,
                    "lanes %08x of the mask are not at the instruction, and lanes %08x are at it that are not of the mask",
                    members & ~executing,
                    executing & ~members);
        }
    }

    /** Special registers, each a row of {@link #words}. */
    enum Special {
        /** Zeros: operands that an instruction does not have. */
        ZERO(0),
        TID_X(1),
        CTAID_X(2),
        CTAID_Y(3),
        CTAID_Z(4),
        NCTAID_X(5),
        NCTAID_Y(6);

        final int row;

        Special(int row) {
            this.row = row;
        }

        String register() {
            return "%" + name().toLowerCase(java.util.Locale.ROOT).replace('_', '.');
        }
    }
}
