package baton.engine.kernel;

import baton.engine.kernel.PagedAttention.Span;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Compares kernels with plain Java on a few small inputs, before anything is computed with them. All inputs repeat a few numbers that every
 * type holds exactly, and only some of the results are computed a second time, so that a check takes milliseconds. Used by one thread.
 */
record KernelCheck(Kernels kernels, boolean bf16, Arena arena) {
    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;

    /** Numbers of an input, before they repeat. */
    private static final int PERIOD = 61;

    private static final float[] NUMBERS = make();

    /** More than are multiplied at a time, so that products of many rows go on from sums. */
    private static final int INPUTS = PanelMatrix.EXPANDED_INPUTS + PanelMatrix.PAIRED_INPUTS;

    private static final float SCALE = 0.25f;
    private static final float BIAS = 3;

    /** Number of rows for each way that products are computed. */
    private static final int[] ROWS = {1, 20, 141};

    private static final int HEAD_DIM = 64;
    private static final int POSITIONS = 144;
    private static final int BLOCK_SIZE = 16;
    private static final int WINDOW = 24;
    private static final float SINK = 1.5f;
    private static final List<AttentionScores> SCORES = List.of(
            new AttentionScores(0.125), new AttentionScores(0.125, Optional.of(0.5), List.of(new float[] {0, SINK})));
    private static final double TOLERANCE = 0.02;

    /**
     * The first of the computations that is wrong, and how; empty: all are right.
     *
     * @param bf16 whether the processor has AVX512_BF16
     */
    static Optional<String> check(Kernels kernels, boolean bf16) {
        try (Arena arena = Arena.ofConfined()) {
            KernelCheck check = new KernelCheck(kernels, bf16 && kernels.width() == Width.ZMM, arena);
            for (WeightType type : WeightType.values()) {
                if (!type.inPairs() || check.bf16) {
                    check.products(type);
                }
            }
            check.rows();
            for (AttentionScores scores : SCORES) {
                for (DType type : DType.values()) {
                    check.attention(type, scores);
                }
            }
            return Optional.empty();
        } catch (RuntimeException e) {
            // A search among wrong numbers may leave its memory.
            return Optional.of(String.valueOf(e.getMessage()));
        }
    }

    private static void expect(String computation, double actual, double expected) {
        if (!(Math.abs(actual - expected) <= TOLERANCE * (1 + Math.abs(expected)))) {
            throw new IllegalStateException("%s: is %s, must be %s".formatted(computation, actual, expected));
        }
    }

    private static float[] make() {
        float[] numbers = new float[PERIOD];
        for (int i = 0; i < PERIOD; i++) {
            numbers[i] = (i * 7 % 13 - 6) / 8f;
        }
        return numbers;
    }

    private static float number(long index) {
        return NUMBERS[(int) (index % PERIOD)];
    }

    /** Memory of as many elements, which are the numbers over and over. */
    private MemorySegment numbers(DType type, long count) {
        MemorySegment memory = arena.allocate(count * type.bytes(), 64);
        for (int i = 0; i < PERIOD; i++) {
            type.set(memory, (long) i * type.bytes(), number(i));
        }
        repeat(memory, (long) PERIOD * type.bytes());
        return memory;
    }

    private static void repeat(MemorySegment memory, long filled) {
        for (long done = filled; done < memory.byteSize(); done *= 2) {
            MemorySegment.copy(memory, 0, memory, done, Math.min(done, memory.byteSize() - done));
        }
    }

    private MemorySegment filled(int count, float value) {
        MemorySegment memory = arena.allocate((long) count * Float.BYTES, 64);
        for (int i = 0; i < count; i++) {
            memory.setAtIndex(FLOAT, i, value);
        }
        return memory;
    }

    private static Rows rows(MemorySegment memory, DType type, int columns) {
        return new Rows(memory, (long) columns * type.bytes(), type);
    }

    private static double element(Rows rows, int row, int column) {
        long at = row * rows.stride() + (long) column * rows.type().bytes();
        return rows.type().get(rows.memory(), at);
    }

