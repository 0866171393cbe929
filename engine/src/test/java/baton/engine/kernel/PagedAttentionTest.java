package baton.engine.kernel;

import static baton.engine.kernel.TestKernels.FLOAT;
import static baton.engine.kernel.TestKernels.TWO_THREADS;
import static baton.engine.kernel.TestKernels.floats;
import static baton.engine.kernel.TestKernels.numbers;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.PagedAttention.Span;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.memory.Assembler.Width;
import baton.memory.Processor;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Attention over blocks in any order equals softmax(q k / sqrt(D)) v in fp64. */
// The longest classes of the module begin first, so that others run beside them.
@Order(1)
class PagedAttentionTest {
    private static final long SEED = Long.getLong("tests.seed", 11);
    private static final int BLOCKS = 100;
    private static final int LAYERS = 2;
    private static final int LAYER = 1;
    private static final AttentionScores PLAIN_64 = new AttentionScores(1 / Math.sqrt(64));
    private static final AttentionScores PLAIN_256 = new AttentionScores(1 / Math.sqrt(256));

    @ParameterizedTest(name = "{0}, {1}, {2} heads, {3} key/value heads of {4}, blocks of {5}, window {6}")
    @CsvSource({
        "YMM, BF16, 8, 2, 64, 16, 100000",
        "YMM, F32, 6, 2, 24, 5, 100000",
        "YMM, F32, 6, 2, 24, 5, 37",
        "YMM, F16, 8, 2, 64, 16, 100000",
        "YMM, F8_E4M3, 8, 2, 64, 16, 100000",
        "YMM, F8_E4M3, 6, 2, 24, 5, 37",
        "YMM, F16, 6, 2, 24, 5, 37",
        "YMM, BF16, 4, 4, 16, 16, 20",
        "YMM, BF16, 32, 1, 16, 16, 100000",
        "YMM, BF16, 17, 1, 16, 16, 100000",
        "ZMM, BF16, 8, 2, 64, 16, 100000",
        "ZMM, F32, 14, 2, 128, 32, 100000",
        "ZMM, F16, 14, 2, 128, 32, 100000",
        "ZMM, F8_E4M3, 14, 2, 128, 32, 100000",
        "ZMM, F8_E4M3, 5, 5, 24, 3, 37",
        "ZMM, F16, 5, 5, 24, 3, 37",
        "ZMM, BF16, 5, 5, 24, 3, 37",
        "ZMM, BF16, 64, 1, 16, 16, 100000",
        "ZMM, BF16, 33, 1, 16, 16, 100000",
        "YMM, F32, 6, 2, 32, 16, 100000",
        "ZMM, BF16, 8, 2, 64, 16, 37",
        "PAIRS, BF16, 8, 2, 64, 16, 100000",
        "PAIRS, BF16, 8, 2, 64, 16, 37",
        "PAIRS, BF16, 8, 2, 64, 16, 300",
        "PAIRS, BF16, 5, 5, 32, 32, 100000",
        "PAIRS, BF16, 28, 4, 128, 16, 100000",
        "PAIRS, BF16, 64, 1, 32, 16, 100000",
        "PAIRS, BF16, 35, 1, 32, 16, 100000",
        "PAIRS, BF16, 32, 2, 96, 32, 100000",
        "PAIRS, BF16, 6, 3, 160, 48, 200",
        "PAIRS, BF16, 2, 2, 256, 128, 100000",
        "PAIRS, BF16, 6, 2, 112, 16, 100000",
        "PAIRS, BF16, 5, 5, 24, 3, 37",
        "PAIRS, F16, 8, 2, 64, 16, 100000",
        "AMX, BF16, 8, 2, 64, 16, 100000",
        "AMX, BF16, 8, 2, 64, 16, 37",
        "AMX, BF16, 8, 2, 64, 16, 300",
        "AMX, BF16, 5, 5, 32, 32, 100000",
        "AMX, BF16, 28, 4, 128, 16, 100000",
        "AMX, BF16, 64, 1, 32, 16, 100000",
        "AMX, BF16, 35, 1, 32, 16, 100000",
        "AMX, BF16, 32, 2, 96, 32, 100000",
        "AMX, BF16, 6, 1, 64, 16, 100000",
        "AMX, BF16, 5, 5, 24, 3, 37",
        "AMX, F32, 8, 2, 64, 16, 100000",
        "AMX, F8_E4M3, 8, 2, 64, 16, 100000",
        "AMX, F16, 8, 2, 64, 16, 100000"
    })
    void attentionEqualsThatInFp64(
            String kind, DType dtype, int heads, int kvHeads, int headDim, int blockSize, int window) {
        Random random = new Random(SEED);
        float[][] sinks = new float[LAYERS][];
        Arrays.setAll(sinks, _ -> numbers(random, heads));
        double scale = 1 / Math.sqrt(headDim);
        List<AttentionScores> all = List.of(
                new AttentionScores(scale),
                new AttentionScores(scale, Optional.of(2.5), List.of()),
                new AttentionScores(scale, Optional.of(50.0), List.of(sinks)));
        attentionEqualsThatInFp64(kind, new KvLayout(LAYERS, kvHeads, headDim, blockSize, dtype), heads, window, all);
    }

