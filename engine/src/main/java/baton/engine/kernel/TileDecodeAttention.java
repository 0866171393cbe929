package baton.engine.kernel;

import baton.engine.kernel.TileDecodeCode.RunArgument;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** Attention of a single row on the matrix unit. */
final class TileDecodeAttention implements DecodeAttention {
    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final int STEPS = PagedAttention.RUN / TileDecodeCode.POSITIONS;
    private static final int TABLE = PagedAttention.RUN / TileCode.ROWS;

    /** Positions beyond which those of another head, prefetched meanwhile, would be lost from the second cache again. */
    private static final int LONG_CONTEXT = 1024;

    private final Kernels kernels;
    private final AttentionScores attentionScores;
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
    private final MemorySegment prefetched;
    private final MemorySegment keyScores;
    private final MemorySegment attended;
    private final MemorySegment largest;
    private final MemorySegment sums;
    /** Values in front of the end, then zeros, as entries of which only the values are used. */
    private final MemorySegment lastValues;

    private final MemorySegment zeros;
    private final MemorySegment arguments;

    /** Working memory of one thread. */
    TileDecodeAttention(Kernels kernels, KvCache cache, int queries, AttentionScores attentionScores, Arena arena) {
        this.kernels = kernels;
        this.attentionScores = attentionScores;
        this.cache = cache;
        this.layout = cache.layout();
        this.queries = queries;
        this.headDim = layout.headDim();
        this.keyBytes = layout.entryBytes() / 2;
        int quads = Math.ceilDiv(queries, TileDecodeCode.QUAD);
        int padded = quads * TileDecodeCode.QUAD;
        long row = (long) PagedAttention.RUN * Float.BYTES;
        factor = allocate(arena, kernels.width().bytes());
        for (int i = 0; i < kernels.width().lanes(); i++) {
            factor.setAtIndex(FLOAT, i, attentionScores.factor());
        }
        queryAddresses = allocate(arena, (long) TileCode.ROWS * Long.BYTES);
        queryPairs = allocate(arena, (long) headDim / TileCode.INPUTS * TileDecodeCode.TILE);
        keys = allocate(arena, (long) TABLE * Long.BYTES);
        prefetched = allocate(arena, (long) TABLE * Long.BYTES);
        values = allocate(arena, (long) TABLE * Long.BYTES);
        keyScores = allocate(arena, (long) TABLE * TileDecodeCode.TILE);
        attended = allocate(arena, (long) queries * headDim * Float.BYTES);
        largest = allocate(arena, (long) padded * DecodeCode.STATE);
        sums = allocate(arena, (long) padded * DecodeCode.STATE);
        lastValues = allocate(arena, TileCode.ROWS * layout.entryBytes());
        zeros = allocate(arena, TileCode.ROWS * layout.entryBytes());
        arguments = allocate(arena, (long) RunArgument.values().length * Long.BYTES);
        long stepBytes = (long) padded * TileDecodeCode.POSITIONS * Float.BYTES;
        long valueBytes = 2L * STEPS * TileDecodeCode.TILE;
        int groups = headDim / TileDecodeCode.ELEMENTS;
        set(RunArgument.PREFETCHED, prefetched.address());
        set(RunArgument.KEYS, keys.address());
        set(RunArgument.ENTRY_BYTES, layout.entryBytes());
        set(RunArgument.QUERY_PAIRS, queryPairs.address());
        set(RunArgument.KEY_TILES, headDim / TileCode.INPUTS);
        set(RunArgument.KEY_SCORES, keyScores.address());
        set(RunArgument.SCORES, allocate(arena, STEPS * stepBytes).address());
        set(RunArgument.STEP_BYTES, stepBytes);
        set(RunArgument.QUADS, quads);
        set(RunArgument.QUERIES, queries);
        set(RunArgument.WEIGHTS, allocate(arena, padded * row).address());
        set(RunArgument.WEIGHT_STRIDE, row);
        set(RunArgument.LARGEST, largest.address());
        set(
                RunArgument.FACTORS,
                allocate(arena, (long) padded * DecodeCode.STATE).address());
        set(RunArgument.SUMS, sums.address());
        set(RunArgument.NARROWED, allocate(arena, queries * row / 2).address());
        set(RunArgument.NARROWED_STRIDE, row / 2);
        set(RunArgument.VALUES, values.address());
        set(RunArgument.VALUE_PAIRS, allocate(arena, groups * valueBytes).address());
        set(RunArgument.VALUE_BYTES, valueBytes);
        set(RunArgument.ELEMENT_GROUPS, groups);
        set(RunArgument.ATTENDED, attended.address());
        set(RunArgument.CAP_FACTORS, attentionScores.capFactors(arena).address());
    }

