package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.CacheOps;
import baton.engine.model.Batch;
import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.kv.KvCache;
import baton.kv.connector.HiddenState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.IntStream;

/*
 * ids          u32[R]
 * positions    u32[R]
 * wanted       u32[W]      rows that are used after the last layer
 * slots        u64[R]      for each group of layers: the byte in the pool where a row's entries begin
 * sequences    u32[S][4]   for each group: first row, rows, start, first block in `tables`
 * tail         u32[S][4]   for the last layer: each sequence from its first wanted row on
 * hidden       f32[N][hidden size]
 * tables       u32[]
 *
 * Offsets depend on the numbers of rows, and the tables are the last, so steps of single tokens with as many rows have all of it at the same
 * addresses, and a captured graph finds it there.
 */

/** Inputs of a step, such as token ids, positions and block tables: written to pinned memory, and copied to the device at once. Used by one thread. */
final class StepInputs implements AutoCloseable {
    private static final long ALIGNMENT = 16;
    private static final long LEAST_BYTES = 64 << 10;
    /** Rows of a sequence from which on its products are those of many. */
    private static final int LONG_ROWS = 128;

    private static final int SEQUENCE_BYTES = 4 * Integer.BYTES;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;

    private final Gpu gpu;
    private final KvCache cache;
    private final int hiddenSize;
    /** A block behind those of the pool, which rows without a token write to. */
    private final int scratchBlock;

    private Gpu.Pinned host;
    private Gpu.Buffer device;

    // Offsets of this step.
    private long ids;
    private long positions;
    private long wanted;
    private long slots;
    private long sequences;
    private long tail;
    private long hidden;
    private long tables;

    StepInputs(Gpu gpu, KvCache cache, int hiddenSize) {
        this.gpu = gpu;
        this.cache = cache;
        this.hiddenSize = hiddenSize;
        this.scratchBlock = cache.blocks();
        this.device = gpu.allocate(LEAST_BYTES);
        try {
            this.host = gpu.pinned(LEAST_BYTES);
        } catch (RuntimeException e) {
            device.close();
            throw e;
        }
    }

    /**
     * The numbers that a step's launches depend on.
     *
     * @param rows to compute, those of padding included
     * @param few rows of sequences with few rows, which are the first ones
     * @param wanted rows that are used after the last layer
     * @param sequences of the rows
     * @param tail sequences with rows that are wanted
     * @param longest rows of a sequence at most
     * @param context positions of a sequence at most
     */
    record Step(int rows, int few, int wanted, int sequences, int tail, int longest, int context) {}

    /** DeviceRows of a sequence, the first at position {@code start}; {@code tables} by group of layers. */
    private record Span(int row, int rows, int start, int[][] tables) {
        int context() {
            return start + rows;
        }
    }