    /** Entries that are key and value. */
    @ParameterizedTest
    @CsvSource({"YMM, F32, 6, 48, 5", "ZMM, F16, 2, 576, 16", "PAIRS, BF16, 2, 320, 16", "AMX, BF16, 2, 320, 16"})
    void latentAttentionEqualsThatInFp64(String kind, DType dtype, int heads, int headDim, int blockSize) {
        KvLayout layout = new KvLayout(LAYERS, 1, headDim, blockSize, dtype, true);
        List<AttentionScores> all = List.of(new AttentionScores(1 / Math.sqrt(headDim)));
        attentionEqualsThatInFp64(kind, layout, heads, 100_000, all);
    }

    /** @param all kinds of scores, of the same queries, keys and values */
    private static void attentionEqualsThatInFp64(
            String kind, KvLayout layout, int heads, int window, List<AttentionScores> all) {
        Kernels kernels = TestKernels.named(kind, WeightType.FP32);
        Random random = new Random(SEED);
        int headDim = layout.headDim();
        int blockSize = layout.blockSize();
        int group = heads / layout.kvHeads();
        // More than the positions below need, so that tables differ; large blocks take long to fill.
        int blocks = Math.min(BLOCKS, BLOCKS * 16 / blockSize);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment pool = arena.allocate(blocks * layout.blockBytes(), 64);
            KvCache cache = new KvCache(pool, layout, blocks, List.of("0", "1"));
            fill(cache, random);
            // Single tokens, a prompt's first chunk, a later one, few rows behind many positions.
            List<Span> spans = List.of(
                    new Span(0, 1, 0, blocks(blocks, random)),
                    new Span(1, 1, 2 * blockSize + 1, blocks(blocks, random)),
                    new Span(2, 70, 0, blocks(blocks, random)),
                    new Span(72, 41, Math.min(695, blocks * blockSize / 2 + 2), blocks(blocks, random)),
                    new Span(113, 3, Math.min(150, blocks * blockSize / 2), blocks(blocks, random)));
            int rows = 116;
            int width = heads * headDim + 16;
            float[] queries = numbers(random, rows * width);
            boolean inBf16 = PagedAttention.suitsPairs(kernels, layout);
            Rows queryRows = TestKernels.rows(floats(arena, queries), width);
            List<float[]> attended = new ArrayList<>();
            for (AttentionScores scores : all) {
                Rows out = TestKernels.rows(floats(arena, new float[queries.length]), width);
                PagedAttention attention = new PagedAttention(kernels, TWO_THREADS, cache, heads, scores, arena);
                attention.attend(LAYER, spans, window, queryRows, out);
                attended.add(TestKernels.elements(out));
                assertRowsAloneAreTheSame(attention, spans, window, queryRows, out);
                if (kernels.width() == Width.ZMM && Processor.current().has("avx512_bf16")) {
                    Rows narrow = TestKernels.narrowRows(arena, new float[rows * (width + 16)], width + 16);
                    attention.attend(LAYER, spans, window, queryRows, narrow);
                    assertRounded(TestKernels.elements(narrow), attended.getLast(), width);
                }
                attention.close();
            }
            for (Span span : spans) {
                for (int kvHead = 0; kvHead < layout.kvHeads(); kvHead++) {
                    double[][] entries = entries(cache, span, kvHead);
                    for (int i = 0; i < span.count() * group; i++) {
                        int row = span.row() + i / group;
                        int head = kvHead * group + i % group;
                        int start = row * width + head * headDim;
                        int position = span.position() + i / group;
                        double[] products =
                                products(layout, entries, position, scaled(queries, start, headDim, inBf16), window);
                        for (int which = 0; which < all.size(); which++) {
                            AttentionScores scores = all.get(which);
                            // Each weight is rounded to bf16, with a relative error below 2^-9; values are below 2.
                            // Capped scores are rounded like numbers of the cap's size.
                            double tolerance = (inBf16 ? 2.0 / 512 + 2e-6 : 2e-6)
                                    + scores.cap().orElse(0.0) * Math.ulp(1f);
                            double[] expected = attend(layout, entries, position, products, window, scores, head);
                            for (int d = 0; d < headDim; d++) {
                                double actual = attended.get(which)[start + d];
                                // An assertion takes longer than the arithmetic.
                                if (!(Math.abs(actual - expected[d]) <= tolerance)) {
                                    assertThat(actual)
                                            .as(
                                                    "%s row %d head %d element %d of %s, seed %d",
                                                    span, row, head, d, scores, SEED)
                                            .isCloseTo(expected[d], within(tolerance));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /** @param narrow rows of 16 elements more */
    private static void assertRounded(float[] narrow, float[] attended, int width) {
        for (int i = 0; i < attended.length; i++) {
            float actual = narrow[i / width * (width + 16) + i % width];
            float expected = TestKernels.bf16(attended[i]);
            if (actual != expected) {
                assertThat(actual)
                        .as("element %d of row %d in bf16", i % width, i / width)
                        .isEqualTo(expected);
            }
        }
    }

    /** Single rows prefetch the next keys and values: of their own context or, if that is short, of the next head or the next row. */
    @ParameterizedTest
    @CsvSource({"ZMM, 100000", "PAIRS, 100000", "PAIRS, 300", "AMX, 100000", "AMX, 300"})
    void longAndShortContextsSideBySide(String kind, int window) {
        Kernels kernels = TestKernels.named(kind, WeightType.FP32);
        Random random = new Random(SEED);
        KvLayout layout = new KvLayout(LAYERS, 2, 256, 16, DType.BF16);
        int blocks = 100;
        int heads = 6;
        long stride = heads * 256L;
        List<Integer> positions = List.of(3, 1500, 40, 1599, 1024, 0);
        try (Arena arena = Arena.ofShared()) {
            KvCache cache =
                    new KvCache(arena.allocate(blocks * layout.blockBytes(), 64), layout, blocks, List.of("0", "1"));
            fill(cache, random);
            List<Span> spans = new ArrayList<>();
            for (int position : positions) {
                int[] table = IntStream.range(0, position / 16 + 1)
                        .map(_ -> random.nextInt(blocks))
                        .toArray();
                spans.add(new Span(spans.size(), 1, position, table));
            }
            float[] queries = numbers(random, Math.toIntExact(spans.size() * stride));
            boolean inBf16 = PagedAttention.suitsPairs(kernels, layout);
            Rows attended = TestKernels.rows(floats(arena, new float[queries.length]), stride);
            PagedAttention attention = new PagedAttention(kernels, TWO_THREADS, cache, heads, PLAIN_256, arena);
            attention.attend(LAYER, spans, window, TestKernels.rows(floats(arena, queries), stride), attended);
            attention.close();
            for (Span span : spans) {
                double[][] entries = {};
                for (int head = 0; head < heads; head++) {
                    entries = head % 3 == 0 ? entries(cache, span, head / 3) : entries;
                    int start = Math.toIntExact(span.row() * stride) + head * 256;
                    double[] query = scaled(queries, start, 256, inBf16);
                    double[] products = products(layout, entries, span.position(), query, window);
                    double[] expected = attend(layout, entries, span.position(), products, window, PLAIN_256, head);
                    for (int d = 0; d < 256; d++) {
                        assertThat((double) TestKernels.element(attended, start + d))
                                .as("%s head %d element %d", span, head, d)
                                .isCloseTo(expected[d], within(inBf16 ? 2.0 / 512 + 2e-6 : 2e-6));
                    }
                }
            }
        }
    }

    /** In a chunk too, where rows behind it attend to values that are not zero. */
    @ParameterizedTest
    @CsvSource({"YMM", "ZMM", "PAIRS", "AMX"})
    void aRowThatAttendsToZerosGetsZeros(String kind) {
        Kernels kernels = TestKernels.named(kind, WeightType.FP32);
        KvLayout layout = new KvLayout(LAYERS, 2, 64, 16, DType.BF16);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment pool = arena.allocate(BLOCKS * layout.blockBytes(), 64);
            KvCache cache = new KvCache(pool, layout, BLOCKS, List.of("0", "1"));
            fill(cache, new Random(SEED));
            for (int head = 0; head < 2; head++) {
                long value = cache.layerStart(0, LAYER) + head * layout.headBytes() + layout.entryBytes() / 2;
                pool.asSlice(value, layout.entryBytes() / 2).fill((byte) 0);
            }
            int rows = 70;
            int width = 8 * 64;
            MemorySegment queries = floats(arena, numbers(new Random(SEED), rows * width));
            MemorySegment attended = floats(arena, new float[rows * width]);
            PagedAttention attention = new PagedAttention(kernels, TWO_THREADS, cache, 8, PLAIN_64, arena);
            Span span = new Span(0, rows, 0, IntStream.range(0, BLOCKS).toArray());
            attention.attend(
                    LAYER, List.of(span), 100_000, TestKernels.rows(queries, width), TestKernels.rows(attended, width));
            attention.close();
            for (int i = 0; i < width; i++) {
                assertThat(attended.getAtIndex(FLOAT, i)).as("element %d", i).isZero();
                assertThat(attended.getAtIndex(FLOAT, width + i)).isNotZero();
            }
        }
    }

    /** Blocks have the content of an earlier request. */
    @ParameterizedTest(name = "{0}, {1} rows from position {2} on")
    @CsvSource({
        "YMM, 1, 37",
        "YMM, 70, 0",
        "ZMM, 1, 37",
        "ZMM, 3, 9",
        "ZMM, 70, 0",
        "PAIRS, 1, 37",
        "PAIRS, 1, 16",
        "PAIRS, 3, 9",
        "PAIRS, 70, 0",
        "AMX, 1, 37",
        "AMX, 1, 17",
        "AMX, 3, 9",
        "AMX, 70, 0"
    })
    void entriesBehindTheContextAreNotUsedEvenIfTheyAreNoNumbers(String kind, int rows, int position) {
        Kernels kernels = TestKernels.named(kind, WeightType.FP32);
        KvLayout layout = new KvLayout(LAYERS, 2, 64, 16, DType.BF16);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment pool = arena.allocate(BLOCKS * layout.blockBytes(), 64);
            KvCache cache = new KvCache(pool, layout, BLOCKS, List.of("0", "1"));
            fill(cache, new Random(SEED));
            int heads = 8;
            long stride = heads * 64L;
            Rows queries = TestKernels.rows(floats(arena, numbers(new Random(SEED), rows * heads * 64)), stride);
            Span span = new Span(0, rows, position, IntStream.range(0, BLOCKS).toArray());
            PagedAttention attention = new PagedAttention(kernels, TWO_THREADS, cache, heads, PLAIN_64, arena);
            MemorySegment before = floats(arena, new float[rows * heads * 64]);
            attention.attend(LAYER, List.of(span), 100_000, queries, TestKernels.rows(before, stride));
            for (int behind = span.end(); behind < BLOCKS * 16; behind++) {
                for (int head = 0; head < 2; head++) {
                    long at = cache.layerStart(behind / 16, LAYER)
                            + head * layout.headBytes()
                            + (long) (behind % 16) * layout.entryBytes();
                    for (long i = 0; i < layout.entryBytes(); i += Short.BYTES) {
                        pool.set(ValueLayout.JAVA_SHORT, at + i, (short) 0x7fc0);
                    }
                }
            }
            MemorySegment after = floats(arena, new float[rows * heads * 64]);
            // Twice: working memory has been used by then.
            for (int time = 0; time < 2; time++) {
                attention.attend(LAYER, List.of(span), 100_000, queries, TestKernels.rows(after, stride));
                assertThat(after.mismatch(before)).as("byte that differs").isEqualTo(-1);
            }
            attention.close();
        }
    }

    private static void assertRowsAloneAreTheSame(
            PagedAttention attention, List<Span> spans, int window, Rows queries, Rows attended) {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment alone = arena.allocate(attended.memory().byteSize(), 64);
            for (Span span : spans) {
                for (int i = 0; i < span.count(); i++) {
                    Span row = new Span(span.row() + i, 1, span.position() + i, span.blockTable());
                    attention.attend(
                            LAYER, List.of(row), window, queries, new Rows(alone, attended.stride(), attended.type()));
                }
            }
            assertThat(alone.mismatch(attended.memory()))
                    .as("byte where rows alone differ")
                    .isEqualTo(-1);
        }
    }

    private static int[] blocks(int count, Random random) {
        int[] blocks = IntStream.range(0, count).toArray();
        for (int i = blocks.length - 1; i > 0; i--) {
            int other = random.nextInt(i + 1);
            int block = blocks[i];
            blocks[i] = blocks[other];
            blocks[other] = block;
        }
        return blocks;
    }

    private static void fill(KvCache cache, Random random) {
        DType dtype = cache.layout().dtype();
        for (long at = 0; at < cache.host().byteSize(); at += dtype.bytes()) {
            float value = 4 * random.nextFloat() - 2;
            dtype.set(cache.host(), at, value);
        }
    }

    /** A query divided by sqrt(D), {@code inBf16} if it is rounded when it has been multiplied with the factor of scores. */
    private static double[] scaled(float[] queries, int start, int headDim, boolean inBf16) {
        double[] scaled = new double[headDim];
        for (int d = 0; d < headDim; d++) {
            scaled[d] = inBf16
                    ? TestKernels.bf16(queries[start + d] * new AttentionScores(1 / Math.sqrt(headDim)).factor())
                            * Math.log(2)
                    : queries[start + d] / Math.sqrt(headDim);
        }
        return scaled;
    }

    /** Of the query and the keys that the window reaches. */
    private static double[] products(KvLayout layout, double[][] entries, int position, double[] query, int window) {
        double[] products = new double[position + 1];
        for (int other = Math.max(0, position + 1 - window); other <= position; other++) {
            double[] key = entries[other];
            double product = 0;
            for (int d = 0; d < layout.headDim(); d++) {
                product += query[d] * key[d];
            }
            products[other] = product;
        }
        return products;
    }

    private static double[] attend(
            KvLayout layout,
            double[][] entries,
            int position,
            double[] products,
            int window,
            AttentionScores attentionScores,
            int head) {
        int first = Math.max(0, position + 1 - window);
        double[] scores = products.clone();
        double sink = attentionScores.hasSinks() ? attentionScores.sinks().get(LAYER)[head] : Double.NEGATIVE_INFINITY;
        double largest = sink;
        for (int other = first; other <= position; other++) {
            if (attentionScores.cap().isPresent()) {
                double cap = attentionScores.cap().get();
                scores[other] = cap * Math.tanh(scores[other] / cap);
            }
            largest = Math.max(largest, scores[other]);
        }
        double sum = Math.exp(sink - largest);
        double[] attended = new double[layout.headDim()];
        int values = layout.valueOffset();
        for (int other = first; other <= position; other++) {
            double weight = Math.exp(scores[other] - largest);
            double[] entry = entries[other];
            sum += weight;
            for (int d = 0; d < attended.length; d++) {
                attended[d] += weight * entry[values + d];
            }
        }
        for (int d = 0; d < attended.length; d++) {
            attended[d] /= sum;
        }
        return attended;
    }

    /** The elements of each position's entry in one head. */
    private static double[][] entries(KvCache cache, Span span, int kvHead) {
        KvLayout layout = cache.layout();
        double[][] entries = new double[span.position() + span.count()][];
        for (int position = 0; position < entries.length; position++) {
            int block = span.blockTable()[position / layout.blockSize()];
            long at = cache.layerStart(block, LAYER)
                    + kvHead * layout.headBytes()
                    + position % layout.blockSize() * layout.entryBytes();
            double[] entry = new double[layout.entryElements()];
            for (int element = 0; element < entry.length; element++) {
                entry[element] = layout.dtype()
                        .get(cache.host(), at + (long) element * layout.dtype().bytes());
            }
            entries[position] = entry;
        }
        return entries;
    }
}
