package baton.engine.kernel;

import baton.engine.kernel.TileDecodeCode.Argument;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Attention of a single row on the matrix unit. */
final class TileDecodeAttention implements DecodeAttention {
    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;
    private static final ValueLayout.OfLong LONGS = ValueLayout.JAVA_LONG;
    private static final int STEPS = PagedAttention.RUN / TileDecodeCode.POSITIONS;
    private static final int TABLE = PagedAttention.RUN / TileCode.ROWS;

    /** Positions of a head of which those of another one, fetched meanwhile, would be lost from the cache again. */
    private static final int LONG = 1024;

    private final Kernels kernels;
    private final KvCache cache;
    private final KvLayout layout;
    private final int queries;
    private final int headDim;
    private final long keyBytes;
    private final MemorySegment factor;
    /** Addresses of the queries, for 16. */
    private final MemorySegment queryAddresses;

    private final MemorySegment queryPairs;
    private final MemorySegment keys;
    private final MemorySegment values;
    private final MemorySegment ahead;
    private final MemorySegment keyScores;
    private final MemorySegment attended;
    private final MemorySegment largest;
    private final MemorySegment sums;
    /** Values in front of the end, then zeros, as entries of which only the values are used. */
    private final MemorySegment lastValues;

    private final MemorySegment zeros;
    private final MemorySegment arguments;

    /** Working memory of one thread. */
    TileDecodeAttention(Kernels kernels, KvCache cache, int queries, Arena arena) {
        this.kernels = kernels;
        this.cache = cache;
        this.layout = cache.layout();
        this.queries = queries;
        this.headDim = layout.headDim();
        this.keyBytes = layout.entryBytes() / 2;
        int quads = Math.ceilDiv(queries, TileDecodeCode.QUAD);
        int padded = quads * TileDecodeCode.QUAD;
        long row = (long) PagedAttention.RUN * Float.BYTES;
        factor = floats(arena, kernels.width().bytes());
        for (int i = 0; i < kernels.width().lanes(); i++) {
            factor.setAtIndex(FLOAT, i, PagedAttention.scoreFactor(headDim));
        }
        queryAddresses = floats(arena, (long) TileCode.ROWS * Long.BYTES);
        queryPairs = floats(arena, (long) headDim / TileCode.INPUTS * TileDecodeCode.TILE);
        keys = floats(arena, (long) TABLE * Long.BYTES);
        ahead = floats(arena, (long) TABLE * Long.BYTES);
        values = floats(arena, (long) TABLE * Long.BYTES);
        keyScores = floats(arena, (long) TABLE * TileDecodeCode.TILE);
        attended = floats(arena, (long) queries * headDim * Float.BYTES);
        largest = floats(arena, (long) padded * DecodeCode.STATE);
        sums = floats(arena, (long) padded * DecodeCode.STATE);
        lastValues = floats(arena, TileCode.ROWS * layout.entryBytes());
        zeros = floats(arena, TileCode.ROWS * layout.entryBytes());
        arguments = floats(arena, (long) Argument.values().length * Long.BYTES);
        long stepBytes = (long) padded * TileDecodeCode.POSITIONS * Float.BYTES;
        long valueBytes = 2L * STEPS * TileDecodeCode.TILE;
        int groups = headDim / TileDecodeCode.ELEMENTS;
        set(Argument.AHEAD, ahead.address());
        set(Argument.KEYS, keys.address());
        set(Argument.ENTRY_BYTES, layout.entryBytes());
        set(Argument.QUERY_PAIRS, queryPairs.address());
        set(Argument.KEY_TILES, headDim / TileCode.INPUTS);
        set(Argument.KEY_SCORES, keyScores.address());
        set(Argument.SCORES, floats(arena, STEPS * stepBytes).address());
        set(Argument.STEP_BYTES, stepBytes);
        set(Argument.QUADS, quads);
        set(Argument.QUERIES, queries);
        set(Argument.WEIGHTS, floats(arena, padded * row).address());
        set(Argument.WEIGHT_STRIDE, row);
        set(Argument.LARGEST, largest.address());
        set(Argument.FACTORS, floats(arena, (long) padded * DecodeCode.STATE).address());
        set(Argument.SUMS, sums.address());
        set(Argument.NARROWED, floats(arena, queries * row / 2).address());
        set(Argument.NARROWED_STRIDE, row / 2);
        set(Argument.VALUES, values.address());
        set(Argument.VALUE_PAIRS, floats(arena, groups * valueBytes).address());
        set(Argument.VALUE_BYTES, valueBytes);
        set(Argument.ELEMENT_GROUPS, groups);
        set(Argument.ATTENDED, attended.address());
    }

