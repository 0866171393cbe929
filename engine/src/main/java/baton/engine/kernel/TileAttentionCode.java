package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R12;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RBP;
import static baton.memory.Assembler.Reg.RBX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;

import baton.engine.kernel.MemoryArguments.Argument;
import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;

/** The code of attention in pairs of bf16 beside products: numbers in the order of the matrix unit's tiles. Strides are in bytes. */
final class TileAttentionCode {
    /** Positions that {@link #valueColumns} takes at once: the pairs of a tile's row. */
    static final int POSITIONS = 32;

    /** Columns of a part of 128 bits, which {@link DecodeCode#transpose} gives one by one. */
    private static final int GROUP = 4;

    private static final int BF16_BITS = 16;
    private static final int LANES = Width.ZMM.lanes();
    private static final int VECTOR = Width.ZMM.bytes();
    private static final int PANEL_ROW = ProductCode.VECTORS * VECTOR;

    private TileAttentionCode() {}

    /** The parts of a panel's memory that {@link #runs} takes, as longs in this order. */
    enum RunArgument implements Argument {
        /** Bytes from one run to the next. */
        RUN_BYTES,
        /** The offset from a run's beginning to the table of its keys' addresses. */
        TABLE,
        ENTRY_BYTES,
        QUERIES,
        QUERY_PAIRS,
        SCORES,
        ROW_GROUPS,
        POSITIONS,
        STATE,
        SUMS,
        HEAD_DIM,
        WEIGHTS,
        WEIGHT_PAIRS,
        /** Bytes of an element's values of a run. */
        VALUE_STRIDE,
        /** See {@link AttentionCode#cap}; 0: there is no cap. */
        CAP_FACTORS,
        /** Vectors of a run's scores. */
        SCORE_VECTORS
    }

    /**
     * {@code (arguments, run, count)}: attends to runs that follow each other, of which a query attends to all positions: for each
     * {@link TileCode#gatheredProduct}, {@link AttentionCode#cap}, {@link AttentionCode#softmaxToPairs} and {@link TileCode#addedProduct}. Tiles are configured. The
     * arguments are those of {@link RunArgument}.
     */
    static byte[] runs() {
        Assembler code = new Assembler(Width.ZMM);
        Label gathered = code.label();
        Label cap = code.label();
        Label softmax = code.label();
        Label added = code.label();
        List<Reg> saved = List.of(RBX, RBP, R12);
        saved.forEach(code::push);
        Reg arguments = RBX;
        MemoryArguments memory = new MemoryArguments(code, arguments);
        Reg run = RBP;
        Reg left = R12;
        code.move(arguments, RDI);
        code.move(run, RSI);
        code.move(left, RDX);
        code.loop(left, () -> {
            code.move(RDI, run);
            memory.load(RAX, RunArgument.TABLE);
            code.add(RDI, RAX);
            memory.loadBehindFirst(
                    RunArgument.ENTRY_BYTES,
                    RunArgument.QUERIES,
                    RunArgument.QUERY_PAIRS,
                    RunArgument.SCORES,
                    RunArgument.ROW_GROUPS);
            code.call(gathered);
            Label uncapped = code.label();
            memory.load(RDX, RunArgument.CAP_FACTORS);
            code.compare(RDX, 0);
            code.jump(Condition.EQUAL, uncapped);
            memory.load(RDI, RunArgument.SCORES);
            memory.load(RSI, RunArgument.SCORE_VECTORS);
            code.call(cap);
            code.bind(uncapped);
            memory.load(RDI, RunArgument.SCORES);
            memory.load(RSI, RunArgument.POSITIONS);
            memory.load(RDX, RunArgument.STATE);
            memory.load(R8, RunArgument.SUMS);
            memory.load(R9, RunArgument.HEAD_DIM);
            memory.load(RAX, RunArgument.WEIGHTS);
            code.push(RAX);
            code.call(softmax);
            code.pop(RAX);
            code.move(RDI, run);
            memory.loadBehindFirst(
                    RunArgument.VALUE_STRIDE,
                    RunArgument.WEIGHTS,
                    RunArgument.WEIGHT_PAIRS,
                    RunArgument.SUMS,
                    RunArgument.HEAD_DIM);
            code.call(added);
            memory.load(RAX, RunArgument.RUN_BYTES);
            code.add(run, RAX);
        });
        saved.reversed().forEach(code::pop);
        code.returnFromVectors();
        code.bind(gathered);
        code.append(TileCode.gatheredProduct());
        code.bind(cap);
        code.append(AttentionCode.cap(Width.ZMM));
        code.bind(softmax);
        code.append(AttentionCode.softmaxToPairs(false));
        code.bind(added);
        code.append(TileCode.addedProduct());
        return code.code();
    }

