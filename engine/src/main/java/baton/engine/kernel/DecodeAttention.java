package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/**
 * Attention of one row's queries that share a key/value head, as in decode. They are too few to fill the lanes of a panel. So the lanes of
 * the scores are positions, and those of the result are elements of a value: queries are the rows of the products; the panels are the keys,
 * transposed when they are converted to fp32, and the values.
 *
 * <p>Each sum's terms come in the same order as in {@link PagedAttention}'s panels of queries, so the results are the same bits.
 */
final class DecodeAttention {
    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;

    private final Kernels kernels;
    private final KvCache cache;
    private final KvLayout layout;
    private final int queries;
    private final int headDim;
    /** Whether the matrix unit multiplies. */
    private final boolean onTiles;

    private final WeightType type;
    private final int width;
    private final int lanes;
    private final int panels;
    private final long tileBytes;
    private final long keyPanelBytes;
    private final long valuePanelBytes;
    private final MemorySegment rows;
    private final MemorySegment factor;
    private final MemorySegment keys;
    private final MemorySegment values;
    private final MemorySegment scores;
    private final MemorySegment weights;
    private final MemorySegment attended;
    private final MemorySegment largest;
    private final MemorySegment sums;
    private final MemorySegment factors;
    /** In bf16. */
    private final MemorySegment narrowedRows;

    private final MemorySegment narrowedWeights;

    private final MemorySegment lastValues;

    /** Working memory of one thread. */
    DecodeAttention(Kernels kernels, KvCache cache, int queries, Arena arena) {
        this.kernels = kernels;
        this.cache = cache;
        this.layout = cache.layout();
        this.queries = queries;
        this.headDim = layout.headDim();
        this.width = kernels.panelWidth();
        this.lanes = kernels.width().lanes();
        this.panels = headDim / width;
        this.tileBytes = (long) queries * width * Float.BYTES;
        this.onTiles = PagedAttention.suitsTiles(kernels, layout);
        this.type = onTiles ? WeightType.BF16_PAIRS : WeightType.FP32;
        this.keyPanelBytes = (long) headDim * width * type.bytes();
        this.valuePanelBytes = (long) PagedAttention.RUN * width * type.bytes();
        int padded = Math.ceilDiv(queries, DecodeCode.SUMS) * DecodeCode.SUMS;
        long row = (long) headDim * Float.BYTES;
        rows = arena.allocate(queries * row, 64);
        factor = arena.allocate((long) width * Float.BYTES, 64);
        factor.copyFrom(MemorySegment.ofArray(floats(width, PagedAttention.scoreFactor(headDim))));
        keys = arena.allocate(PagedAttention.RUN * row, 64);
        values = arena.allocate(PagedAttention.RUN * row, 64);
        scores = arena.allocate((long) queries * PagedAttention.RUN * Float.BYTES, 64);
        weights = arena.allocate((long) padded * PagedAttention.RUN * Float.BYTES, 64);
        attended = arena.allocate(queries * row, 64);
        largest = arena.allocate((long) padded * DecodeCode.STATE, 64);
        sums = arena.allocate((long) padded * DecodeCode.STATE, 64);
        factors = arena.allocate((long) padded * DecodeCode.STATE, 64);
        narrowedRows = arena.allocate((long) queries * headDim * Short.BYTES, 64);
        narrowedWeights = arena.allocate((long) queries * PagedAttention.RUN * Short.BYTES, 64);
        lastValues = arena.allocate((long) TileCode.ROWS * headDim * Short.BYTES, 64);
    }

    private static float[] floats(int count, float value) {
        float[] floats = new float[count];
        Arrays.fill(floats, value);
        return floats;
    }

    /** Whether it can be used and is faster: vectors of keys lie in one block, and a panel's lanes would be half empty. */
    static boolean suits(Kernels kernels, KvLayout layout, int queries) {
        return 2 * queries <= kernels.panelWidth()
                && layout.blockSize() % kernels.width().lanes() == 0
                && layout.headDim() % kernels.panelWidth() == 0
                && layout.headDim() % DecodeCode.keyElements(kernels.width(), layout.dtype()) == 0;
    }

