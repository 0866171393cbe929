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

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.util.List;

/*
 * Keys are the rows of a product with the queries' pairs, as they lie in the cache. Its scores, a row for each position, are turned, so that
 * a query's softmax has its positions side by side and its weights are a row of the product with the values. These become pairs of positions
 * by interleaving two rows, which puts their elements out of order: of 32 elements those whose third bit is clear come first, those
 * whose third bit is set follow. Results are put in order at the end.
 */

/** The machine code of {@link TileDecodeAttention}. Strides are in bytes. */
final class TileDecodeCode {
    /** Positions that are multiplied together: of two tiles of keys, or of one tile of weights. */
    static final int POSITIONS = 2 * TileCode.ROWS;

    /** Elements of a value that are interleaved together: those of a vector. */
    static final int ELEMENTS = 32;

    /** Bytes of a tile, which are also those of a position's scores for each of its rows. */
    static final int TILE = TileCode.ROWS * 64;

    /**
     * Lines that are fetched of 16 positions with each tile of their keys: the first ones, from which on the processor goes on fetching by itself.
     */
    private static final int LINES_WITH_KEYS = 4;

    /** Lines that are fetched with each {@link #ELEMENTS} of values: all that are left of the keys and the values. */
    private static final int LINES_WITH_VALUES = 2 * TileCode.ROWS - LINES_WITH_KEYS;

    private static final int LINE = 64;

    /** Scores that are turned together. */
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

    /** What {@link #run} is given in memory, as longs in this order. */
    enum Argument {
        /** Table of the addresses of keys, of 16 positions each. */
        KEYS(0),
        /** Table of the addresses of what is fetched, of 16 positions each. */
        AHEAD(1),
        /** From a position's key or value to the next position's. */
        ENTRY_BYTES(2),
        /** As pairs, {@code [element / 2][16 queries]}. */
        QUERY_PAIRS(3),
        /** Elements of a key, in tiles. */
        KEY_TILES(4),
        /** {@code [position][16 queries]}. */
        KEY_SCORES(5),
        /** Number of steps, of {@link TileDecodeCode#POSITIONS} positions each. */
        STEPS(6),
        /** Positions at the run's begin that are not attended to. */
        HIDDEN(7),
        /** Address of the scores behind the last position. */
        TAIL_SCORES(8),
        /** Positions behind the last one. */
        TAIL(9),
        /** {@code [step][query][32 positions]}. */
        SCORES(10),
        /** Bytes of a step's scores. */
        STEP_BYTES(11),
        /** Queries by fours, the last four perhaps fewer. */
        QUADS(12),
        /** Number of queries. */
        QUERIES(13),
        /** In fp32, {@code [query][position]}. */
        WEIGHTS(14),
        /** Bytes of a query's weights. */
        WEIGHT_STRIDE(15),
        /** Each query's largest score, {@link DecodeCode#STATE} bytes apart. */
        LARGEST(16),
        /** What each query's sums are multiplied by, {@link DecodeCode#STATE} bytes apart. */
        FACTORS(17),
        /** Positions that there are. */
        POSITIONS(18),
        /** Each query's sum of weights, {@link DecodeCode#STATE} bytes apart. */
        SUMS(19),
        /** In bf16, {@code [query][position]}. */
        NARROWED(20),
        /** Bytes of a query's weights in bf16. */
        NARROWED_STRIDE(21),
        /** Positions of all steps. */
        NARROWED_COUNT(22),
        /** Table of the addresses of values, of 16 positions each. */
        VALUES(23),
        /** {@code [32 elements][step][half][pair of positions][16 elements]}. */
        VALUE_PAIRS(24),
        /** Bytes of 32 elements' pairs. */
        VALUE_BYTES(25),
        /** Elements of a value by {@link #ELEMENTS}. */
        ELEMENT_GROUPS(26),
        /** {@code [32 elements][query][half][16 elements]}. */
        ATTENDED(27);

        private final int index;

        Argument(int index) {
            this.index = index;
        }

        long offset() {
            return (long) index * Long.BYTES;
        }
    }

    private final Assembler code = new Assembler(Width.ZMM);

    private TileDecodeCode() {}