    /**
     * {@code (addresses, to, groups, factor)}: queries of fp32 at an address for each of a panel's lanes become a panel of pairs, {@code
     * to[i][lane] = factor * (query[2 * i], query[2 * i + 1])}, rounded to nearest even. Groups are of 32 elements, the factor's address is that of
     * a vector of equal numbers.
     *
     * @param vectors of lanes
     */
    static byte[] queries(int vectors) {
        Assembler code = new Assembler(Width.ZMM);
        int factor = Width.ZMM.registers() - 1;
        int lower = LANES;
        int panelRow = vectors * VECTOR;
        code.load(factor, at(RCX, 0));
        for (int half = 0; half < vectors; half++) {
            int column = half * VECTOR;
            code.move(R10, 0L);
            code.move(R11, RSI);
            code.move(RCX, RDX);
            int firstLane = half * LANES;
            code.loop(RCX, () -> {
                for (int lane = 0; lane < LANES; lane++) {
                    code.load(RAX, at(RDI, (firstLane + lane) * Long.BYTES));
                    code.op(Binary.MUL, lane, factor, at(RAX, R10, 1, VECTOR));
                    code.op(Binary.MUL, lower, factor, at(RAX, R10, 1, 0));
                    code.op(Binary.NARROW_PAIR, lane, lane, lower);
                }
                DecodeCode.transpose(
                        code, (pair, register, _) -> code.store(at(R11, pair * panelRow + column), register));
                code.add(R10, 2 * VECTOR);
                code.add(R11, LANES * panelRow);
            });
        }
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (sums, addresses, groups, state)}: sums of a panel, {@code [element][lane]}, divided by those of the weights, to an address for each
     * lane. Groups are of 16 elements; the state is that of {@link AttentionCode#softmaxToPairs}.
     */
    static byte[] results() {
        Assembler code = new Assembler(Width.ZMM);
        int factor = Width.ZMM.registers() - 1;
        for (int half = 0; half < ProductCode.VECTORS; half++) {
            int column = half * VECTOR;
            code.move(RAX, Constants.address(Constants.ONE));
            code.load(factor, at(RAX, 0));
            code.op(Binary.DIV, factor, factor, at(RCX, PANEL_ROW + column));
            code.move(R10, 0L);
            code.move(R11, RDI);
            code.move(R8, RDX);
            int firstLane = half * LANES;
            code.loop(R8, () -> {
                for (int element = 0; element < LANES; element++) {
                    code.op(Binary.MUL, element, factor, at(R11, element * PANEL_ROW + column));
                }
                DecodeCode.transpose(code, (lane, register, _) -> {
                    code.load(RAX, at(RSI, (firstLane + lane) * Long.BYTES));
                    code.store(at(RAX, R10, 1, 0), register);
                });
                code.add(R10, VECTOR);
                code.add(R11, LANES * PANEL_ROW);
            });
        }
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (from, next, stride, to, to stride, groups)}: values in bf16 of 16 positions at {@code from} and of 16 at {@code next} as
     * rows of positions, {@code to[element][position]}. Groups are of 16 elements.
     */
    static byte[] valueColumns() {
        Assembler code = new Assembler(Width.ZMM);
        int half = LANES / 2;
        code.loop(R9, () -> {
            for (int i = 0; i < LANES; i++) {
                if (i % half == 0) {
                    code.move(RAX, i == 0 ? RDI : RSI);
                }
                pair(code, i, LANES, RAX, RDX, 0);
                code.address(RAX, at(RAX, RDX, 2, 0));
            }
            // Columns come in another order than rows are stored.
            code.move(RAX, R8);
            code.shiftLeft(RAX, 2);
            code.move(R10, RCX);
            DecodeCode.transpose(code, (element, register, _) -> {
                if (element > 0 && element < GROUP) {
                    code.add(R10, R8);
                }
                if (element < GROUP) {
                    code.move(R11, R10);
                }
                code.store(at(R11, 0), register);
                code.add(R11, RAX);
            });
            code.address(RCX, at(RCX, RAX, 4, 0));
            code.add(RDI, LANES * Short.BYTES);
            code.add(RSI, LANES * Short.BYTES);
        });
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (from, stride, to, panel stride, panels, pairs)}: values in bf16 of neighbouring positions as panels of pairs of positions, {@code
     * to[panel][pair][element]}.
     */
    static byte[] valuePairs() {
        Assembler code = new Assembler(Width.ZMM);
        code.loop(R8, () -> {
            code.move(RAX, RDI);
            code.move(R10, RDX);
            code.move(R11, R9);
            code.loop(R11, () -> {
                for (int i = 0; i < ProductCode.VECTORS; i++) {
                    pair(code, i, LANES, RAX, RSI, i * LANES * Short.BYTES);
                    code.store(at(R10, i * VECTOR), i);
                }
                code.address(RAX, at(RAX, RSI, 2, 0));
                code.add(R10, PANEL_ROW);
            });
            code.add(RDI, ProductCode.VECTORS * LANES * Short.BYTES);
            code.add(RDX, RCX);
        });
        code.returnFromVectors();
        return code.code();
    }

    /** 16 bits from a row in the lower half of each lane, those of the next row in the upper half. */
    private static void pair(Assembler code, int to, int spare, Reg row, Reg stride, int offset) {
        code.op(Unary.SHORTS_TO_INTS, to, at(row, offset));
        code.op(Unary.SHORTS_TO_INTS, spare, at(row, stride, 1, offset));
        code.shiftLeft(spare, spare, BF16_BITS);
        code.op(Binary.ADD_INTS, to, to, spare);
    }
}