    private static MemorySegment floats(Arena arena, long bytes) {
        return arena.allocate(bytes, 64);
    }

    private void set(Argument argument, long value) {
        arguments.set(LONGS, argument.offset(), value);
    }

    @Override
    public void attend(int layer, Context context, Context next, long from, long to) {
        for (int query = 0; query < TileCode.ROWS; query++) {
            long row = query < queries ? query : 0;
            queryAddresses.setAtIndex(LONGS, query, from + row * headDim * Float.BYTES);
        }
        kernels.decodeQueryPairs(
                queryAddresses.address(), queryPairs.address(), headDim / TileCode.INPUTS, factor.address());
        for (int query = 0; query < queries; query++) {
            largest.set(FLOAT, (long) query * DecodeCode.STATE, PagedAttention.NO_SCORE);
            sums.set(FLOAT, (long) query * DecodeCode.STATE, 0);
        }
        attended.fill((byte) 0);
        int end = context.end();
        boolean isLong = end - context.first() > LONG;
        kernels.withTilesOfDecode(queries, () -> {
            for (int at = context.first(); at < end; at += PagedAttention.RUN) {
                int positions = Math.min(PagedAttention.RUN, end - at);
                prepare(layer, context, at, positions);
                if (isLong && at + PagedAttention.RUN < end) {
                    fetch(layer, context, at + PagedAttention.RUN, positions);
                } else {
                    fetch(layer, next, isLong ? next.first() : next.first() + at - context.first(), positions);
                }
                limits(positions, Math.max(0, context.visible() - at));
                kernels.decodeRun(arguments.address());
            }
        });
        kernels.decodeResults(attended.address(), to, sums.address(), queries, headDim / TileDecodeCode.ELEMENTS);
    }

    /** Sets the addresses of a run's keys and values. */
    private void prepare(int layer, Context context, int at, int positions) {
        int groups = Math.ceilDiv(positions, TileCode.ROWS);
        for (int group = 0; group < groups; group++) {
            long entry = entry(layer, context, at + group * TileCode.ROWS);
            keys.setAtIndex(LONGS, group, entry);
            values.setAtIndex(LONGS, group, entry + keyBytes);
        }
        int last = positions % TileCode.ROWS;
        if (last > 0) {
            long entries = keys.getAtIndex(LONGS, groups - 1) - cache.memory().address();
            lastValues.fill((byte) 0);
            MemorySegment.copy(cache.memory(), entries, lastValues, 0, last * layout.entryBytes());
            values.setAtIndex(LONGS, groups - 1, lastValues.address() + keyBytes);
        }
        if (groups % 2 != 0) {
            keys.setAtIndex(LONGS, groups, zeros.address());
            values.setAtIndex(LONGS, groups, zeros.address());
        }
    }

    /** Sets the addresses of what is fetched while a run of so many positions is computed: as many positions from {@code at} on. */
    private void fetch(int layer, Context context, int at, int positions) {
        for (int done = 0; done < positions; done += TileCode.ROWS) {
            boolean exists = at + done < context.end();
            ahead.setAtIndex(LONGS, done / TileCode.ROWS, exists ? entry(layer, context, at + done) : zeros.address());
        }
    }

    private long entry(int layer, Context context, int position) {
        int blockSize = layout.blockSize();
        return cache.memory().address()
                + cache.layerStart(context.blockTable()[position / blockSize], layer)
                + context.head() * layout.headBytes()
                + position % blockSize * layout.entryBytes();
    }

    private void limits(int positions, int hidden) {
        int steps = Math.ceilDiv(positions, TileDecodeCode.POSITIONS);
        int all = steps * TileDecodeCode.POSITIONS;
        set(Argument.STEPS, steps);
        set(Argument.HIDDEN, hidden);
        set(Argument.TAIL_SCORES, keyScores.address() + positions * (long) TileDecodeCode.TILE / TileCode.ROWS);
        set(Argument.TAIL, all - positions);
        set(Argument.POSITIONS, positions);
        set(Argument.NARROWED_COUNT, all);
    }
}
