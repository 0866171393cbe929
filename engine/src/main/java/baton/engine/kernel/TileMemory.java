package baton.engine.kernel;

import baton.engine.kernel.TileAttentionCode.RunArgument;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** A thread's memory for attention on the matrix unit. */
final class TileMemory {
    /** Panels of pairs. */
    final MemorySegment queries;

    final MemorySegment weights;
    /** Values in front of the context's end, then zeros. */
    final MemorySegment lastValues;

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

    /** Bytes of a prepared run: one head's values in bf16, and the addresses of its keys, of a tile's rows each. */
    static long runBytes(int headDim) {
        return valueBytes(headDim) + (long) PagedAttention.RUN / TileCode.ROWS * Long.BYTES;
    }

    /** Bytes of a prepared run's values. */
    static long valueBytes(int headDim) {
        return (long) PagedAttention.RUN * headDim * Short.BYTES;
    }
}
