package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R12;
import static baton.memory.Assembler.Reg.R13;
import static baton.memory.Assembler.Reg.R14;
import static baton.memory.Assembler.Reg.R15;
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

/*
 * Keys are the rows of a product with the queries' pairs, as they lie in the cache. Its scores, a row for each position, are transposed, so
 * that a query's softmax has its positions side by side and its weights are a row of the product with the values. These become pairs of
 * positions by interleaving two rows, which puts their elements out of order: of 32 elements 0 to 3, 8 to 11 and so on come first, 4 to
 * 7, 12 to 15 and so on follow. Results are put in order at the end.
 */

/** The machine code of {@link TileDecodeAttention}. Strides are in bytes. */
final class TileDecodeCode {
    /** Positions that are multiplied together: of two tiles of keys, or of one tile of weights. */
    static final int POSITIONS = 2 * TileCode.ROWS;

    /** Elements of a value that are interleaved together: those of a vector. */
    static final int ELEMENTS = 32;

    /** Bytes of a tile, and of the scores of 16 positions. */
    static final int TILE = TileCode.ROWS * 64;

    /**
     * Lines that are prefetched of 16 positions with each tile of their keys: the first ones, from which on the processor goes on by itself.
     */
    private static final int LINES_WITH_KEYS = 4;

    /** Lines that are prefetched with each {@link #ELEMENTS} of values: all that are left of the keys and the values. */
    private static final int LINES_WITH_VALUES = 2 * TileCode.ROWS - LINES_WITH_KEYS;

    private static final int LINE = 64;

    /** Queries with scores that are transposed together. */
    static final int QUAD = 4;

    private static final int VECTOR = Width.ZMM.bytes();
    private static final int PANEL_ROW = ProductCode.VECTORS * VECTOR;
    private static final int PART = 16;

    // Tiles. The next one of the first three is the other half's, that of CACHED_TILE of keys or of values.
    private static final int SCORE_TILE = 0;
    private static final int RESULT_TILE = 2;
    private static final int CACHED_TILE = 4;
    private static final int QUERY_TILE = 6;
    private static final int WEIGHT_TILE = 7;

    private static final Reg ARGUMENTS = RBX;
    private static final List<Reg> SAVED = List.of(RBX, RBP, R12, R13, R14, R15);

    /** The arguments of {@link #run} in memory, as longs in this order. */
    enum RunArgument implements Argument {
        /** Table of the addresses of keys, of 16 positions each. */
        KEYS,
        /** Table of the addresses that are prefetched, of 16 positions each. */
        PREFETCHED,
        /** The offset from a position's key or value to the next position's. */
        ENTRY_BYTES,
        /** The queries as pairs, {@code [element / 2][16 queries]}. */
        QUERY_PAIRS,
        /** Elements of a key, in tiles. */
        KEY_TILES,
        /** {@code [position][16 queries]}. */
        KEY_SCORES,
        /** Number of steps, of {@link TileDecodeCode#POSITIONS} positions each. */
        STEPS,
        /** Positions at the run's begin that are not attended to. */
        MASKED,
        /** Address of the scores behind the last position. */
        TAIL_SCORES,
        /** Positions behind the last one. */
        TAIL,
        /** {@code [step][query][32 positions]}. */
        SCORES,
        /** Bytes of a step's scores. */
        STEP_BYTES,
        /** Queries by fours, the last four perhaps fewer. */
        QUADS,
        /** Number of queries. */
        QUERIES,
        /** The weights in fp32, {@code [query][position]}. */
        WEIGHTS,
        /** Bytes of a query's weights. */
        WEIGHT_STRIDE,
        /** Each query's largest score, {@link DecodeCode#STATE} bytes apart. */
        LARGEST,
        /** The factor of each query's sums, {@link DecodeCode#STATE} bytes apart. */
        FACTORS,
        /** Positions that there are. */
        POSITIONS,
        /** Each query's sum of weights, {@link DecodeCode#STATE} bytes apart. */
        SUMS,
        /** The weights in bf16, {@code [query][position]}. */
        NARROWED,
        /** Bytes of a query's weights in bf16. */
        NARROWED_STRIDE,
        /** Positions of all steps. */
        NARROWED_COUNT,
        /** Table of the addresses of values, of 16 positions each. */
        VALUES,
        /** {@code [32 elements][step][half][pair of positions][16 elements]}. */
        VALUE_PAIRS,
        /** Bytes of 32 elements' pairs. */
        VALUE_BYTES,
        /** Elements of a value by {@link #ELEMENTS}. */
        ELEMENT_GROUPS,
        /** {@code [32 elements][query][half][16 elements]}. */
        ATTENDED,
        /** See {@link AttentionCode#cap}; 0: there is no cap. */
        CAP_FACTORS
    }