    /**
     * @param head of keys and values
     * @param from address of the first query, which the other queries follow
     * @param to address of what the first attends to
     * @param first position of the first run
     * @param visible first position that is attended to
     * @param end behind the last position
     */
    void attend(int layer, int[] blockTable, int head, long from, long to, int first, int visible, int end) {
        long bytes = rows.byteSize();
        MemorySegment.copy(MemorySegment.ofAddress(from).reinterpret(bytes), 0, rows, 0, bytes);
        kernels.scaleColumns(rows.address(), factor.address(), (long) queries * panels);
        if (onTiles) {
            narrow(rows, (long) headDim * Float.BYTES, narrowedRows, headDim);
        }
        for (int query = 0; query < queries; query++) {
            state(largest, query, PagedAttention.NO_SCORE);
            state(sums, query, 0);
        }
        attended.fill((byte) 0);
        for (int at = first; at < end; at += PagedAttention.RUN) {
            int positions = Math.min(PagedAttention.RUN, end - at);
            prepare(layer, blockTable, head, at, positions);
            take(positions, Math.max(0, visible - at));
        }
        for (int query = 0; query < queries; query++) {
            state(factors, query, 1 / sums.get(FLOAT, (long) query * DecodeCode.STATE));
        }
        scale();
        kernels.finish(Finish.STORE, attended.address(), to, (long) headDim * Float.BYTES, queries, tileBytes, panels);
    }

    private static void state(MemorySegment state, int query, float number) {
        state.set(FLOAT, (long) query * DecodeCode.STATE, number);
    }

    /** Keys and values of a run as panels. */
    private void prepare(int layer, int[] blockTable, int head, int at, int positions) {
        for (int done = 0; done < positions; ) {
            int slot = (at + done) % layout.blockSize();
            int some = Math.min(layout.blockSize() - slot, positions - done);
            long from = cache.memory().address()
                    + cache.layerStart(blockTable[(at + done) / layout.blockSize()], layer)
                    + head * layout.headBytes()
                    + slot * layout.entryBytes();
            if (onTiles) {
                arrange(from, done, some);
            } else {
                convert(from, done, some);
            }
            done += some;
        }
        if (onTiles) {
            clearValues(positions);
        }
    }

    /** Keys and values of neighbouring positions in a run as panels of fp32. */
    private void convert(long from, int done, int some) {
        DType dtype = layout.dtype();
        long rowBytes = (long) width * Float.BYTES;
        turnKeys(dtype, from, done, some);
        kernels.valuePanels(
                dtype,
                from + (long) headDim * dtype.bytes(),
                layout.entryBytes(),
                values.address() + done * rowBytes,
                valuePanelBytes,
                panels,
                some);
    }

    /** Keys and values of neighbouring positions in a run as panels of pairs; values behind the last position are zeros. */
    private void arrange(long from, int done, int some) {
        // A pair of a key's elements is turned as a whole.
        turnKeys(DType.F32, from, done, some);
        int whole = some / TileCode.ROWS * TileCode.ROWS;
        long keyBytes = (long) headDim * Short.BYTES;
        pairValues(from + keyBytes, layout.entryBytes(), done, whole);
        int rest = some - whole;
        if (rest > 0) {
            lastValues.fill((byte) 0);
            for (int i = 0; i < rest; i++) {
                long value = from
                        + (whole + i) * layout.entryBytes()
                        + keyBytes
                        - cache.memory().address();
                MemorySegment.copy(cache.memory(), value, lastValues, i * keyBytes, keyBytes);
            }
            pairValues(lastValues.address(), keyBytes, done + whole, TileCode.ROWS);
        }
    }

