package baton.engine.model;

import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.KvCache;
import baton.kv.connector.HiddenState;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

/**
 * How the tokens of a step lie in the batch: sequences with one token first, by context length and in groups of similar lengths,
 * then the longer slices, the shortest first.
 */
public final class Batch {
    /** Unused slots that a group may read before another round of operator calls is cheaper. */
    private static final int FREE_PADDING = 256;

    private final List<Group> groups = new ArrayList<>();
    private final List<Chunk> chunks = new ArrayList<>();
    private final long[] ids;
    private final int[] positions;
    /** The blocks by group. */
    private final int[][] blocks;

    private final List<SequenceSlice> slices;
    /** The offset of each slice's first token. */
    private final int[] offsets;

    private final long[] logitRows;
    private final int blockSize;
    private Map<Integer, HiddenState> given = Map.of();
    private int filled;

    /**
     * Sequences with one token each, at rows {@code offset} and on.
     *
     * @param contexts how many positions each attends to, its own included
     * @param longest the greatest of them
     * @param blockTables of each sequence by group of layers
     */
    public record Group(int offset, int[] contexts, int longest, List<int[][]> blockTables) {
        public int size() {
            return contexts.length;
        }
    }

    /**
     * {@code length} tokens of one sequence at rows {@code offset} and on, the first at position {@code start}.
     *
     * @param blockTables by group of layers
     */
    public record Chunk(int offset, int length, int start, int[][] blockTables) {
        public int context() {
            return start + length;
        }

        /** The first of the chunk's tokens that is among these rows, which ascend; its length if none is. */
        public int firstOf(long[] rows) {
            for (long row : rows) {
                if (row >= offset && row < offset + length) {
                    return (int) row - offset;
                }
            }
            return length;
        }
    }

    /**
     * @param padding how many rows to compute for so many tokens
     * @throws IllegalArgumentException naming the slice if it does not fit the model or its blocks
     */
    public Batch(
            List<SequenceSlice> slices, ModelConfig config, KvCache cache, int maxPositions, IntUnaryOperator padding) {
        blockSize = cache.layout().blockSize();
        int tokens = 0;
        int logits = 0;
        for (int i = 0; i < slices.size(); i++) {
            check(i, slices.get(i), config, cache, maxPositions);
            tokens += slices.get(i).tokens().length;
            logits += slices.get(i).logits();
        }
        if (tokens == 0 && logits == 0) {
            throw new IllegalArgumentException("slices: nothing to compute");
        }
        ids = new long[padding.applyAsInt(tokens)];
        positions = new int[ids.length];
        blocks = new int[cache.groups().size()][tokens];
        this.slices = slices;
        offsets = new int[slices.size()];
        placeSingles();
        IntStream.range(0, slices.size())
                .filter(i -> slices.get(i).tokens().length > 1)
                .boxed()
                .sorted(Comparator.comparingInt(i -> slices.get(i).tokens().length))
                .forEach(i -> {
                    SequenceSlice slice = slices.get(i);
                    offsets[i] = filled;
                    chunks.add(new Chunk(filled, slice.tokens().length, slice.start(), slice.blockTables()));
                    place(slice);
                });
        logitRows = new long[logits];
        int row = 0;
        for (int i = 0; i < slices.size(); i++) {
            SequenceSlice slice = slices.get(i);
            if (slice.hidden().isPresent()) {
                given = given.isEmpty() ? new HashMap<>() : given;
                given.put(row++, slice.hidden().get());
                continue;
            }
            for (int back = slice.logits(); back > 0; back--) {
                logitRows[row++] = (long) offsets[i] + slice.tokens().length - back;
            }
        }
    }

    public int tokens() {
        return blocks[0].length;
    }

    /** Rows to compute: the tokens' and padding behind them, since each new number of rows costs kernels of its own. */
    public int rows() {
        return ids.length;
    }

    /** Token ids by row. */
    public long[] ids() {
        return ids;
    }

    public int position(int row) {
        return positions[row];
    }

    /** The block that keeps the row's keys and values in the layers of a group. */
    public int block(int group, int row) {
        return blocks[group][row];
    }

    public int slot(int row) {
        return positions[row] % blockSize;
    }

    public List<Group> groups() {
        return groups;
    }

    public List<Chunk> chunks() {
        return chunks;
    }

    /** The row of a slice's last token. */
    public int lastRow(int slice) {
        return offsets[slice] + slices.get(slice).tokens().length - 1;
    }

