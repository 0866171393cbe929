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
 * Attention of a single row by vectors. The lanes of the scores are positions, and those of the result are elements of a value: queries are
 * the rows of the products; the panels are the keys, transposed when they are converted to fp32, and the values. In pairs of bf16 the panels
 * have two elements of a key in a lane, and an element of two positions' values.
 */
final class VectorDecodeAttention implements DecodeAttention {
    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;

    private final Kernels kernels;
    private final AttentionScores attentionScores;
    private final MemorySegment capFactors;
    private final KvCache cache;
    private final KvLayout layout;
    private final boolean inPairs;
    private final WeightType type;
    private final int queries;
    private final int headDim;
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
    /** Queries and weights in bf16. */
    private final MemorySegment narrowRows;

    private final MemorySegment narrowWeights;
    private final MemorySegment zeros;

    /** Working memory of one thread. */
    VectorDecodeAttention(Kernels kernels, KvCache cache, int queries, AttentionScores attentionScores, Arena arena) {
        this.kernels = kernels;
        this.attentionScores = attentionScores;
        this.capFactors = attentionScores.capFactors(arena);
        this.cache = cache;
        this.layout = cache.layout();
        this.inPairs = PagedAttention.suitsPairs(kernels, layout);
        this.type = inPairs ? WeightType.BF16_PAIRS : WeightType.FP32;
        this.queries = queries;
        this.headDim = layout.headDim();
        this.width = kernels.panelWidth();
        this.lanes = kernels.width().lanes();
        this.panels = headDim / width;
        this.tileBytes = (long) queries * width * Float.BYTES;
        this.keyPanelBytes = type.bytes(headDim, width);
        this.valuePanelBytes = type.bytes(PagedAttention.RUN, width);
        int padded = Math.ceilDiv(queries, DecodeCode.SUMS) * DecodeCode.SUMS;
        long row = (long) headDim * Float.BYTES;
        rows = arena.allocate(queries * row, 64);
        factor = arena.allocate((long) width * Float.BYTES, 64);
        factor.copyFrom(MemorySegment.ofArray(floats(width, attentionScores.factor())));
        keys = arena.allocate(PagedAttention.RUN * row, 64);
        values = arena.allocate(PagedAttention.RUN * row, 64);
        scores = arena.allocate((long) queries * PagedAttention.RUN * Float.BYTES, 64);
        weights = arena.allocate((long) padded * PagedAttention.RUN * Float.BYTES, 64);
        attended = arena.allocate(queries * row, 64);
        largest = arena.allocate((long) padded * DecodeCode.STATE, 64);
        sums = arena.allocate((long) padded * DecodeCode.STATE, 64);
        factors = arena.allocate((long) padded * DecodeCode.STATE, 64);
        narrowRows = arena.allocate(rows.byteSize() / 2, 64);
        narrowWeights = arena.allocate(weights.byteSize() / 2, 64);
        zeros = arena.allocate(row, 64);
    }

    private static float[] floats(int count, float value) {
        float[] floats = new float[count];
        Arrays.fill(floats, value);
        return floats;
    }

    @Override
    public void attend(int layer, Context context, Context next, long from, long to) {
        long bytes = rows.byteSize();
        MemorySegment.copy(MemorySegment.ofAddress(from).reinterpret(bytes), 0, rows, 0, bytes);
        kernels.get(Kernel.SCALE_COLUMNS).call(rows.address(), factor.address(), (long) queries * panels);
        narrow(rows, narrowRows, headDim, headDim);
        for (int query = 0; query < queries; query++) {
            state(largest, query, attentionScores.firstLargest(layer, context.head() * queries + query));
            state(sums, query, attentionScores.firstSum());
        }
        attended.fill((byte) 0);
        for (int at = context.first(); at < context.end(); at += PagedAttention.RUN) {
            int positions = Math.min(PagedAttention.RUN, context.end() - at);
            convert(layer, context, at, positions);
            take(positions, Math.max(0, context.visible() - at));
        }
        for (int query = 0; query < queries; query++) {
            state(factors, query, 1 / sums.get(FLOAT, (long) query * DecodeCode.STATE));
        }
        scale();
        kernels.get(Kernel.FINISH, Finish.STORE)
                .call(attended.address(), to, (long) headDim * Float.BYTES, queries, tileBytes, panels);
    }

    /** Rounds a row for each query to bf16, if pairs are multiplied. */
    private void narrow(MemorySegment from, MemorySegment to, int rowElements, int count) {
        if (inPairs) {
            long row = (long) rowElements * Float.BYTES;
            kernels.get(Kernel.NARROW_PAIRS).call(from.address(), row, to.address(), row / 2, queries, count);
        }
    }

    private static void state(MemorySegment state, int query, float number) {
        state.set(FLOAT, (long) query * DecodeCode.STATE, number);
    }