    private final Assembler code = new Assembler(Width.ZMM);
    private final MemoryArguments memory = new MemoryArguments(code, ARGUMENTS);

    private TileDecodeCode() {}

    /** Rows of each tile for so many queries. */
    static int[] rows(int queries) {
        int all = TileCode.ROWS;
        return new int[] {all, all, queries, queries, all, all, all, queries};
    }

    /** {@code (arguments)}: attends to a run of positions. Tiles are configured. */
    static byte[] run() {
        return new TileDecodeCode().make();
    }

    private byte[] make() {
        Label cap = code.label();
        Label softmax = code.label();
        Label sums = code.label();
        Label narrow = code.label();
        Label scale = code.label();
        SAVED.forEach(code::push);
        code.move(ARGUMENTS, RDI);
        multiplyKeys();
        capScores(cap);
        mask();
        transposeScores();

        memory.load(RAX, RunArgument.FACTORS);
        code.push(RAX);
        memory.load(RAX, RunArgument.LARGEST);
        code.push(RAX);
        memory.call(
                softmax,
                RunArgument.SCORES,
                RunArgument.STEP_BYTES,
                RunArgument.STEPS,
                RunArgument.WEIGHTS,
                RunArgument.WEIGHT_STRIDE,
                RunArgument.QUERIES);
        code.pop(RAX);
        code.pop(RAX);
        memory.call(
                sums,
                RunArgument.WEIGHTS,
                RunArgument.WEIGHT_STRIDE,
                RunArgument.POSITIONS,
                RunArgument.SUMS,
                RunArgument.FACTORS,
                RunArgument.QUADS);
        memory.call(
                narrow,
                RunArgument.WEIGHTS,
                RunArgument.WEIGHT_STRIDE,
                RunArgument.NARROWED,
                RunArgument.NARROWED_STRIDE,
                RunArgument.QUERIES,
                RunArgument.NARROWED_COUNT);
        pairValues();
        memory.load(R12, RunArgument.ELEMENT_GROUPS);
        memory.load(RDI, RunArgument.ATTENDED);
        code.loop(R12, () -> {
            // Its first argument goes on to the next elements.
            memory.load(RSI, RunArgument.FACTORS);
            memory.load(RDX, RunArgument.QUERIES);
            code.call(scale);
        });
        addValues();
        SAVED.reversed().forEach(code::pop);
        code.returnFromVectors();
        code.bind(cap);
        code.append(AttentionCode.cap(Width.ZMM));
        code.bind(softmax);
        code.append(DecodeCode.softmax(Width.ZMM));
        code.bind(sums);
        code.append(DecodeCode.sums(Width.ZMM));
        code.bind(narrow);
        code.append(RowCode.narrowPairs());
        code.bind(scale);
        code.append(DecodeCode.scaleRows(Width.ZMM));
        return code.code();
    }

    private void multiplyKeys() {
        memory.load(
                RunArgument.KEYS,
                RunArgument.ENTRY_BYTES,
                RunArgument.QUERY_PAIRS,
                RunArgument.KEY_TILES,
                RunArgument.KEY_SCORES,
                RunArgument.STEPS);
        code.move(R10, (long) VECTOR);
        List<Reg> keys = List.of(RAX, R11);
        List<Reg> prefetched = List.of(R14, R15);
        memory.load(RBP, RunArgument.PREFETCHED);
        Reg queries = R12;
        Reg left = R13;
        code.loop(R9, () -> {
            for (int i = 0; i < keys.size(); i++) {
                code.load(keys.get(i), at(RDI, i * Long.BYTES));
                code.clearTile(SCORE_TILE + i);
                code.load(prefetched.get(i), at(RBP, i * Long.BYTES));
            }
            code.move(queries, RDX);
            code.move(left, RCX);
            code.loop(left, () -> {
                code.loadTile(QUERY_TILE, at(queries, R10, 1, 0));
                for (int i = 0; i < keys.size(); i++) {
                    for (int line = 0; line < LINES_WITH_KEYS; line++) {
                        code.prefetch(at(prefetched.get(i), line * LINE));
                    }
                    code.add(prefetched.get(i), LINES_WITH_KEYS * LINE);
                    code.loadTile(CACHED_TILE + i, at(keys.get(i), RSI, 1, 0));
                    code.multiplyTiles(SCORE_TILE + i, CACHED_TILE + i, QUERY_TILE);
                    code.add(keys.get(i), VECTOR);
                }
                code.add(queries, TILE);
            });
            for (int i = 0; i < keys.size(); i++) {
                code.storeTile(at(R8, R10, 1, i * TILE), SCORE_TILE + i);
            }
            code.add(RDI, keys.size() * Long.BYTES);
            code.add(RBP, keys.size() * Long.BYTES);
            code.add(R8, keys.size() * TILE);
        });
    }