    /** Hidden states that logits are wanted of, by their place among {@link #logitRows}, where zeros stand for them. */
    public Map<Integer, HiddenState> given() {
        return given;
    }

    /** The rows to compute logits of, in the order of the slices. */
    public long[] logitRows() {
        return logitRows;
    }

    /** A number of rows rounded up, so that there are few different ones. */
    static int padded(int rows) {
        int step = rows <= 8 ? 1 : rows <= 256 ? 16 : 64;
        return Math.ceilDiv(rows, step) * step;
    }

    private void placeSingles() {
        // Context length, then place among the slices.
        long[] singles = new long[slices.size()];
        int count = 0;
        for (int i = 0; i < slices.size(); i++) {
            if (slices.get(i).tokens().length == 1) {
                singles[count++] = (slices.get(i).start() + 1L) << Integer.SIZE | i;
            }
        }
        Arrays.sort(singles, 0, count);
        int first = 0;
        while (first < count) {
            int end = first + 1;
            long used = context(singles[first]);
            while (end < count) {
                long context = context(singles[end]);
                long read = context * (end - first + 1);
                used += context;
                if (read - used > Math.max(FREE_PADDING, used / 4)) {
                    break;
                }
                end++;
            }
            group(Arrays.copyOfRange(singles, first, end));
            first = end;
        }
    }

    private static int context(long single) {
        return (int) (single >>> Integer.SIZE);
    }

    private void group(long[] members) {
        int offset = filled;
        int[] contexts = new int[members.length];
        List<int[][]> tables = new ArrayList<>(members.length);
        for (int i = 0; i < contexts.length; i++) {
            int index = (int) members[i];
            SequenceSlice slice = slices.get(index);
            offsets[index] = filled;
            contexts[i] = context(members[i]);
            tables.add(slice.blockTables());
            place(slice);
        }
        groups.add(new Group(offset, contexts, contexts[contexts.length - 1], tables));
    }

    private void place(SequenceSlice slice) {
        for (int i = 0; i < slice.tokens().length; i++) {
            int position = slice.start() + i;
            ids[filled] = slice.tokens()[i];
            positions[filled] = position;
            for (int group = 0; group < blocks.length; group++) {
                blocks[group][filled] = slice.blockTables()[group][position / blockSize];
            }
            filled++;
        }
    }

    private static void check(String where, int[] blockTable, int needed, long end, int poolBlocks) {
        if (blockTable.length < needed) {
            throw new IllegalArgumentException("%s: blockTable has %d blocks, %d positions need %d"
                    .formatted(where, blockTable.length, end, needed));
        }
        for (int i = 0; i < needed; i++) {
            if (blockTable[i] < 0 || blockTable[i] >= poolBlocks) {
                throw new IllegalArgumentException(
                        "%s: blockTable[%d]=%d, the pool has blocks=%d".formatted(where, i, blockTable[i], poolBlocks));
            }
        }
    }

    private void check(int index, SequenceSlice slice, ModelConfig config, KvCache cache, int maxPositions) {
        String where = "slices[" + index + "]";
        int length = slice.tokens().length;
        long end = (long) slice.start() + length;
        boolean empty = length == 0 && slice.hidden().isEmpty();
        if (empty || slice.start() < 0 || end > maxPositions) {
            throw new IllegalArgumentException("%s: start=%d tokens=%d must be positions below %d"
                    .formatted(where, slice.start(), length, maxPositions));
        }
        if (slice.hidden().isPresent()) {
            if (length > 0 || slice.logits() != 1) {
                throw new IllegalArgumentException(
                        "%s: a hidden state with tokens=%d, logits=%d".formatted(where, length, slice.logits()));
            }
            return;
        }
        if (slice.logits() < 0 || slice.logits() > length) {
            throw new IllegalArgumentException("%s: logits=%d of tokens=%d".formatted(where, slice.logits(), length));
        }
        int needed = Math.toIntExact(Math.ceilDiv(end, blockSize));
        if (slice.blockTables().length != cache.groups().size()) {
            throw new IllegalArgumentException("%s: %d block tables, the pool has groups=%d"
                    .formatted(where, slice.blockTables().length, cache.groups().size()));
        }
        for (int[] blockTable : slice.blockTables()) {
            check(where, blockTable, needed, end, cache.blocks());
        }
        for (int id : slice.tokens()) {
            if (id < 0 || id >= config.vocabularySize()) {
                throw new IllegalArgumentException(
                        "%s: token id %d, the vocabulary has %d".formatted(where, id, config.vocabularySize()));
            }
        }
    }
}