    /** Keys and values of a run as panels. */
    private void convert(int layer, Context context, int at, int positions) {
        for (int done = 0; done < positions; ) {
            int slot = (at + done) % layout.blockSize();
            int some = Math.min(layout.blockSize() - slot, positions - done);
            long from =
                    cache.host().address() + cache.entryStart(context.blockTable(), layer, context.head(), at + done);
            convert(from, done, some);
            done += some;
        }
    }

    /** Keys and values of neighbouring positions in a run. */
    private void convert(long from, int done, int some) {
        DType dtype = layout.dtype();
        long rowBytes = (long) width * Float.BYTES;
        int vectors = headDim / DecodeCode.keyElements(kernels.width(), dtype);
        // Two elements of a key are transposed as one lane.
        DType keyType = inPairs ? DType.F32 : dtype;
        for (int i = 0; i < some; i += lanes) {
            int position = done + i;
            long column = position / width * keyPanelBytes + position % width * (long) Float.BYTES;
            kernels.get(Kernel.KEY_PANELS, keyType)
                    .call(from + i * layout.entryBytes(), layout.entryBytes(), keys.address() + column, vectors);
        }
        long value = from + (long) layout.valueOffset() * dtype.bytes();
        if (inPairs) {
            long to = values.address() + done / 2 * rowBytes;
            if (some > 1) {
                valuePairs(value, layout.entryBytes(), to, some / 2);
            }
            if (some % 2 == 1) {
                long last = value + (some - 1) * layout.entryBytes();
                valuePairs(last, zeros.address() - last, to + some / 2 * rowBytes, 1);
            }
            return;
        }
        kernels.get(Kernel.VALUE_PANELS, dtype)
                .call(value, layout.entryBytes(), values.address() + done * rowBytes, valuePanelBytes, panels, some);
    }

    private void valuePairs(long from, long stride, long to, int pairs) {
        kernels.get(Kernel.VALUE_PAIR_PANELS).call(from, stride, to, valuePanelBytes, panels, pairs);
    }

    /** Adds a run to the sums; {@code masked} of its positions come before the first that is attended to. */
    private void take(int positions, int masked) {
        long runBytes = (long) PagedAttention.RUN * Float.BYTES;
        int tiles = Math.ceilDiv(positions, width);
        for (int tile = 0; tile < tiles; tile++) {
            long panel = keys.address() + tile * keyPanelBytes;
            kernels.get(Kernel.PRODUCT, type)
                    .call(
                            (inPairs ? narrowRows : rows).address(),
                            rowBytes(headDim),
                            panel,
                            elements(headDim),
                            scores.address() + tile * tileBytes,
                            queries,
                            panel);
        }
        if (capFactors.byteSize() > 0) {
            kernels.get(Kernel.CAP_SCORES)
                    .call(scores.address(), tiles * tileBytes / kernels.width().bytes(), capFactors.address());
        }
        mask(0, masked);
        mask(positions, tiles * width);
        kernels.get(Kernel.DECODE_SOFTMAX)
                .call(
                        scores.address(),
                        tileBytes,
                        tiles,
                        weights.address(),
                        runBytes,
                        queries,
                        largest.address(),
                        factors.address());
        kernels.get(Kernel.DECODE_SUMS)
                .call(
                        weights.address(),
                        runBytes,
                        positions,
                        sums.address(),
                        factors.address(),
                        Math.ceilDiv(queries, DecodeCode.SUMS));
        if (isToBeScaled()) {
            scale();
        }
        narrow(weights, narrowWeights, PagedAttention.RUN, tiles * width);
        for (int i = 0; i < panels; i++) {
            long panel = values.address() + i * valuePanelBytes;
            kernels.get(Kernel.ADDED_PRODUCT, type)
                    .call(
                            (inPairs ? narrowWeights : weights).address(),
                            rowBytes(PagedAttention.RUN),
                            panel,
                            elements(positions),
                            attended.address() + i * tileBytes,
                            queries,
                            panel);
        }
    }

    /** The bytes of a product's row. */
    private long rowBytes(int numbers) {
        return (long) numbers * (inPairs ? Short.BYTES : Float.BYTES);
    }

    /** A row's elements, as the product's code counts them. */
    private int elements(int numbers) {
        return inPairs ? Math.ceilDiv(numbers, 2) : numbers;
    }

    private boolean isToBeScaled() {
        for (int query = 0; query < queries; query++) {
            if (factors.get(FLOAT, (long) query * DecodeCode.STATE) != 1) {
                return true;
            }
        }
        return false;
    }

    private void mask(int from, int to) {
        for (int position = from; position < to; position++) {
            for (int query = 0; query < queries; query++) {
                long index = ((long) position / width * queries + query) * width + position % width;
                scores.setAtIndex(FLOAT, index, PagedAttention.NO_SCORE);
            }
        }
    }

    private void scale() {
        for (int panel = 0; panel < panels; panel++) {
            kernels.get(Kernel.SCALE_ROWS).call(attended.address() + panel * tileBytes, factors.address(), queries);
        }
    }
}