    /**
     * Lays a step out and copies it to the device.
     *
     * @param hiddenRows rows that are wanted beside those of logits, and follow them
     * @param padded rounds the numbers up, so that there are few different steps; all sequences have one token
     */
    Step write(Batch batch, int[] hiddenRows, boolean padded, Gpu.Stream stream) {
        int rows = padded ? padded(batch.tokens()) : batch.tokens();
        List<Span> spans = spans(batch, rows);
        int[] wantedRows = wantedRows(batch, hiddenRows, padded ? rows : 0);
        List<Span> tails = padded ? spans : tails(batch, spans, wantedRows);
        int blocks = spans.stream().mapToInt(this::blocks).sum();
        place(rows, wantedRows.length, spans.size(), tails.size(), batch.given().size(), blocks);

        for (int row = 0; row < rows; row++) {
            boolean isToken = row < batch.tokens();
            put(ids, row, isToken ? (int) batch.ids()[row] : 0);
            put(positions, row, isToken ? batch.position(row) : 0);
            for (int group = 0; group < groups(); group++) {
                host.memory().set(LONG, slots + ((long) group * rows + row) * Long.BYTES, slot(batch, group, row));
            }
        }
        for (int i = 0; i < wantedRows.length; i++) {
            put(wanted, i, wantedRows[i]);
        }
        int entry = 0;
        for (int group = 0; group < groups(); group++) {
            for (int i = 0; i < spans.size(); i++) {
                Span span = spans.get(i);
                put(sequences, group * spans.size() + i, span, entry);
                for (int tailIndex = 0; group == tailGroup() && tailIndex < tails.size(); tailIndex++) {
                    Span part = tails.get(tailIndex);
                    if (part.row >= span.row && part.row < span.row + span.rows) {
                        put(tail, tailIndex, part, entry);
                    }
                }
                int count = blocks(span);
                MemorySegment.copy(
                        span.tables[group], 0, host.memory(), INT, tables + (long) entry * Integer.BYTES, count);
                entry += count;
            }
        }
        long at = hidden;
        for (HiddenState state : new TreeMap<>(batch.given()).values()) {
            for (int i = 0; i < hiddenSize; i++, at += Float.BYTES) {
                host.memory().set(ValueLayout.JAVA_FLOAT, at, element(state, i));
            }
        }
        stream.copyToDevice(device.address(), host.memory().asSlice(0, tables + (long) entry * Integer.BYTES));
        int longest = spans.stream().mapToInt(Span::rows).max().orElse(0);
        int context = spans.stream().mapToInt(Span::context).max().orElse(0);
        int blockSize = cache.layout().blockSize();
        int paddedContext = blockSize * powerOfTwo(Math.ceilDiv(context, blockSize));
        int few = spans.stream()
                .filter(span -> span.rows() < LONG_ROWS)
                .mapToInt(Span::rows)
                .sum();
        return new Step(
                rows, few, wantedRows.length, spans.size(), tails.size(), longest, padded ? paddedContext : context);
    }

    /** The slot of a row. The first row of padding is saved, and all such rows attend to its entries. */
    private long slot(Batch batch, int group, int row) {
        if (row > batch.tokens()) {
            return CacheOps.NO_SLOT;
        }
        return row == batch.tokens()
                ? scratchBlock * cache.layout().blockBytes()
                : batch.block(group, row) * cache.layout().blockBytes()
                        + batch.slot(row) * cache.layout().entryBytes();
    }

    /** A number of rows rounded up. */
    private static int padded(int rows) {
        int step = rows <= 8 ? powerOfTwo(rows) : rows <= 64 ? 8 : 32;
        return Math.ceilDiv(rows, step) * step;
    }

    private static int powerOfTwo(int least) {
        return least <= 1 ? 1 : Integer.highestOneBit(least - 1) << 1;
    }

    private int groups() {
        return cache.groups().size();
    }

    private int tailGroup() {
        return cache.groups().groupOf(cache.groups().layers() - 1);
    }

    private int blocks(Span span) {
        return cache.layout().blocksFor(span.context());
    }

    private List<Span> spans(Batch batch, int rows) {
        List<Span> spans = new ArrayList<>();
        for (Group group : batch.groups()) {
            for (int i = 0; i < group.size(); i++) {
                spans.add(new Span(
                        group.offset() + i,
                        1,
                        group.contexts()[i] - 1,
                        group.blockTables().get(i)));
            }
        }
        for (Chunk chunk : batch.chunks()) {
            spans.add(new Span(chunk.offset(), chunk.length(), chunk.start(), chunk.blockTables()));
        }
        int[][] scratch = new int[groups()][];
        Arrays.fill(scratch, new int[] {scratchBlock});
        for (int row = batch.tokens(); row < rows; row++) {
            spans.add(new Span(row, 1, 0, scratch));
        }
        return spans;
    }

    /** The rows of logits, then the others; any of them for a hidden state that is given, and for padding. */
    private static int[] wantedRows(Batch batch, int[] others, int least) {
        int[] rows = new int[Math.max(least, batch.logitRows().length + others.length)];
        int[] known = IntStream.concat(
                        IntStream.range(0, batch.logitRows().length)
                                .map(i -> batch.given().containsKey(i) ? -1 : (int) batch.logitRows()[i]),
                        Arrays.stream(others))
                .toArray();
        Arrays.fill(
                rows, Arrays.stream(known).filter(row -> row >= 0).findFirst().orElse(0));
        for (int i = 0; i < known.length; i++) {
            rows[i] = known[i] >= 0 ? known[i] : rows[i];
        }
        return rows;
    }

