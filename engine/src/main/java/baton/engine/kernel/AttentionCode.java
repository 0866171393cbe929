package baton.engine.kernel;

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

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;

/**
 * The parts of attention that are not products. Each query has a lane of a panel, as in A. Dao's FlashAttention (arXiv 2205.14135): a tile of
 * scores is {@code [position][lane]}, the sums of values {@code [element of a head][lane]}, so that maxima and sums over
 * positions are plain vector operations.
 */
final class AttentionCode {
    private static final Reg CONSTANTS = RAX;
    private static final int QUAD = 4;

    /** Bytes of a factor of {@link #cap}: a vector of the greatest width. */
    static final int CAP_FACTOR = 64;

    private final Assembler code;
    private final int vector;

    private AttentionCode(Width width) {
        code = new Assembler(width);
        vector = width.bytes();
    }

    /**
     * {@code (scores, positions, state, limits, sums, head dim)}: adds a tile of scores, of which weights are powers of two. Scores are replaced
     * by the weights of the values; earlier sums are scaled down if there is a new maximum. The state is in vectors of the panel's width: each
     * lane's maximum score, then its sum of weights. With a mask {@code limits} has, in vectors of
     * the panel's width: each lane's last position and its first, counted from the tile's first, which is 0.
     */
    static byte[] softmax(Width width, boolean masked) {
        return new AttentionCode(width).softmax(masked, false);
    }

    /**
     * {@code (scores, positions, state, limits, sums, head dim, pairs)}: the same for an even number of positions, but the weights become a
     * panel of pairs of positions, rounded to bf16, see {@link PanelMatrix}. Scores are lost.
     */
    static byte[] softmaxToPairs(boolean masked) {
        return new AttentionCode(Width.ZMM).softmax(masked, true);
    }