    private void capScores(Label cap) {
        Label none = code.label();
        memory.load(RDX, RunArgument.CAP_FACTORS);
        code.compare(RDX, 0);
        code.jump(Condition.EQUAL, none);
        memory.load(RDI, RunArgument.KEY_SCORES);
        memory.load(RSI, RunArgument.STEPS);
        code.shiftLeft(RSI, Integer.numberOfTrailingZeros(POSITIONS));
        code.call(cap);
        code.bind(none);
    }

    private void mask() {
        code.move(RAX, Constants.address(Constants.NO_SCORE));
        code.load(0, at(RAX, 0));
        mask(RunArgument.KEY_SCORES, RunArgument.MASKED);
        mask(RunArgument.TAIL_SCORES, RunArgument.TAIL);
    }

    private void mask(RunArgument scores, RunArgument count) {
        Label none = code.label();
        memory.load(RDI, scores);
        memory.load(RSI, count);
        code.compare(RSI, 0);
        code.jump(Condition.EQUAL, none);
        code.loop(RSI, () -> {
            code.store(at(RDI, 0), 0);
            code.add(RDI, VECTOR);
        });
        code.bind(none);
    }

    /** Transposes a quad of queries' scores, of 16 positions at a time. */
    private void transposeScores() {
        memory.load(RunArgument.KEY_SCORES, RunArgument.SCORES, RunArgument.STEP_BYTES, RunArgument.QUADS);
        code.loop(RCX, () -> {
            code.move(R10, RDI);
            code.move(R11, RSI);
            memory.load(R9, RunArgument.STEPS);
            code.loop(R9, () -> {
                for (int half = 0; half < 2; half++) {
                    transposeQuad(half * VECTOR);
                    code.add(R10, TILE);
                }
                code.add(R11, RDX);
            });
            code.add(RDI, QUAD * Float.BYTES);
            code.add(RSI, QUAD * PANEL_ROW);
        });
    }

    private void transposeQuad(int column) {
        // Part p of register i is of position 4 * p + i.
        for (int i = 0; i < QUAD; i++) {
            code.op(Unary.BROADCAST_PART, i, at(R10, i * VECTOR));
        }
        for (int part = 1; part < QUAD; part++) {
            for (int i = 0; i < QUAD; i++) {
                code.insertPart(i, i, at(R10, (part * QUAD + i) * VECTOR), part);
            }
        }
        DecodeCode.transposeParts(code, 0, QUAD);
        for (int query = 0; query < QUAD; query++) {
            code.store(at(R11, query * PANEL_ROW + column), query);
        }
    }