    /** The sequences without the rows before their first wanted one. */
    private static List<Span> tails(Batch batch, List<Span> spans, int[] wantedRows) {
        long[] sorted = IntStream.range(0, wantedRows.length)
                .filter(i -> !batch.given().containsKey(i))
                .mapToLong(i -> wantedRows[i])
                .sorted()
                .toArray();
        List<Span> tails = new ArrayList<>();
        for (Span span : spans) {
            int place = Arrays.binarySearch(sorted, span.row);
            int next = place < 0 ? -place - 1 : place;
            int skipped = next < sorted.length ? (int) sorted[next] - span.row : span.rows;
            if (skipped < span.rows) {
                tails.add(new Span(span.row + skipped, span.rows - skipped, span.start + skipped, span.tables));
            }
        }
        return tails;
    }

    private void place(int rows, int wantedCount, int spans, int tails, int states, int blocks) {
        ids = 0;
        positions = after(ids, rows, Integer.BYTES);
        wanted = after(positions, rows, Integer.BYTES);
        slots = after(wanted, wantedCount, Integer.BYTES);
        sequences = after(slots, (long) groups() * rows, Long.BYTES);
        tail = after(sequences, (long) groups() * spans, SEQUENCE_BYTES);
        hidden = after(tail, tails, SEQUENCE_BYTES);
        tables = after(hidden, states, (long) hiddenSize * Float.BYTES);
        long bytes = after(tables, (long) groups() * blocks, Integer.BYTES);
        if (bytes > host.memory().byteSize()) {
            Gpu.Pinned largerHost = gpu.pinned(2 * bytes);
            try {
                Gpu.Buffer larger = gpu.allocate(2 * bytes);
                close();
                device = larger;
            } catch (RuntimeException e) {
                largerHost.close();
                throw e;
            }
            host = largerHost;
        }
    }

    private static long after(long start, long count, long bytes) {
        return Math.ceilDiv(start + count * bytes, ALIGNMENT) * ALIGNMENT;
    }

    private void put(long section, long index, int value) {
        host.memory().set(INT, section + index * Integer.BYTES, value);
    }

    private void put(long section, int index, Span span, int entry) {
        put(section, 4L * index, span.row);
        put(section, 4L * index + 1, span.rows);
        put(section, 4L * index + 2, span.start);
        put(section, 4L * index + 3, entry);
    }

    private static float element(HiddenState state, int index) {
        return state.dtype().get(state.data(), (long) index * state.dtype().bytes());
    }

    /** Changes when the other addresses do. */
    long address() {
        return device.address();
    }

    long ids() {
        return device.address() + ids;
    }

    long positions() {
        return device.address() + positions;
    }

    /** The rows that are used after the last layer, as many as {@link Step#wanted}. */
    long wanted() {
        return device.address() + wanted;
    }

    /** Where entries begin in the pool, by row. */
    long slots(int layer, Step step) {
        return device.address() + slots + (long) group(layer) * step.rows() * Long.BYTES;
    }

    long sequences(int layer, Step step) {
        return device.address() + sequences + (long) group(layer) * step.sequences() * SEQUENCE_BYTES;
    }

    /** The address of the last layer's numbers. */
    long tail() {
        return device.address() + tail;
    }

    long tables() {
        return device.address() + tables;
    }

    /** A hidden state that is given, in fp32. */
    long hidden(int index) {
        return device.address() + hidden + (long) index * hiddenSize * Float.BYTES;
    }

    private int group(int layer) {
        return cache.groups().groupOf(layer);
    }

    /** After the stream was synchronized. */
    @Override
    public void close() {
        device.close();
        host.close();
    }
}