    private byte[] softmax(boolean masked, boolean toPairs) {
        int panel = ProductCode.VECTORS * vector;
        PowerOfTwo power = new PowerOfTwo(code, CONSTANTS, 4, 5, 6);
        int maximum = 0; // of each vector
        int position = 2;
        int penalty = 3;
        int score = 7;
        int one = 8;
        int largest = 9;
        power.begin();
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.load(maximum + i, at(RDX, i * vector));
        }
        if (masked) {
            code.clear(position);
            code.load(one, power.constant(Constants.ONE));
            code.load(largest, power.constant(Constants.MASKED));
        }
        code.move(R10, RDI);
        code.move(R11, RSI);
        Label scores = code.label();
        code.bind(scores);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            if (masked) {
                code.load(score, at(R10, i * vector));
                code.load(penalty, at(RCX, i * vector));
                code.op(Binary.SUB, penalty, penalty, position);
                code.op(Binary.MIN, penalty, penalty, power.constant(Constants.ZERO));
                code.op(Binary.FMA, score, penalty, largest);
                code.op(Binary.SUB, penalty, position, at(RCX, panel + i * vector));
                code.op(Binary.MIN, penalty, penalty, power.constant(Constants.ZERO));
                code.op(Binary.FMA, score, penalty, largest);
                code.store(at(R10, i * vector), score);
                code.op(Binary.MAX, maximum + i, maximum + i, score);
            } else {
                code.op(Binary.MAX, maximum + i, maximum + i, at(R10, i * vector));
            }
        }
        if (masked) {
            code.op(Binary.ADD, position, position, one);
        }
        code.add(R10, panel);
        code.subtract(R11, 1);
        code.jump(Condition.NOT_EQUAL, scores);

        // Factors that scale the earlier sums to the new maxima.
        int sum = 2;
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.load(score, at(RDX, i * vector));
            code.op(Binary.SUB, score, score, maximum + i);
            power.of(score);
            code.store(at(RDX, i * vector), maximum + i);
            code.op(Binary.MUL, sum + i, score, at(RDX, panel + i * vector));
            code.op(Unary.LOAD, one + i, score);
        }
        int even = 10; // of each vector
        int indices = even + ProductCode.VECTORS;
        if (toPairs) {
            code.load(indices, power.constant(Constants.INTERLEAVED));
            code.load(RCX, at(Reg.RSP, Long.BYTES));
        }
        code.move(R11, RSI);
        Label weights = code.label();
        code.bind(weights);
        for (int row = 0; row < (toPairs ? 2 : 1); row++) {
            for (int i = 0; i < ProductCode.VECTORS; i++) {
                int weight = toPairs && row == 0 ? even + i : score;
                code.load(weight, at(RDI, row * panel + i * vector));
                code.op(Binary.SUB, weight, weight, maximum + i);
                power.of(weight);
                code.op(Binary.ADD, sum + i, sum + i, weight);
                if (!toPairs) {
                    code.store(at(RDI, i * vector), weight);
                } else if (row == 1) {
                    code.op(Binary.NARROW_PAIR, weight, weight, even + i);
                    code.permuteShorts(weight, indices, weight);
                    code.store(at(RCX, i * vector), weight);
                }
            }
        }
        if (toPairs) {
            code.add(RCX, panel);
        }
        code.add(RDI, toPairs ? 2 * panel : panel);
        code.subtract(R11, toPairs ? 2 : 1);
        code.jump(Condition.NOT_EQUAL, weights);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.store(at(RDX, panel + i * vector), sum + i);
        }
        scaleRows(R8, R9, one);
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (scores, vectors, factors)}: replaces scores s, of which weights are powers of two, by c * tanh(s / c), a score that is not a
     * number by one that is none. The factors are vectors of {@link #CAP_FACTOR} bytes: 2 / (c * ln 2), -2 * c and c.
     */
    static byte[] cap(Width width) {
        return new AttentionCode(width).cap();
    }

    private byte[] cap() {
        PowerOfTwo power = new PowerOfTwo(code, CONSTANTS, 4, 5, 6);
        int score = 0;
        int exponential = 1;
        int capped = 2;
        power.begin();
        code.loop(RSI, () -> {
            code.load(score, at(RDI, 0));
            code.op(Binary.MUL, exponential, score, at(RDX, 0));
            power.of(exponential);
            code.op(Binary.ADD, exponential, exponential, power.constant(Constants.ONE));
            code.load(capped, at(RDX, CAP_FACTOR));
            code.op(Binary.DIV, capped, capped, exponential);
            code.op(Binary.ADD, capped, capped, at(RDX, 2 * CAP_FACTOR));
            code.op(Binary.FMA, capped, score, power.constant(Constants.ZERO));
            code.store(at(RDI, 0), capped);
            code.add(RDI, vector);
        });
        code.returnFromVectors();
        return code.code();
    }

    /** {@code (sums, head dim, state)}: divides the sums of values by those of their weights. */
    static byte[] normalise(Width width) {
        return new AttentionCode(width).normalise();
    }

    private byte[] normalise() {
        code.move(CONSTANTS, Constants.address(Constants.ONE));
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.load(i, at(CONSTANTS, 0));
            code.op(Binary.DIV, i, i, at(RDX, (ProductCode.VECTORS + i) * vector));
        }
        scaleRows(RDI, RSI, 0);
        code.returnFromVectors();
        return code.code();
    }

    /** Multiplies the rows of a tile by the factors in a register and the next one. */
    private void scaleRows(Reg tile, Reg rows, int factors) {
        Label loop = code.label();
        code.bind(loop);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.op(Binary.MUL, 4 + i, factors + i, at(tile, i * vector));
            code.store(at(tile, i * vector), 4 + i);
        }
        code.add(tile, ProductCode.VECTORS * vector);
        code.subtract(rows, 1);
        code.jump(Condition.NOT_EQUAL, loop);
    }

    /**
     * {@code (addresses, tile, tile stride, quads, head dim, factor)}: heads to lanes, {@code tile[d][lane] = factor * head[lane][d]}, four lanes
     * at a time. The addresses are of the lanes' heads; the factor's is one of four equal numbers.
     */
    static byte[] toLanes() {
        return transpose(true);
    }

    /** {@code (addresses, tile, tile stride, quads, head dim)}: lanes to heads, the reverse, without a factor. */
    static byte[] fromLanes() {
        return transpose(false);
    }

    private static byte[] transpose(boolean toLanes) {
        Assembler code = new Assembler(Width.XMM);
        List<Reg> saved = List.of(Reg.RBX, Reg.RBP, Reg.R12, Reg.R13, Reg.R14);
        saved.forEach(code::push);
        List<Reg> heads = List.of(R10, R11, Reg.RBX, Reg.RBP);
        Reg tileRow = Reg.R12;
        Reg left = Reg.R13;
        Label quads = code.label();
        code.bind(quads);
        for (int i = 0; i < QUAD; i++) {
            code.load(heads.get(i), at(RDI, i * Long.BYTES));
        }
        code.move(tileRow, RSI);
        code.move(left, R8);
        if (toLanes) {
            code.load(8, at(R9, 0));
        }
        Label loop = code.label();
        code.bind(loop);
        if (toLanes) {
            for (int i = 0; i < QUAD; i++) {
                code.op(Binary.MUL, i, 8, at(heads.get(i), 0));
            }
        } else {
            code.move(Reg.R14, tileRow);
            for (int i = 0; i < QUAD; i++) {
                code.load(i, at(Reg.R14, 0));
                code.add(Reg.R14, RDX);
            }
        }
        code.op(Binary.INTERLEAVE_LOW, 4, 0, 1);
        code.op(Binary.INTERLEAVE_LOW, 5, 2, 3);
        code.op(Binary.INTERLEAVE_HIGH, 6, 0, 1);
        code.op(Binary.INTERLEAVE_HIGH, 7, 2, 3);
        code.op(Binary.LOWER_HALVES, 0, 4, 5);
        code.op(Binary.UPPER_HALVES, 1, 5, 4);
        code.op(Binary.LOWER_HALVES, 2, 6, 7);
        code.op(Binary.UPPER_HALVES, 3, 7, 6);
        if (toLanes) {
            for (int i = 0; i < QUAD; i++) {
                code.store(at(tileRow, 0), i);
                code.add(tileRow, RDX);
            }
        } else {
            for (int i = 0; i < QUAD; i++) {
                code.store(at(heads.get(i), 0), i);
            }
            code.move(tileRow, Reg.R14);
        }
        heads.forEach(head -> code.add(head, QUAD * Float.BYTES));
        code.subtract(left, QUAD);
        code.jump(Condition.NOT_EQUAL, loop);
        code.add(RDI, QUAD * Long.BYTES);
        code.add(RSI, QUAD * Float.BYTES);
        code.subtract(RCX, 1);
        code.jump(Condition.NOT_EQUAL, quads);
        saved.reversed().forEach(code::pop);
        code.returnFromVectors();
        return code.code();
    }
}