    private void products(WeightType type) {
        int width = kernels.panelWidth();
        int outputs = 4 * width + 3;
        DType rowType = type.inPairs() ? DType.BF16 : DType.F32;
        PanelMatrix.Scratch scratch = new PanelMatrix.Scratch(kernels, 1, arena);
        long elements = (long) Math.ceilDiv(outputs, width) * width * INPUTS;
        MemorySegment panels = switch (type) {
            case FP32 -> numbers(DType.F32, elements);
            case FP16 -> numbers(DType.F16, elements);
            case BF16, BF16_PAIRS -> numbers(DType.BF16, elements);
            case INT8, INT8_PAIRS -> bytes(elements);
            case MXFP4_PAIRS -> mxfp4(elements);
        };
        PanelMatrix matrix = new PanelMatrix(
                kernels,
                ParallelFor.alone(),
                scratch,
                new PanelMatrix.Weights(
                        type,
                        panels,
                        type.hasScales() ? filled(5 * width, SCALE) : MemorySegment.NULL,
                        filled(5 * width, BIAS),
                        outputs,
                        INPUTS));
        Rows from = rows(numbers(rowType, (long) ROWS[2] * INPUTS), rowType, INPUTS);
        Rows to = rows(arena.allocate((long) ROWS[2] * outputs * Float.BYTES, 64), DType.F32, outputs);
        for (int count : ROWS) {
            to.memory().fill((byte) 0);
            matrix.multiply(from, count, to);
            for (int column : new int[] {width - 1, outputs - 1}) {
                double product = product(type, count - 1, column);
                expect(count + " rows times " + type, element(to, count - 1, column), product);
            }
        }
        matrix.add(from, 1, to);
        double product = product(type, 0, 1);
        expect(type + ", sum of two products", element(to, 0, 1), 2 * product);
        for (Activation activation : Activation.values()) {
            gated(matrix, activation, from, to, product);
            if (type.inPairs()) {
                gated(matrix, activation, from, rows(to.memory(), DType.BF16, outputs), product);
            }
        }
    }

    private static void gated(PanelMatrix matrix, Activation activation, Rows from, Rows to, double product) {
        matrix.multiplyGated(matrix, activation, from, 1, to);
        double gate = activation == Activation.CLAMPED_SWIGLU ? Math.min(product, Activation.SWIGLU_LIMIT) : product;
        double factor = activation == Activation.CLAMPED_SWIGLU
                ? Math.clamp(product, -Activation.SWIGLU_LIMIT, Activation.SWIGLU_LIMIT) + 1
                : product;
        double inner = switch (activation) {
            case SILU -> product;
            case CLAMPED_SWIGLU -> Activation.SWIGLU_SLOPE * gate;
            case GELU_TANH -> 2 * Math.sqrt(2 / Math.PI) * (product + 0.044715 * Math.pow(product, 3));
        };
        expect(activation + " to " + to.type(), element(to, 0, 1), gate * factor / (1 + Math.exp(-inner)));
    }

    private MemorySegment bytes(long count) {
        MemorySegment memory = arena.allocate(count, 64);
        for (int i = 0; i < PERIOD; i++) {
            memory.set(ValueLayout.JAVA_BYTE, i, (byte) (number(i) * 8));
        }
        repeat(memory, PERIOD);
        return memory;
    }

    /** MXFP4 does not have 5/8. */
    private static float weight(WeightType type, long place) {
        float number = number(place);
        return type == WeightType.MXFP4_PAIRS && Math.abs(number) == 0.625f ? number + number / 5 : number;
    }

    private MemorySegment mxfp4(long elements) {
        int width = kernels.panelWidth();
        int inBlock = width * Mxfp4Panels.INPUTS;
        byte[] panels = new byte[Math.toIntExact(elements / inBlock * Mxfp4Panels.BYTES)];
        float[] weights = new float[Mxfp4Panels.INPUTS];
        for (int i = 0; i < elements / Mxfp4Panels.INPUTS; i++) {
            long block = i / width;
            for (int input = 0; input < weights.length; input++) {
                long place = block * inBlock + (input / 2 * 2L) * width + 2L * (i % width) + input % 2;
                weights[input] = weight(WeightType.MXFP4_PAIRS, place);
            }
            Mxfp4Panels.put(weights, 0, panels, Math.toIntExact(block * Mxfp4Panels.BYTES), i % width);
        }
        return arena.allocate(panels.length, 64).copyFrom(MemorySegment.ofArray(panels));
    }

    private double product(WeightType type, int row, int output) {
        int width = kernels.panelWidth();
        int lanes = width / 2;
        long panel = (long) (output / width) * INPUTS * width;
        int column = output % width;
        long first = panel + (type == WeightType.BF16 ? 2L * (column % lanes) + column / lanes : column);
        double sum = 0;
        for (int input = 0; input < INPUTS; input++) {
            long place = type.inPairs()
                    ? panel + (input / 2 * 2L) * width + 2L * column + input % 2
                    : first + (long) input * width;
            sum += number((long) row * INPUTS + input) * weight(type, place);
        }
        if (type.hasScales()) {
            sum *= 8 * SCALE;
        }
        return sum + BIAS;
    }