    private static MemorySegment allocate(Arena arena, long bytes) {
        return arena.allocate(bytes, 64);
    }

    private void set(RunArgument argument, long value) {
        arguments.set(LONG, argument.offset(), value);
    }

    @Override
    public void attend(int layer, Context context, Context next, long from, long to) {
        for (int query = 0; query < TileCode.ROWS; query++) {
            long row = query < queries ? query : 0;
            queryAddresses.setAtIndex(LONG, query, from + row * headDim * Float.BYTES);
        }
        kernels.get(Kernel.DECODE_QUERY_PAIRS)
                .call(queryAddresses.address(), queryPairs.address(), headDim / TileCode.INPUTS, factor.address());
        for (int query = 0; query < queries; query++) {
            float first = attentionScores.firstLargest(layer, context.head() * queries + query);
            largest.set(FLOAT, (long) query * DecodeCode.STATE, first);
            sums.set(FLOAT, (long) query * DecodeCode.STATE, attentionScores.firstSum());
        }
        attended.fill((byte) 0);
        int end = context.end();
        boolean isLong = end - context.first() > LONG_CONTEXT;
        kernels.withTilesOfThread(TileConfigurations.ofDecode(queries), () -> {
            for (int at = context.first(); at < end; at += PagedAttention.RUN) {
                int positions = Math.min(PagedAttention.RUN, end - at);
                prepare(layer, context, at, positions);
                if (isLong && at + PagedAttention.RUN < end) {
                    prefetch(layer, context, at + PagedAttention.RUN, positions);
                } else {
                    prefetch(layer, next, isLong ? next.first() : next.first() + at - context.first(), positions);
                }
                limits(positions, Math.max(0, context.visible() - at));
                kernels.get(Kernel.DECODE_RUN).call(arguments.address());
            }
        });
        kernels.get(Kernel.DECODE_RESULTS)
                .call(attended.address(), to, sums.address(), queries, headDim / TileDecodeCode.ELEMENTS);
    }

    /** Sets the addresses of a run's keys and values. */
    private void prepare(int layer, Context context, int at, int positions) {
        int groups = Math.ceilDiv(positions, TileCode.ROWS);
        for (int group = 0; group < groups; group++) {
            long entry = entry(layer, context, at + group * TileCode.ROWS);
            keys.setAtIndex(LONG, group, entry);
            values.setAtIndex(LONG, group, entry + keyBytes);
        }
        int last = positions % TileCode.ROWS;
        if (last > 0) {
            long entries = keys.getAtIndex(LONG, groups - 1) - cache.host().address();
            lastValues.fill((byte) 0);
            MemorySegment.copy(cache.host(), entries, lastValues, 0, last * layout.entryBytes());
            values.setAtIndex(LONG, groups - 1, lastValues.address() + keyBytes);
        }
        if (groups % 2 != 0) {
            keys.setAtIndex(LONG, groups, zeros.address());
            values.setAtIndex(LONG, groups, zeros.address());
        }
    }

    /** Sets the addresses that are prefetched while a run of so many positions is computed: as many positions from {@code at} on. */
    private void prefetch(int layer, Context context, int at, int positions) {
        for (int done = 0; done < positions; done += TileCode.ROWS) {
            boolean exists = at + done < context.end();
            prefetched.setAtIndex(
                    LONG, done / TileCode.ROWS, exists ? entry(layer, context, at + done) : zeros.address());
        }
    }

    private long entry(int layer, Context context, int position) {
        return cache.host().address() + cache.entryStart(context.blockTable(), layer, context.head(), position);
    }

    private void limits(int positions, int masked) {
        int steps = Math.ceilDiv(positions, TileDecodeCode.POSITIONS);
        int all = steps * TileDecodeCode.POSITIONS;
        set(RunArgument.STEPS, steps);
        set(RunArgument.MASKED, masked);
        set(RunArgument.TAIL_SCORES, keyScores.address() + positions * (long) TileDecodeCode.TILE / TileCode.ROWS);
        set(RunArgument.TAIL, all - positions);
        set(RunArgument.POSITIONS, positions);
        set(RunArgument.NARROWED_COUNT, all);
    }
}
