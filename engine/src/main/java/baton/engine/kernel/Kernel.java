package baton.engine.kernel;

import baton.memory.Assembler.Width;

/**
 * The functions that {@link Kernels} has. Their arguments are described at the methods that generate their code. Of some there are
 * several, by the type of weights, the width of vectors and so on.
 */
enum Kernel {
    /** {@link ProductCode#of}, by {@link WeightType}: without the matrix unit. */
    PRODUCT(7),
    /** The same, which adds to the sums in the tile; for panels that are used as they are. */
    ADDED_PRODUCT(7),
    /** {@link ProductCode#beside}. */
    PRODUCT_BESIDE(5),
    /** {@link RowCode#expand}, by {@link WeightType}. */
    EXPAND(3),
    /** {@link RowCode#finish}, by {@link RowCode.Finish}. */
    FINISH(6),
    /** {@link RowCode#columns}. */
    SCALE_COLUMNS(3),
    /** {@link RowCode#columns}. */
    ADD_TO_COLUMNS(3),
    /** {@link RowCode#widen}, by {@link baton.kv.DType}. */
    WIDEN(3),
    /** {@link RowCode#narrow}, by {@link Width}; to other types than bf16 by {@link baton.kv.DType}. */
    NARROW(6),
    /** {@link RowCode#narrowPairs}, on a processor with AVX512_BF16. */
    NARROW_PAIRS(6),
    /** {@link RowCode#norm}, by {@link Width}. */
    NORM(5),
    /** {@link RowCode#normNarrow}, on a processor with AVX512_BF16. */
    NARROW_NORM(5),
    /** {@link RowCode#rotate}, by {@link Width}. */
    ROTATE(7),
    /** {@link RowCode#largest}. */
    LARGEST(4),
    /** {@link AttentionCode#softmax}. */
    SOFTMAX(6),
    MASKED_SOFTMAX(6),
    /** {@link AttentionCode#cap}. */
    CAP_SCORES(3),
    /** {@link AttentionCode#normalise}. */
    NORMALISE(3),
    /** {@link AttentionCode#toLanes}. */
    TO_LANES(6),
    /** {@link AttentionCode#fromLanes}. */
    FROM_LANES(5),
    /** {@link DecodeCode#keys}, by {@link baton.kv.DType}. */
    KEY_PANELS(4),
    /** {@link DecodeCode#values}, by {@link baton.kv.DType}. */
    VALUE_PANELS(6),
    /** {@link DecodeCode#softmax}. */
    DECODE_SOFTMAX(8),
    /** {@link DecodeCode#sums}. */
    DECODE_SUMS(6),
    /** {@link DecodeCode#scaleRows}. */
    SCALE_ROWS(3),

    /** {@link ProductCode#withoutFetching}, for attention in pairs. */
    SCORES(7),
    /** {@link TileAttentionCode#queries}. */
    QUERY_PAIRS(4),
    /** {@link TileAttentionCode#results}. */
    RESULTS(4),
    /** {@link AttentionCode#softmaxToPairs}. */
    SOFTMAX_TO_PAIRS(7),
    MASKED_SOFTMAX_TO_PAIRS(7),
    /** {@link TileAttentionCode#valueColumns}. */
    VALUE_COLUMNS(6),
    /** {@link TileAttentionCode#valuePairs}. */
    VALUE_PAIR_PANELS(6),

    // On the matrix unit.

    /** {@link TileCode#product}, of few rows, with weights that are read once. */
    FEW_BY_TILES(7),
    /** {@link TileCode#productBeside}. */
    FEW_BESIDE_BY_TILES(6),
    /** {@link TileCode#expandingProduct}. */
    FEW_EXPANDING_BY_TILES(7),
    /** {@link TileCode#product}, of a block of rows, by the number of lines that are fetched. */
    MANY_BY_TILES(7),
    /** The same, which adds to the sums in the tile. */
    MANY_ADDED_BY_TILES(7),
    /** {@link TileCode#configure}. */
    CONFIGURE_TILES(1),
    /** {@link TileCode#release}. */
    RELEASE_TILES(0),
    /** {@link TileCode#gatheredProduct}. */
    GATHERED_BY_TILES(6),
    /** {@link TileCode#addedProduct}. */
    ADDED_BY_TILES(6),
    /** {@link TileAttentionCode#runs}. */
    RUNS(3),
    /** {@link TileAttentionCode#queries}, of 16 lanes. */
    DECODE_QUERY_PAIRS(4),
    /** {@link TileDecodeCode#run}. */
    DECODE_RUN(1),
    /** {@link TileDecodeCode#results}. */
    DECODE_RESULTS(5);

    private final int arguments;

    Kernel(int arguments) {
        this.arguments = arguments;
    }

    int arguments() {
        return arguments;
    }
}
