package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Attention over blocks in any order equals softmax(q k * scale) v in fp64. */
class AttentionOpsTest {
    private static final long SEED = Long.getLong("tests.seed", 11);
    private static final int LAYERS = 2;
    private static final int LAYER = 1;
    private static final int EVERYTHING = Integer.MAX_VALUE;

    /** Copies nothing: tests read and write the pool by themselves. */
    private static final class NoCopier implements KvCopier {
        @Override
        public KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
            throw new UnsupportedOperationException("not in this test");
        }

        @Override
        public KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
            throw new UnsupportedOperationException("not in this test");
        }
    }

    static KvCache cache(TestDevice device, KvLayout layout, int blocks, MemorySegment content) {
        long bytes = blocks * layout.blockBytes();
        long address = content.byteSize() > 0 ? device.put(content) : device.room(bytes);
        KvMemory memory = new KvMemory.Device(address, bytes, new KvDevice("cuda", 0), new NoCopier());
        List<String> names =
                IntStream.range(0, layout.layers()).mapToObj(Integer::toString).toList();
        return new KvCache(memory, layout, blocks, names);
    }

    /**
     * DeviceRows of a sequence.
     *
     * @param start position of the first one
     */
    private record Sequence(int rows, int start) {
        int end() {
            return start + rows;
        }
    }

    private record Scores(int reach, float cap, boolean sinks) {}

    /** A model's shape. */
    private record Shape(
            DType computed, DType cache, int heads, int kvHeads, int headDim, int blockSize, boolean latent) {
        Shape(DType computed, DType cache, int heads, int kvHeads, int headDim, int blockSize) {
            this(computed, cache, heads, kvHeads, headDim, blockSize, false);
        }

        double scale() {
            return 1 / Math.sqrt(headDim);
        }
    }

    /** A pool and queries, and the results for them. */
    private static final class Case implements AutoCloseable {
        final TestDevice device = new TestDevice();
        final Arena arena = Arena.ofShared();
        final AttentionOps few = new AttentionOps(device.gpu());
        final AttentionOps many = new AttentionOps(device.gpu(), 0);
        AttentionOps attention = few;
        final Shape shape;
        final Scores scores;
        final List<Sequence> sequences;
        final KvLayout layout;
        final int blocks;
        final MemorySegment pool;
        final List<int[]> tables = new ArrayList<>();
        final float[] sinks;
        final int rows;
        final float[] queries;

        Case(Shape shape, Scores scores, List<Sequence> sequences) {
            this.shape = shape;
            this.scores = scores;
            this.sequences = sequences;
            Random random = new Random(SEED);
            layout = new KvLayout(LAYERS, shape.kvHeads, shape.headDim, shape.blockSize, shape.cache, shape.latent);
            blocks = 1
                    + sequences.stream()
                            .mapToInt(sequence -> layout.blocksFor(sequence.end()))
                            .sum();
            pool = arena.allocate(blocks * layout.blockBytes(), 16);
            for (long at = 0; at < pool.byteSize(); at += shape.cache.bytes()) {
                shape.cache.set(pool, at, 2 * random.nextFloat() - 1);
            }
            List<Integer> free =
                    new ArrayList<>(IntStream.range(1, blocks).boxed().toList());
            Collections.shuffle(free, random);
            for (Sequence sequence : sequences) {
                int[] table = new int[layout.blocksFor(sequence.end())];
                Arrays.setAll(table, _ -> free.removeLast());
                tables.add(table);
            }
            sinks = TestDevice.numbers(random, DType.F32, shape.heads);
            rows = sequences.stream().mapToInt(Sequence::rows).sum();
            queries = TestDevice.numbers(random, shape.computed, rows * shape.heads * shape.headDim);
            for (int i = 0; i < queries.length; i++) {
                queries[i] *= 4;
            }
        }

        /** The results by row, head and element, of some of the sequences together; rows of others are unchanged. */
        float[] attend(DType type, List<Integer> some, int maxContext, int leastRows) {
            List<Integer> numbers = new ArrayList<>();
            List<Integer> table = new ArrayList<>(List.of(-1));
            int row = 0;
            int maxRows = leastRows;
            for (int i = 0; i < sequences.size(); i++) {
                Sequence sequence = sequences.get(i);
                if (some.contains(i)) {
                    numbers.addAll(List.of(row, sequence.rows, sequence.start, table.size()));
                    Arrays.stream(tables.get(i)).forEach(table::add);
                    maxRows = Math.max(maxRows, sequence.rows);
                }
                row += sequence.rows;
            }
            DeviceRows from = device.put(shape.computed, rows, shape.heads, shape.headDim, queries);
            DeviceRows to = device.put(type, rows, shape.heads, shape.headDim, new float[queries.length]);
            attention.attend(
                    device.stream(),
                    from,
                    to,
                    cache(device, layout, blocks, pool),
                    LAYER,
                    device.put(ints(numbers)),
                    some.size(),
                    device.put(ints(table)),
                    maxRows,
                    maxContext,
                    scores.reach,
                    (float) shape.scale(),
                    scores.cap,
                    scores.sinks ? device.put(sinks) : 0);
            return device.floats(to);
        }

        float[] attend(DType type) {
            return attend(type, IntStream.range(0, sequences.size()).boxed().toList(), longest(), 1);
        }

        int longest() {
            return sequences.stream().mapToInt(Sequence::end).max().orElseThrow();
        }

        private static int[] ints(List<Integer> numbers) {
            return numbers.stream().mapToInt(Integer::intValue).toArray();
        }

        /** Offset in the pool of an element of a position's key and value. */
        long place(int sequence, int position, int kvHead, int element) {
            return tables.get(sequence)[position / shape.blockSize] * layout.blockBytes()
                    + layout.entryOffset(LAYER, kvHead, position % shape.blockSize)
                    + (long) element * shape.cache.bytes();
        }

        private double entry(int sequence, int position, int kvHead, int element) {
            return shape.cache.get(pool, place(sequence, position, kvHead, element));
        }

        double[] expected(int sequence, int row, int firstRow, int head) {
            int kvHead = head / (shape.heads / shape.kvHeads);
            int position = sequences.get(sequence).start + row;
            int first = Math.max(0, position - Math.min(position, scores.reach - 1));
            double[] products = new double[position + 1];
            double sink = scores.sinks ? sinks[head] : Double.NEGATIVE_INFINITY;
            double largest = sink;
            int query = ((firstRow + row) * shape.heads + head) * shape.headDim;
            for (int other = first; other <= position; other++) {
                for (int d = 0; d < shape.headDim; d++) {
                    products[other] += queries[query + d] * shape.scale() * entry(sequence, other, kvHead, d);
                }
                if (scores.cap != 0) {
                    products[other] = scores.cap * Math.tanh(products[other] / scores.cap);
                }
                largest = Math.max(largest, products[other]);
            }
            double sum = Math.exp(sink - largest);
            double[] attended = new double[shape.headDim];
            for (int other = first; other <= position; other++) {
                double weight = Math.exp(products[other] - largest);
                sum += weight;
                for (int d = 0; d < shape.headDim; d++) {
                    attended[d] += weight * entry(sequence, other, kvHead, layout.valueOffset() + d);
                }
            }
            for (int d = 0; d < shape.headDim; d++) {
                attended[d] /= sum;
            }
            return attended;
        }

        void assertEqualsFp64(float[] attended, double tolerance) {
            int firstRow = 0;
            for (int sequence = 0; sequence < sequences.size(); sequence++) {
                for (int row = 0; row < sequences.get(sequence).rows; row++) {
                    for (int head = 0; head < shape.heads; head++) {
                        double[] expected = expected(sequence, row, firstRow, head);
                        int start = ((firstRow + row) * shape.heads + head) * shape.headDim;
                        for (int d = 0; d < shape.headDim; d++) {
                            assertThat((double) attended[start + d])
                                    .as("%s row %d head %d element %d", sequences.get(sequence), row, head, d)
                                    .isCloseTo(expected[d], within(tolerance));
                        }
                    }
                }
                firstRow += sequences.get(sequence).rows;
            }
        }

        /** Asserts equality to the bit. */
        void assertAloneIsTheSame(float[] attended, int sequence, int maxContext, int maxRows) {
            float[] alone = attend(DType.F32, List.of(sequence), maxContext, maxRows);
            int width = shape.heads * shape.headDim;
            int first = sequences.subList(0, sequence).stream()
                            .mapToInt(Sequence::rows)
                            .sum()
                    * width;
            int end = first + sequences.get(sequence).rows * width;
            assertThat(Arrays.copyOfRange(alone, first, end))
                    .as("sequence %d alone", sequence)
                    .isEqualTo(Arrays.copyOfRange(attended, first, end));
        }

        @Override
        public void close() {
            few.close();
            many.close();
            device.close();
            arena.close();
        }
    }

    /** Single rows, a few rows behind others, contexts of several pieces. */
    @ParameterizedTest
    @CsvSource({
        "BF16, BF16, 4, 2, 64, 16, 0, 0, false",
        "BF16, BF16, 4, 4, 24, 5, 37, 0, true",
        "F16, F16, 5, 1, 96, 48, 0, 2.5, false",
        "F32, F32, 6, 2, 8, 3, 300, 0, true",
        "F32, F8_E4M3, 8, 1, 16, 16, 0, 50, true",
        "BF16, F8_E4M3, 2, 1, 32, 16, 100, 0, false",
        "F32, BF16, 2, 1, 256, 32, 0, 0, false",
        "F32, F16, 17, 1, 16, 16, 0, 0, false",
        "BF16, F32, 16, 1, 128, 16, 20, 0, false"
    })
    void fewRows(
            DType computed,
            DType cache,
            int heads,
            int kvHeads,
            int headDim,
            int blockSize,
            int reach,
            float cap,
            boolean sinks) {
        Shape shape = new Shape(computed, cache, heads, kvHeads, headDim, blockSize);
        Scores scores = new Scores(reach == 0 ? EVERYTHING : reach, cap, sinks);
        List<Sequence> sequences =
                List.of(new Sequence(1, 0), new Sequence(1, 390), new Sequence(3, 40), new Sequence(2, 126));
        try (Case attention = new Case(shape, scores, sequences)) {
            float[] attended = attention.attend(DType.F32);
            // Capped scores are rounded like numbers of the cap's size.
            attention.assertEqualsFp64(attended, 4e-6 + cap * Math.ulp(1f));
            attention.assertAloneIsTheSame(attended, 1, attention.longest() + 1000, 1);
            // One piece, which needs no second kernel.
            attention.assertAloneIsTheSame(attended, 3, RowAttention.PIECE, 1);
            if (computed == DType.F32 || cache == DType.F32) {
                // Blocks of threads that compute all pieces of a row.
                attention.assertAloneIsTheSame(attended, 1, attention.longest(), AttentionOps.FEW_ROWS + 1);
            }
            if (computed != DType.F32 && headDim <= 64) {
                float[] narrow = attention.attend(computed);
                for (int i = 0; i < narrow.length; i++) {
                    assertThat(narrow[i]).as("element %d, rounded", i).isEqualTo(rounded(computed, attended[i]));
                }
            }
        }
    }

    private static float rounded(DType type, float number) {
        MemorySegment element = MemorySegment.ofArray(new int[1]);
        type.set(element, 0, number);
        return type.get(element, 0);
    }

    /** A prompt's first chunk, chunks behind a cache, and single rows beside them. */
    @ParameterizedTest
    @CsvSource({
        "BF16, BF16, 4, 2, 64, 16, 0, 0, false",
        "F16, F16, 4, 4, 24, 5, 37, 0, true",
        "BF16, BF16, 3, 1, 40, 48, 0, 2.5, false",
        "BF16, F8_E4M3, 2, 1, 32, 16, 20, 50, true",
        "F16, F8_E4M3, 2, 2, 8, 3, 0, 0, false",
        "BF16, BF16, 2, 1, 256, 32, 100, 0, false",
        "F16, F16, 8, 1, 128, 16, 0, 0, true",
        "F32, F32, 4, 2, 16, 16, 30, 0, true"
    })
    void chunks(
            DType computed,
            DType cache,
            int heads,
            int kvHeads,
            int headDim,
            int blockSize,
            int reach,
            float cap,
            boolean sinks) {
        Shape shape = new Shape(computed, cache, heads, kvHeads, headDim, blockSize);
        Scores scores = new Scores(reach == 0 ? EVERYTHING : reach, cap, sinks);
        List<Sequence> sequences =
                List.of(new Sequence(1, 70), new Sequence(37, 0), new Sequence(5, 130), new Sequence(20, 60));
        try (Case attention = new Case(shape, scores, sequences)) {
            float[] attended = attention.attend(DType.F32);
            attention.assertEqualsFp64(attended, tolerance(computed) + cap * Math.ulp(1f));
            attention.assertAloneIsTheSame(attended, 0, attention.longest(), 1);
            // Larger tiles of queries, where the device has enough to do.
            attention.attention = attention.many;
            attention.assertAloneIsTheSame(attended, 3, attention.longest() + 1000, 100);
        }
    }

    /** Each weight is rounded to 16 bits; values are below 1. */
    private static double tolerance(DType computed) {
        return switch (computed) {
            case BF16 -> 1.0 / 256;
            case F16 -> 1.0 / 2048;
            default -> 4e-6;
        };
    }

    /** Blocks have the content of an earlier request, and those before a window are replaced. */
    @ParameterizedTest
    @CsvSource({"BF16, 1, 300", "BF16, 40, 90", "F32, 7, 90"})
    void entriesOutsideTheWindowAreNotUsedEvenIfTheyAreNoNumbers(DType computed, int rows, int start) {
        Shape shape = new Shape(computed, computed, 4, 2, 32, 16);
        int reach = 40;
        try (Case attention = new Case(shape, new Scores(reach, 0, false), List.of(new Sequence(rows, start)))) {
            float[] before = attention.attend(DType.F32);
            int first = start + 1 - reach;
            int end = start + rows;
            int positions = attention.tables.getFirst().length * shape.blockSize;
            for (int position = 0; position < positions; position++) {
                for (int i = 0; (position < first || position >= end) && i < 4 * shape.headDim; i++) {
                    int element = i % (2 * shape.headDim);
                    computed.set(
                            attention.pool, attention.place(0, position, i / (2 * shape.headDim), element), Float.NaN);
                }
            }
            // An index that is no block: it is not read.
            for (int i = 0; i < first / shape.blockSize; i++) {
                attention.tables.getFirst()[i] = 1 << 20;
            }
            assertThat(attention.attend(DType.F32)).isEqualTo(before);
        }
    }

    @ParameterizedTest
    @CsvSource({"BF16, 1", "BF16, 9", "F32, 9"})
    void aRowIsNoNumberIfItsQueryOrAKeyIsNone(DType computed, int rows) {
        Shape shape = new Shape(computed, computed, 2, 1, 16, 16);
        try (Case attention = new Case(shape, new Scores(EVERYTHING, 0, false), List.of(new Sequence(rows, 50)))) {
            attention.queries[3] = Float.NaN;
            float[] attended = attention.attend(DType.F32);
            for (int i = 0; i < attended.length; i++) {
                assertThat(Float.isNaN(attended[i])).as("element %d", i).isEqualTo(i < shape.headDim);
            }
            attention.queries[3] = 1;
            computed.set(attention.pool, attention.place(0, 17, 0, 5), Float.NaN);
            assertThat(attention.attend(DType.F32)).containsOnly(Float.NaN);
        }
    }

    /** Entries that are key and value, with the number of elements of DeepSeek-V3's, and of small models'. */
    @ParameterizedTest
    @CsvSource({
        "BF16, BF16, 4, 576, 16",
        "F32, F32, 6, 40, 5",
        "BF16, BF16, 6, 40, 5",
        "F16, F8_E4M3, 3, 96, 16",
        "F16, F16, 2, 272, 16",
        "BF16, BF16, 2, 264, 16"
    })
    void latentEntries(DType computed, DType cache, int heads, int headDim, int blockSize) {
        Shape shape = new Shape(computed, cache, heads, 1, headDim, blockSize, true);
        List<Sequence> sequences = List.of(new Sequence(1, 0), new Sequence(1, 140), new Sequence(7, 40));
        try (Case attention = new Case(shape, new Scores(EVERYTHING, 0, false), sequences)) {
            float[] attended = attention.attend(DType.F32);
            // Of elements that no part of a tile ends with, rows are computed in fp32.
            attention.assertEqualsFp64(attended, headDim == 264 ? 2e-5 : tolerance(computed));
            attention.assertAloneIsTheSame(attended, 1, attention.longest() + 1000, 1);
            attention.attention = attention.many;
            attention.assertAloneIsTheSame(attended, 2, attention.longest() + 1000, 100);
        }
    }

    /** Keys and values with more elements than one block of threads sums up. */
    @Test
    void wideHeads() {
        Shape shape = new Shape(DType.BF16, DType.BF16, 2, 2, 320, 16);
        try (Case attention = new Case(shape, new Scores(20, 0, true), List.of(new Sequence(9, 25)))) {
            attention.assertEqualsFp64(attention.attend(DType.F32), tolerance(DType.BF16));
        }
    }

    @Test
    void entriesAreSavedInTheirSlots() {
        try (TestDevice device = new TestDevice();
                Functions functions = new Functions(device.gpu(), CacheOps.kernels(DType.BF16))) {
            for (DType from : List.of(DType.BF16, DType.F32)) {
                for (DType to : DType.values()) {
                    saves(device, new CacheOps(functions), from, to);
                }
            }
        }
    }

    private static void saves(TestDevice device, CacheOps kernels, DType from, DType to) {
        KvLayout layout = new KvLayout(LAYERS, 3, 8, 5, to);
        KvCache cache = cache(
                device,
                layout,
                4,
                Arena.ofAuto().allocate(4 * layout.blockBytes(), 16).fill((byte) 0x11));
        int[] blocks = {2, 1, 3, 0, 1};
        int[] slots = {4, 0, 2, -1, 3};
        long[] offsets = new long[blocks.length];
        Arrays.setAll(
                offsets,
                i -> slots[i] < 0
                        ? CacheOps.NO_SLOT
                        : blocks[i] * layout.blockBytes() + slots[i] * layout.entryBytes());
        float[] numbers = TestDevice.numbers(new Random(SEED), from, blocks.length * 3 * 16);
        numbers[0] = 1000;
        kernels.save(
                device.stream(), device.put(from, blocks.length, 3, 16, numbers), device.put(offsets), cache, LAYER);
        MemorySegment saved =
                device.get(cache.memory().address(), cache.memory().bytes());
        MemorySegment expected = Arena.ofAuto().allocate(saved.byteSize(), 16).fill((byte) 0x11);
        for (int row = 0; row < blocks.length; row++) {
            for (int i = 0; slots[row] >= 0 && i < 3 * 16; i++) {
                long at = blocks[row] * layout.blockBytes() + layout.entryOffset(LAYER, i / 16, slots[row]);
                to.set(expected, at + (long) (i % 16) * to.bytes(), rounded(from, numbers[row * 48 + i]));
            }
        }
        assertThat(saved.mismatch(expected)).as("%s to %s", from, to).isEqualTo(-1);
    }
}