    /** Rows of each tile for so many queries. */
    static int[] rows(int queries) {
        int all = TileCode.ROWS;
        return new int[] {all, all, queries, queries, all, all, all, queries};
    }

    /** {@code (configuration)}: configures the thread's tiles for {@link #run}. */
    static byte[] configure() {
        Assembler code = new Assembler(Width.ZMM);
        code.configureTiles(at(RDI, 0));
        code.returnFromVectors();
        return code.code();
    }

    /** {@code (arguments)}: attends to a run of positions. Tiles are configured. */
    static byte[] run() {
        return new TileDecodeCode().make();
    }

    private byte[] make() {
        Label softmax = code.label();
        Label sums = code.label();
        Label narrow = code.label();
        Label scale = code.label();
        SAVED.forEach(code::push);
        code.move(ARGUMENTS, RDI);
        multiplyKeys();
        hide();
        turnScores();

        code.load(RAX, argument(Argument.FACTORS));
        code.push(RAX);
        code.load(RAX, argument(Argument.LARGEST));
        code.push(RAX);
        call(
                softmax,
                Argument.SCORES,
                Argument.STEP_BYTES,
                Argument.STEPS,
                Argument.WEIGHTS,
                Argument.WEIGHT_STRIDE,
                Argument.QUERIES);
        code.pop(RAX);
        code.pop(RAX);
        call(
                sums,
                Argument.WEIGHTS,
                Argument.WEIGHT_STRIDE,
                Argument.POSITIONS,
                Argument.SUMS,
                Argument.FACTORS,
                Argument.QUADS);
        call(
                narrow,
                Argument.WEIGHTS,
                Argument.WEIGHT_STRIDE,
                Argument.NARROWED,
                Argument.NARROWED_STRIDE,
                Argument.QUERIES,
                Argument.NARROWED_COUNT);
        pairValues();
        code.load(R12, argument(Argument.ELEMENT_GROUPS));
        code.load(RDI, argument(Argument.ATTENDED));
        loop(R12, () -> {
            // Its first argument goes on to the next elements.
            code.load(RSI, argument(Argument.FACTORS));
            code.load(RDX, argument(Argument.QUERIES));
            code.call(scale);
        });
        addValues();
        SAVED.reversed().forEach(code::pop);
        code.returnFromVectors();
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
        code.load(RDI, argument(Argument.KEYS));
        code.load(RSI, argument(Argument.ENTRY_BYTES));
        code.load(RDX, argument(Argument.QUERY_PAIRS));
        code.load(RCX, argument(Argument.KEY_TILES));
        code.load(R8, argument(Argument.KEY_SCORES));
        code.load(R9, argument(Argument.STEPS));
        code.move(R10, (long) VECTOR);
        List<Reg> keys = List.of(RAX, R11);
        List<Reg> ahead = List.of(R14, R15);
        code.load(RBP, argument(Argument.AHEAD));
        Reg queries = R12;
        Reg left = R13;
        loop(R9, () -> {
            for (int i = 0; i < keys.size(); i++) {
                code.load(keys.get(i), at(RDI, i * Long.BYTES));
                code.clearTile(SCORE_TILE + i);
                code.load(ahead.get(i), at(RBP, i * Long.BYTES));
            }
            code.move(queries, RDX);
            code.move(left, RCX);
            loop(left, () -> {
                code.loadTile(QUERY_TILE, at(queries, R10, 1, 0));
                for (int i = 0; i < keys.size(); i++) {
                    for (int line = 0; line < LINES_WITH_KEYS; line++) {
                        code.prefetch(at(ahead.get(i), line * LINE));
                    }
                    code.add(ahead.get(i), LINES_WITH_KEYS * LINE);
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

    private void hide() {
        code.move(RAX, Constants.address(Constants.NO_SCORE));
        code.load(0, at(RAX, 0));
        hide(Argument.KEY_SCORES, Argument.HIDDEN);
        hide(Argument.TAIL_SCORES, Argument.TAIL);
    }

    private void hide(Argument scores, Argument count) {
        Label none = code.label();
        code.load(RDI, argument(scores));
        code.load(RSI, argument(count));
        code.compare(RSI, 0);
        code.jump(Condition.EQUAL, none);
        loop(RSI, () -> {
            code.store(at(RDI, 0), 0);
            code.add(RDI, VECTOR);
        });
        code.bind(none);
    }

    /** Turns a quad of queries' scores of 16 positions at a time. */
    private void turnScores() {
        code.load(RDI, argument(Argument.KEY_SCORES));
        code.load(RSI, argument(Argument.SCORES));
        code.load(RDX, argument(Argument.STEP_BYTES));
        code.load(RCX, argument(Argument.QUADS));
        loop(RCX, () -> {
            code.move(R10, RDI);
            code.move(R11, RSI);
            code.load(R9, argument(Argument.STEPS));
            loop(R9, () -> {
                for (int half = 0; half < 2; half++) {
                    turnQuad(half * VECTOR);
                    code.add(R10, TILE);
                }
                code.add(R11, RDX);
            });
            code.add(RDI, QUAD * Float.BYTES);
            code.add(RSI, QUAD * PANEL_ROW);
        });
    }

    private void turnQuad(int column) {
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
        code.load(RDI, argument(Argument.VALUES));
        code.load(RSI, argument(Argument.ENTRY_BYTES));
        code.load(RDX, argument(Argument.VALUE_PAIRS));
        code.load(RCX, argument(Argument.VALUE_BYTES));
        code.load(R9, argument(Argument.STEPS));
        code.load(RBP, argument(Argument.AHEAD));
        code.load(R13, argument(Argument.KEY_TILES));
        code.shiftLeft(R13, Integer.numberOfTrailingZeros(LINES_WITH_KEYS * LINE));
        loop(R9, () -> {
            for (int half = 0; half < 2; half++) {
                code.load(R12, at(RBP, half * Long.BYTES));
                code.add(R12, R13);
                code.load(R10, at(RDI, half * Long.BYTES));
                code.move(R11, RDX);
                code.load(R8, argument(Argument.ELEMENT_GROUPS));
                int pairs = TileCode.ROWS / 2;
                int firstPair = half * pairs;
                loop(R8, () -> {
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
        code.load(RDI, argument(Argument.NARROWED));
        code.load(RSI, argument(Argument.NARROWED_STRIDE));
        code.load(RDX, argument(Argument.VALUE_PAIRS));
        code.load(RCX, argument(Argument.VALUE_BYTES));
        code.load(R8, argument(Argument.ATTENDED));
        code.load(R9, argument(Argument.QUERIES));
        code.load(RBP, argument(Argument.ELEMENT_GROUPS));
        code.move(R10, (long) VECTOR);
        code.move(R11, (long) PANEL_ROW);
        code.shiftLeft(R9, Integer.numberOfTrailingZeros(PANEL_ROW));
        Reg weights = R12;
        Reg values = R13;
        Reg left = R14;
        loop(RBP, () -> {
            for (int half = 0; half < 2; half++) {
                code.loadTile(RESULT_TILE + half, at(R8, R11, 1, half * VECTOR));
            }
            code.move(weights, RDI);
            code.move(values, RDX);
            code.load(left, argument(Argument.STEPS));
            loop(left, () -> {
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
        loop(code, RCX, () -> {
            code.move(RAX, Constants.address(Constants.ONE));
            code.load(factor, at(RAX, 0));
            code.op(Unary.BROADCAST, result, at(RDX, 0));
            code.op(Binary.DIV, factor, factor, result);
            code.move(R10, RDI);
            code.move(R11, R8);
            loop(code, R11, () -> {
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

    private void call(Label function, Argument... arguments) {
        List<Reg> registers = List.of(RDI, RSI, RDX, RCX, R8, R9);
        for (int i = 0; i < arguments.length; i++) {
            code.load(registers.get(i), argument(arguments[i]));
        }
        code.call(function);
    }

    private static Mem argument(Argument argument) {
        return at(ARGUMENTS, (int) argument.offset());
    }

    private void loop(Reg count, Runnable body) {
        loop(code, count, body);
    }

    private static void loop(Assembler code, Reg count, Runnable body) {
        Label loop = code.label();
        code.bind(loop);
        body.run();
        code.subtract(count, 1);
        code.jump(Condition.NOT_EQUAL, loop);
    }
}
