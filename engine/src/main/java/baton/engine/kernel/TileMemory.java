package baton.engine.kernel;

import baton.engine.kernel.TileAttentionCode.RunArgument;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.IntToLongFunction;

/** A thread's memory for attention in pairs of bf16. */
final class TileMemory {
    /** Panels of pairs. */
    final MemorySegment queries;

    final MemorySegment weights;
    private final KvLayout layout;
    /** Values in front of the context's end, then zeros. */
    private final MemorySegment lastValues;

    /** See {@link RunArgument}. */
    final MemorySegment runArguments;

    TileMemory(
            Arena arena,
            KvLayout layout,
            int lanes,
            MemorySegment scores,
            MemorySegment state,
            MemorySegment sums,
            MemorySegment capFactors) {
        this.layout = layout;
        int headDim = layout.headDim();
        int run = PagedAttention.RUN;
        queries = arena.allocate((long) headDim * lanes * Short.BYTES, 64);
        weights = arena.allocate((long) run * lanes * Short.BYTES, 64);
        lastValues = arena.allocate((long) TileAttentionCode.POSITIONS * headDim * Short.BYTES, 64);
        runArguments = arena.allocate((long) RunArgument.values().length * Long.BYTES, 64);
        for (RunArgument argument : RunArgument.values()) {
            runArguments.set(
                    ValueLayout.JAVA_LONG,
                    argument.offset(),
                    switch (argument) {
                        case RUN_BYTES -> runBytes(headDim);
                        case TABLE -> valueBytes(headDim);
                        case ENTRY_BYTES -> layout.entryBytes();
                        case QUERIES -> queries.address();
                        case QUERY_PAIRS -> headDim / 2;
                        case SCORES -> scores.address();
                        case ROW_GROUPS -> run / TileCode.ROWS;
                        case POSITIONS -> run;
                        case STATE -> state.address();
                        case SUMS -> sums.address();
                        case HEAD_DIM -> headDim;
                        case WEIGHTS -> weights.address();
                        case WEIGHT_PAIRS -> run / 2;
                        case VALUE_STRIDE -> (long) run * Short.BYTES;
                        case CAP_FACTORS -> capFactors.address();
                        case SCORE_VECTORS -> (long) run * ProductCode.VECTORS;
                    });
        }
    }

    /**
     * Turns a run's values, {@code to[element][position]}, and adds zeros up to a whole number of tiles.
     *
     * @param value the address of a position's value
     */
    void turnValues(Kernels kernels, IntToLongFunction value, int positions, long to) {
        long rowBytes = (long) layout.headDim() * Short.BYTES;
        for (int done = 0; done < positions; done += TileAttentionCode.POSITIONS) {
            int some = Math.min(TileAttentionCode.POSITIONS, positions - done);
            long from = value.applyAsLong(done);
            long next = from;
            long stride = layout.entryBytes();
            if (some == TileAttentionCode.POSITIONS) {
                next = value.applyAsLong(done + TileCode.ROWS);
            } else {
                lastValues.fill((byte) 0);
                for (int i = 0; i < some; i++) {
                    MemorySegment last = MemorySegment.ofAddress(value.applyAsLong(done + i));
                    MemorySegment.copy(last.reinterpret(rowBytes), 0, lastValues, i * rowBytes, rowBytes);
                }
                from = lastValues.address();
                next = from + TileCode.ROWS * rowBytes;
                stride = rowBytes;
            }
            kernels.get(Kernel.VALUE_COLUMNS)
                    .call(
                            from,
                            next,
                            stride,
                            to + (long) done * Short.BYTES,
                            (long) PagedAttention.RUN * Short.BYTES,
                            layout.headDim() / TileCode.ROWS);
        }
    }

    /** Bytes of a prepared run: one head's values in bf16, and the addresses of its keys, of a tile's rows each. */
    static long runBytes(int headDim) {
        return valueBytes(headDim) + (long) PagedAttention.RUN / TileCode.ROWS * Long.BYTES;
    }

    /** Bytes of a prepared run's values. */
    static long valueBytes(int headDim) {
        return (long) PagedAttention.RUN * headDim * Short.BYTES;
    }
}