    private void rows() {
        RowKernels rowKernels = new RowKernels(kernels, ParallelFor.alone(), arena);
        Rows from = rows(numbers(DType.F32, 2 * HEAD_DIM), DType.F32, HEAD_DIM);
        float[] weights = new float[HEAD_DIM];
        double squares = 0;
        for (int i = 0; i < HEAD_DIM; i++) {
            weights[i] = 2;
            squares += number(i) * number(i);
        }
        double normed = number(9) / Math.sqrt(squares / HEAD_DIM + 1) * 2;
        for (DType type : bf16 ? List.of(DType.F32, DType.BF16) : List.of(DType.F32)) {
            Rows to = rows(arena.allocate((long) HEAD_DIM * type.bytes(), 64), type, HEAD_DIM);
            rowKernels.norm(weights, 1).apply(heads(from), heads(to), 1);
            expect("norm to " + type, element(to, 0, 9), normed);
        }
        Rows turned = rows(arena.allocate((long) HEAD_DIM * Float.BYTES, 64), DType.F32, HEAD_DIM);
        Rows keys = rows(numbers(DType.F32, HEAD_DIM), DType.F32, HEAD_DIM);
        MemorySegment table = numbers(DType.F32, HEAD_DIM);
        rowKernels.rotate(heads(from), heads(turned), heads(keys), HEAD_DIM, table, 1);
        int half = HEAD_DIM / 2;
        double first = number(9) * number(9) - number(9 + half) * number(9 + half);
        double second = number(9 + half) * number(9) + number(9) * number(9 + half);
        expect("rotation", element(turned, 0, 9), first);
        expect("rotation", element(keys, 0, 9 + half), second);
        MemorySegment logits = filled(1100, -1);
        logits.setAtIndex(FLOAT, 777, 5);
        expect("index of the largest number", rowKernels.largest(logits, 1, 1100)[0], 777);
        for (DType type : DType.values()) {
            save(rowKernels, type);
        }
    }

    private void save(RowKernels rowKernels, DType type) {
        KvCache cache = cache(arena.allocate(layout(type).blockBytes(), 64), type, 1);
        Rows pairs = rows(numbers(DType.F32, 2 * HEAD_DIM), DType.F32, 2 * HEAD_DIM);
        rowKernels.save(0, heads(pairs), 1, cache, new RowKernels.Slots() {
            @Override
            public int block(int row) {
                return 0;
            }

            @Override
            public int slot(int row) {
                return 3;
            }
        });
        Rows saved = rows(cache.host(), type, 2 * HEAD_DIM);
        expect(type + " of a key", element(saved, 3, 9), number(9));
    }

    private static RowKernels.Heads heads(Rows rows) {
        return new RowKernels.Heads(rows, 0, 1, rows.stride());
    }

    private static KvLayout layout(DType type) {
        return new KvLayout(1, 1, HEAD_DIM, BLOCK_SIZE, type);
    }

    private static KvCache cache(MemorySegment memory, DType type, int blocks) {
        return new KvCache(memory, layout(type), blocks, List.of("check"));
    }

    /** A single row, a few and many, which are computed in different ways, over two runs of positions and with a window. */
    private void attention(DType type, AttentionScores scores) {
        int heads = 2;
        int blocks = POSITIONS / BLOCK_SIZE;
        KvCache cache = cache(numbers(type, layout(type).blockBytes() / type.bytes() * blocks), type, blocks);
        PagedAttention attention = new PagedAttention(kernels, ParallelFor.alone(), cache, heads, scores, arena);
        int[] table = IntStream.range(0, blocks).toArray();
        int width = heads * HEAD_DIM;
        int most = kernels.panelWidth() + 1;
        Rows queries = rows(numbers(DType.F32, (long) most * width), DType.F32, width);
        for (DType resultType : bf16 ? List.of(DType.F32, DType.BF16) : List.of(DType.F32)) {
            Rows attended = rows(arena.allocate((long) most * width * Float.BYTES, 64), resultType, width);
            for (int count : resultType == DType.F32 ? new int[] {1, 3, most} : new int[] {3}) {
                int position = POSITIONS - count;
                attention.attend(0, List.of(new Span(0, count, position, table)), WINDOW, queries, attended);
                double[] expected = attended(count - 1, scores);
                for (int i = 0; i < 2; i++) {
                    expect(
                            "attention of %d rows over %s to %s".formatted(count, type, resultType),
                            element(attended, count - 1, HEAD_DIM + 9 + i),
                            expected[i]);
                }
            }
        }
        attention.close();
    }

    /** Two elements of the last head of a row that is at the last position. */
    private static double[] attended(int row, AttentionScores scores) {
        double[] sums = new double[2];
        double total = scores.hasSinks() ? Math.exp(SINK) : 0;
        for (int position = POSITIONS - WINDOW; position < POSITIONS; position++) {
            double score = 0;
            long entry = position * 2L * HEAD_DIM;
            long query = (row * 2L + 1) * HEAD_DIM;
            for (int i = 0; i < HEAD_DIM; i++) {
                score += number(query + i) * number(entry + i);
            }
            double scaled = score * scores.scale();
            double weight = Math.exp(
                    scores.cap().map(cap -> cap * Math.tanh(scaled / cap)).orElse(scaled));
            total += weight;
            for (int i = 0; i < 2; i++) {
                sums[i] += weight * number(entry + HEAD_DIM + 9 + i);
            }
        }
        return new double[] {sums[0] / total, sums[1] / total};
    }
}