    /** Zeros behind the last values of a run, if those do not fill a tile. */
    private void clearValues(int positions) {
        int end = Math.ceilDiv(positions, TileCode.ROWS) * TileCode.ROWS;
        if (end % TileCode.INPUTS != 0) {
            for (int panel = 0; panel < panels; panel++) {
                values.asSlice(valuePairs(panel, end), TileCode.ROWS * (long) width * Short.BYTES)
                        .fill((byte) 0);
            }
        }
    }

    private void turnKeys(DType dtype, long from, int done, int some) {
        int vectors = Math.toIntExact(layout.entryBytes() / 2 / kernels.width().bytes());
        for (int i = 0; i < some; i += lanes) {
            int position = done + i;
            long column = position / width * keyPanelBytes + position % width * (long) Float.BYTES;
            kernels.keyPanels(
                    dtype, from + i * layout.entryBytes(), layout.entryBytes(), keys.address() + column, vectors);
        }
    }

    private void pairValues(long from, long stride, int done, int positions) {
        for (int panel = 0; panel < panels && positions > 0; panel++) {
            long element = (long) panel * width * Short.BYTES;
            kernels.valuePairs(from + element, stride, values.address() + valuePairs(panel, done), positions / 2);
        }
    }

    /** Where the pairs from a position on begin in a panel of values. */
    private long valuePairs(int panel, int position) {
        return panel * valuePanelBytes + (long) position * width * Short.BYTES;
    }

    /** Adds a run to the sums; {@code hidden} of its positions come before the first that is attended to. */
    private void take(int positions, int hidden) {
        long runBytes = (long) PagedAttention.RUN * Float.BYTES;
        int tiles = Math.ceilDiv(positions, width);
        long queryBytes = (long) headDim * Float.BYTES;
        for (int tile = 0; tile < tiles; tile++) {
            kernels.product(
                    type,
                    onTiles ? narrowedRows.address() : rows.address(),
                    onTiles ? queryBytes / 2 : queryBytes,
                    keys.address() + tile * keyPanelBytes,
                    elements(headDim),
                    scores.address() + tile * tileBytes,
                    queries);
        }
        hide(0, hidden);
        hide(positions, tiles * width);
        kernels.decodeSoftmax(
                scores.address(),
                tileBytes,
                tiles,
                weights.address(),
                runBytes,
                queries,
                largest.address(),
                factors.address());
        kernels.decodeSums(
                weights.address(),
                runBytes,
                positions,
                sums.address(),
                factors.address(),
                Math.ceilDiv(queries, DecodeCode.SUMS));
        if (isToBeScaled()) {
            scale();
        }
        if (onTiles) {
            narrow(weights, runBytes, narrowedWeights, tiles * width);
        }
        for (int panel = 0; panel < panels; panel++) {
            kernels.addProduct(
                    type,
                    onTiles ? narrowedWeights.address() : weights.address(),
                    onTiles ? runBytes / 2 : runBytes,
                    values.address() + panel * valuePanelBytes,
                    onTiles ? elements(tiles * width) : positions,
                    attended.address() + panel * tileBytes,
                    queries);
        }
    }

    /** Of a row, as products count them. */
    private int elements(int count) {
        return onTiles ? count / 2 : count;
    }

    /** The first {@code count} elements of the queries' rows in bf16, with half the stride. */
    private void narrow(MemorySegment from, long stride, MemorySegment to, int count) {
        kernels.narrowForPairs(from.address(), stride, to.address(), stride / 2, queries, count);
    }

    private boolean isToBeScaled() {
        for (int query = 0; query < queries; query++) {
            if (factors.get(FLOAT, (long) query * DecodeCode.STATE) != 1) {
                return true;
            }
        }
        return false;
    }

    private void hide(int from, int to) {
        for (int position = from; position < to; position++) {
            for (int query = 0; query < queries; query++) {
                long index = ((long) position / width * queries + query) * width + position % width;
                scores.setAtIndex(FLOAT, index, PagedAttention.NO_SCORE);
            }
        }
    }

    private void scale() {
        for (int panel = 0; panel < panels; panel++) {
            kernels.scaleRows(attended.address() + panel * tileBytes, factors.address(), queries);
        }
    }
}