    private void pairValues() {
        memory.load(RunArgument.VALUES, RunArgument.ENTRY_BYTES, RunArgument.VALUE_PAIRS, RunArgument.VALUE_BYTES);
        memory.load(R9, RunArgument.STEPS);
        memory.load(RBP, RunArgument.PREFETCHED);
        memory.load(R13, RunArgument.KEY_TILES);
        code.shiftLeft(R13, Integer.numberOfTrailingZeros(LINES_WITH_KEYS * LINE));
        code.loop(R9, () -> {
            for (int half = 0; half < 2; half++) {
                code.load(R12, at(RBP, half * Long.BYTES));
                code.add(R12, R13);
                code.load(R10, at(RDI, half * Long.BYTES));
                code.move(R11, RDX);
                memory.load(R8, RunArgument.ELEMENT_GROUPS);
                int pairs = TileCode.ROWS / 2;
                int firstPair = half * pairs;
                code.loop(R8, () -> {
                    code.move(RAX, R10);
                    for (int i = 0; i < pairs; i++) {
                        int register = i % 4 * 4;
                        for (int line = i; line < LINES_WITH_VALUES; line += pairs) {
                            code.prefetch(at(R12, line * LINE));
                        }
                        code.load(register, at(RAX, 0));
                        code.load(register + 1, at(RAX, RSI, 1, 0));
                        code.op(Binary.INTERLEAVE_LOW_SHORTS, register + 2, register, register + 1);
                        code.op(Binary.INTERLEAVE_HIGH_SHORTS, register + 3, register, register + 1);
                        int pair = (firstPair + i) * VECTOR;
                        code.store(at(R11, pair), register + 2);
                        code.store(at(R11, TILE + pair), register + 3);
                        code.address(RAX, at(RAX, RSI, 2, 0));
                    }
                    code.add(R10, VECTOR);
                    code.add(R12, LINES_WITH_VALUES * LINE);
                    code.add(R11, RCX);
                });
            }
            code.add(RDI, 2 * Long.BYTES);
            code.add(RBP, 2 * Long.BYTES);
            code.add(RDX, 2 * TILE);
        });
    }

    private void addValues() {
        memory.load(
                RunArgument.NARROWED,
                RunArgument.NARROWED_STRIDE,
                RunArgument.VALUE_PAIRS,
                RunArgument.VALUE_BYTES,
                RunArgument.ATTENDED,
                RunArgument.QUERIES);
        memory.load(RBP, RunArgument.ELEMENT_GROUPS);
        code.move(R10, (long) VECTOR);
        code.move(R11, (long) PANEL_ROW);
        code.shiftLeft(R9, Integer.numberOfTrailingZeros(PANEL_ROW));
        Reg weights = R12;
        Reg values = R13;
        Reg left = R14;
        code.loop(RBP, () -> {
            for (int half = 0; half < 2; half++) {
                code.loadTile(RESULT_TILE + half, at(R8, R11, 1, half * VECTOR));
            }
            code.move(weights, RDI);
            code.move(values, RDX);
            memory.load(left, RunArgument.STEPS);
            code.loop(left, () -> {
                code.loadTile(WEIGHT_TILE, at(weights, RSI, 1, 0));
                for (int half = 0; half < 2; half++) {
                    code.loadTile(CACHED_TILE + half, at(values, R10, 1, half * TILE));
                    code.multiplyTiles(RESULT_TILE + half, WEIGHT_TILE, CACHED_TILE + half);
                }
                code.add(weights, VECTOR);
                code.add(values, 2 * TILE);
            });
            for (int half = 0; half < 2; half++) {
                code.storeTile(at(R8, R11, 1, half * VECTOR), RESULT_TILE + half);
            }
            code.add(R8, R9);
            code.add(RDX, RCX);
        });
    }

    /**
     * {@code (attended, to, sums, queries, groups)}: results that are summed up, {@code [32 elements][query][half][16 elements]}, are divided
     * by the sums of their weights and put in order, {@code to[query][element]}. Groups are of 32 elements.
     */
    static byte[] results() {
        Assembler code = new Assembler(Width.XMM);
        int factor = 0;
        int result = 1;
        code.move(R9, RCX);
        code.shiftLeft(R9, Integer.numberOfTrailingZeros(PANEL_ROW));
        code.loop(RCX, () -> {
            code.move(RAX, Constants.address(Constants.ONE));
            code.load(factor, at(RAX, 0));
            code.op(Unary.BROADCAST, result, at(RDX, 0));
            code.op(Binary.DIV, factor, factor, result);
            code.move(R10, RDI);
            code.move(R11, R8);
            code.loop(R11, () -> {
                for (int part = 0; part < VECTOR / PART; part++) {
                    for (int half = 0; half < 2; half++) {
                        code.op(Binary.MUL, result, factor, at(R10, half * VECTOR + part * PART));
                        code.store(at(RSI, (2 * part + half) * PART), result);
                    }
                }
                code.add(R10, R9);
                code.add(RSI, ELEMENTS * Float.BYTES);
            });
            code.add(RDI, PANEL_ROW);
            code.add(RDX, DecodeCode.STATE);
        });
        code.returnFromVectors();
        return code.code();
    }
}
