package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import baton.kv.DType;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Width;
import baton.memory.MachineCode;
import baton.memory.Posix;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * The kernels for vectors of one width, as functions of addresses. They access only the memory that they are given; the arguments are
 * described at the classes that generate them. Thread-safe.
 */
public final class Kernels {
    /** Lines that are fetched for each 16 pairs of k of a single group of rows: as many as these have. */
    private static final int FETCHED_BY_FEW = 32;

    /** Of several groups, which fetch them together. More would delay the loads of rows. */
    private static final List<Integer> FETCHED_BY_MANY = List.of(2, 4, 8);

    private final Width width;
    private final Optional<Tiles> tiles;
    private final Map<WeightType, MethodHandle> products = new EnumMap<>(WeightType.class);
    /** Of one row, of two, as long as several panels are taken. */
    private final Map<WeightType, List<MethodHandle>> productsBeside = new EnumMap<>(WeightType.class);

    private final Map<WeightType, MethodHandle> productsAdded = new EnumMap<>(WeightType.class);
    private final Map<WeightType, MethodHandle> expansions = new EnumMap<>(WeightType.class);
    private final Map<Finish, MethodHandle> finishes = new EnumMap<>(Finish.class);
    private final Map<Width, MethodHandle> widenings = new EnumMap<>(Width.class);
    private final Map<Width, MethodHandle> narrowings = new EnumMap<>(Width.class);
    private final Map<Width, MethodHandle> norms = new EnumMap<>(Width.class);
    private final Map<Width, MethodHandle> rotations = new EnumMap<>(Width.class);
    private final MethodHandle narrowNorm;
    private final MethodHandle pairNarrowing;
    private final Map<Binary, MethodHandle> columns = new EnumMap<>(Binary.class);
    private final MethodHandle largest;
    private final MethodHandle softmax;
    private final MethodHandle maskedSoftmax;
    private final MethodHandle normalisation;
    private final Map<DType, MethodHandle> keyPanels = new EnumMap<>(DType.class);
    private final Map<DType, MethodHandle> valuePanels = new EnumMap<>(DType.class);
    private final MethodHandle decodeSoftmax;
    private final MethodHandle decodeSums;
    private final MethodHandle rowScaling;
    private final MethodHandle toLanes;
    private final MethodHandle fromLanes;

    /** Kernels for the matrix unit. */
    private record Tiles(
            MethodHandle few,
            MethodHandle fewBeside,
            MethodHandle fewExpanding,
            List<MethodHandle> many,
            List<MethodHandle> manyAdded,
            MethodHandle configure,
            MethodHandle release,
            MethodHandle gathered,
            MethodHandle added,
            MethodHandle queries,
            MethodHandle results,
            MethodHandle decodeQueries,
            MethodHandle decodeRun,
            MethodHandle decodeResults,
            MethodHandle softmax,
            MethodHandle maskedSoftmax,
            MethodHandle runs,
            MethodHandle valueColumns) {
        static Tiles make() {
            return new Tiles(
                    function(TileCode.product(false, FETCHED_BY_FEW), 7),
                    function(
                            TileCode.productBeside(Math.toIntExact(PanelMatrix.Scratch.tileBytes(Width.ZMM, true))), 6),
                    function(TileCode.expandingProduct(), 7),
                    blockProducts(false),
                    blockProducts(true),
                    function(TileCode.configure(), 1),
                    function(TileCode.release(), 0),
                    function(TileCode.gatheredProduct(), 6),
                    function(TileCode.addedProduct(), 6),
                    function(TileAttentionCode.queries(ProductCode.VECTORS), 4),
                    function(TileAttentionCode.results(), 4),
                    function(TileAttentionCode.queries(1), 4),
                    function(TileDecodeCode.run(), 1),
                    function(TileDecodeCode.results(), 5),
                    function(AttentionCode.softmaxToPairs(false), 7),
                    function(AttentionCode.softmaxToPairs(true), 7),
                    function(TileAttentionCode.runs(), 3),
                    function(TileAttentionCode.valueColumns(), 6));
        }

        /** For the numbers of lines fetched, in ascending order. */
        private static List<MethodHandle> blockProducts(boolean adds) {
            return FETCHED_BY_MANY.stream()
                    .map(lines -> function(TileCode.product(adds, lines), 7))
                    .toList();
        }

        /** The product of a block of so many rows. */
        MethodHandle blockProduct(boolean adds, long rows) {
            long wanted = Math.ceilDiv(FETCHED_BY_FEW * (long) TileCode.MOST_ROWS, rows);
            int index = 0;
            while (index < FETCHED_BY_MANY.size() - 1 && FETCHED_BY_MANY.get(index) < wanted) {
                index++;
            }
            return (adds ? manyAdded : many).get(index);
        }
    }

    private Kernels(Width width, boolean hasTiles) {
        this.width = width;
        this.tiles = hasTiles ? Optional.of(Tiles.make()) : Optional.empty();
        for (WeightType type : WeightType.values()) {
            if (type.inPairs() && width != Width.ZMM) {
                continue;
            }
            if (!onTiles(type)) {
                products.put(type, product(width, type, Float.BYTES, false));
                productsBeside.put(type, productsBeside(width, type, hasTiles));
            }
            switch (type) {
                case FP32, BF16_PAIRS -> {
                    if (!onTiles(type)) {
                        productsAdded.put(type, product(width, type, Float.BYTES, true));
                    }
                }
                case BF16, INT8, INT8_PAIRS -> expansions.put(type, function(RowCode.expand(width, type), 3));
            }
        }
        for (Finish finish : Finish.values()) {
            int gate = Math.toIntExact(PanelMatrix.Scratch.gateOffset(width, hasTiles));
            if (finish != Finish.GATED_NARROW || width == Width.ZMM) {
                finishes.put(finish, function(RowCode.finish(width, finish, gate), 6));
            }
        }
        for (Width narrower : Width.values()) {
            if (narrower.lanes() <= width.lanes()) {
                widenings.put(narrower, function(RowCode.widen(narrower), 3));
                narrowings.put(narrower, function(RowCode.narrow(narrower), 6));
                norms.put(narrower, function(RowCode.norm(narrower), 5));
                rotations.put(narrower, function(RowCode.rotate(narrower), 7));
            }
        }
        narrowNorm = function(RowCode.normNarrow(), 5);
        pairNarrowing = function(RowCode.narrowPairs(), 6);
        columns.put(Binary.MUL, function(RowCode.columns(width, Binary.MUL), 3));
        columns.put(Binary.ADD, function(RowCode.columns(width, Binary.ADD), 3));
        largest = function(RowCode.largest(width), 4);
        softmax = function(AttentionCode.softmax(width, false), 6);
        maskedSoftmax = function(AttentionCode.softmax(width, true), 6);
        normalisation = function(AttentionCode.normalise(width), 3);
        for (DType type : List.of(DType.BF16, DType.F32)) {
            keyPanels.put(type, function(DecodeCode.keys(width, type), 4));
            valuePanels.put(type, function(DecodeCode.values(width, type), 6));
        }
        decodeSoftmax = function(DecodeCode.softmax(width), 8);
        decodeSums = function(DecodeCode.sums(width), 6);
        rowScaling = function(DecodeCode.scaleRows(width), 3);
        toLanes = function(AttentionCode.toLanes(), 6);
        fromLanes = function(AttentionCode.fromLanes(), 5);
    }

    private static final class Avx512 {
        static final Kernels KERNELS = new Kernels(Width.ZMM, false);
    }

    private static final class Amx {
        static final Kernels KERNELS = make();

        private static Kernels make() {
            try {
                Posix.permitTiles();
            } catch (Posix.Failure | UnsupportedOperationException e) {
                throw new IllegalStateException("the system does not permit AMX: " + e.getMessage(), e);
            }
            return new Kernels(Width.ZMM, true);
        }
    }

    private static final class Avx2 {
        static final Kernels KERNELS = new Kernels(Width.YMM, false);
    }

    /**
     * The kernels for AVX2 (256 bits) or AVX-512 (512 bits), made once.
     *
     * @throws IllegalArgumentException for 128 bits
     * @throws IllegalStateException if the system gives no executable memory
     */
    public static Kernels of(Width width) {
        return made(() -> switch (width) {
            case ZMM -> Avx512.KERNELS;
            case YMM -> Avx2.KERNELS;
            case XMM -> throw new IllegalArgumentException("width: is XMM, must be YMM or ZMM");
        });
    }

    /**
     * The kernels for AVX-512 with products of pairs, and attention over bf16, on the matrix unit (AMX), made once.
     *
     * @throws IllegalStateException if the system gives no executable memory, or does not permit the unit's use
     */
    public static Kernels withTiles() {
        return made(() -> Amx.KERNELS);
    }

    private static Kernels made(Supplier<Kernels> kernels) {
        try {
            return kernels.get();
        } catch (ExceptionInInitializerError e) {
            throw new IllegalStateException(String.valueOf(e.getCause()), e.getCause());
        } catch (NoClassDefFoundError e) {
            // Asked for again.
            Throwable first = e.getCause() == null ? e : e.getCause();
            throw new IllegalStateException(String.valueOf(first.getMessage()), e);
        }
    }

    private static MethodHandle product(Width width, WeightType type, int kStride, boolean adds) {
        return function(ProductCode.of(width, type, kStride, adds), 7);
    }

    private static List<MethodHandle> productsBeside(Width width, WeightType type, boolean hasTiles) {
        List<MethodHandle> functions = new ArrayList<>();
        for (int rows = 1; ProductCode.panelsBeside(width, rows) > 1; rows++) {
            int tileBytes = Math.toIntExact(PanelMatrix.Scratch.tileBytes(width, hasTiles));
            byte[] code = ProductCode.beside(width, type, rows, tileBytes);
            functions.add(function(code, 5));
        }
        return functions;
    }

    /**
     * A function whose calls are not seen by the JVM: it returns within a few microseconds, for the largest matrices some hundred. Otherwise the
     * processor would wait at the end of each call until all of its stores have reached the caches, a tenth of a prefill's time.
     */
    private static MethodHandle function(byte[] code, int arguments) {
        MemoryLayout[] longs =
                Collections.nCopies(arguments, ValueLayout.JAVA_LONG).toArray(MemoryLayout[]::new);
        return MachineCode.function(code, FunctionDescriptor.ofVoid(longs), Linker.Option.critical(false));
    }

    public Width width() {
        return width;
    }

    /** Whether pairs are multiplied on the matrix unit. */
    public boolean hasTiles() {
        return tiles.isPresent();
    }

    /** Whether the matrix unit multiplies rows with weights of a type. */
    boolean onTiles(WeightType type) {
        return hasTiles() && type.inPairs();
    }

    /** Columns of a panel and of a tile. */
    public int panelWidth() {
        return ProductCode.VECTORS * width.lanes();
    }

    /** Rows that a product takes together. */
    int productRows() {
        return ProductCode.mostRows(width);
    }

    /** The widest vectors of which {@code count} is a multiple; it is one of 4. */
    private Width fitting(int count) {
        Width fitting = width;
        while (count % fitting.lanes() != 0) {
            fitting = fitting == Width.ZMM ? Width.YMM : Width.XMM;
        }
        return fitting;
    }

    private static <K, V> V get(Map<K, V> functions, K key) {
        return Objects.requireNonNull(functions.get(key));
    }

    /** The product, of weights that are in the caches. */
    void product(WeightType type, long a, long rowStride, long panel, long k, long tile, long rows) {
        product(type, a, rowStride, panel, k, tile, rows, panel);
    }

    /**
     * The product without the matrix unit.
     *
     * @param ahead address of the weights to fetch
     */
    void product(WeightType type, long a, long rowStride, long panel, long k, long tile, long rows, long ahead) {
        try {
            get(products, type).invokeExact(a, rowStride, panel, k, tile, rows, ahead);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** Panels that {@link #productBeside} takes with so many rows; 1 if that is for fewer rows, or for other types. */
    int panelsBeside(WeightType type, int rows) {
        if (onTiles(type)) {
            return type.hasScales() || rows > TileCode.MOST_ROWS ? 1 : TileCode.PANELS_BESIDE;
        }
        return rows <= get(productsBeside, type).size() ? ProductCode.panelsBeside(width, rows) : 1;
    }

    /**
     * Of several panels that follow each other; their tiles are those of {@link PanelMatrix.Scratch}.
     *
     * @param rows on the matrix unit at most {@link TileCode#ROWS}, else as many as {@link #panelsBeside} has been asked for
     */
    void productBeside(WeightType type, long a, long rowStride, long panels, long k, long tiles, int rows) {
        try {
            if (onTiles(type)) {
                tiles().fewBeside.invokeExact(a, rowStride, panels, k, tiles, (long) rows);
                return;
            }
            get(productsBeside, type).get(rows - 1).invokeExact(a, rowStride, panels, k, tiles);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** Adds the product, of weights that are in the caches. */
    void addProduct(WeightType type, long a, long rowStride, long panel, long k, long tile, long rows) {
        addProduct(type, a, rowStride, panel, k, tile, rows, panel);
    }

    /**
     * Adds the product without the matrix unit to the sums in the tile.
     *
     * @param type with panels that are used as they are
     * @param ahead address of the weights to fetch
     */
    void addProduct(WeightType type, long a, long rowStride, long panel, long k, long tile, long rows, long ahead) {
        addProduct(get(productsAdded, type), a, rowStride, panel, k, tile, rows, ahead);
    }

    /**
     * The product of pairs on the matrix unit of few rows, with weights that are read once.
     *
     * @param ahead address of the weights to fetch
     */
    void fewByTiles(long a, long rowStride, long panel, long k, long tile, long rows, long ahead) {
        try {
            tiles().few.invokeExact(a, rowStride, panel, k, tile, rows, ahead);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileCode#expandingProduct}. */
    void fewExpandingByTiles(long a, long rowStride, long panel, long k, long tile, long rows, long expanded) {
        try {
            tiles().fewExpanding.invokeExact(a, rowStride, panel, k, tile, rows, expanded);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /**
     * The product of pairs on the matrix unit of a block of rows.
     *
     * @param adds whether sums go on from those in the tile
     * @param ahead address of the weights to fetch
     */
    void manyByTiles(boolean adds, long a, long rowStride, long panel, long k, long tile, long rows, long ahead) {
        try {
            tiles().blockProduct(adds, rows).invokeExact(a, rowStride, panel, k, tile, rows, ahead);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /**
     * Configures the calling thread's tiles for {@link #gatheredByTiles} and {@link #addByTiles}, or for {@link #decodeRun}, which are called in
     * {@code work} only: each time would take as long as a small product. The work calls no other product of pairs: these end with tiles that are
     * not configured, and the next instruction that uses one ends the process.
     *
     * @param configuration address of one of {@link TileConfigurations}, for those functions
     */
    void withTilesOfThread(long configuration, Runnable work) {
        try {
            tiles().configure.invokeExact(configuration);
            try {
                work.run();
            } finally {
                tiles().release.invokeExact();
            }
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileCode#addedProduct}. */
    void addByTiles(long a, long rowStride, long panel, long k, long tile, long rows) {
        try {
            tiles().added.invokeExact(a, rowStride, panel, k, tile, rows);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileCode#gatheredProduct}. */
    void gatheredByTiles(long table, long rowStride, long panel, long k, long tile, long rowGroups) {
        try {
            tiles().gathered.invokeExact(table, rowStride, panel, k, tile, rowGroups);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileAttentionCode#queries}. */
    void queryPairs(long addresses, long to, long groups, long factor) {
        try {
            tiles().queries.invokeExact(addresses, to, groups, factor);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileAttentionCode#results}. */
    void results(long sums, long addresses, long groups, long state) {
        try {
            tiles().results.invokeExact(sums, addresses, groups, state);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link AttentionCode#softmaxToPairs}. */
    void softmaxToPairs(
            boolean masked, long scores, long positions, long state, long limits, long sums, long headDim, long pairs) {
        try {
            (masked ? tiles().maskedSoftmax : tiles().softmax)
                    .invokeExact(scores, positions, state, limits, sums, headDim, pairs);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileAttentionCode#runs}. */
    void runs(long arguments, long run, long count) {
        try {
            tiles().runs.invokeExact(arguments, run, count);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileAttentionCode#valueColumns}. */
    void valueColumns(long from, long next, long stride, long to, long toStride, long groups) {
        try {
            tiles().valueColumns.invokeExact(from, next, stride, to, toStride, groups);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileAttentionCode#queries}: of 16 lanes. */
    void decodeQueryPairs(long addresses, long to, long groups, long factor) {
        try {
            tiles().decodeQueries.invokeExact(addresses, to, groups, factor);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileDecodeCode#run}. */
    void decodeRun(long arguments) {
        try {
            tiles().decodeRun.invokeExact(arguments);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link TileDecodeCode#results}. */
    void decodeResults(long attended, long to, long sums, long queries, long groups) {
        try {
            tiles().decodeResults.invokeExact(attended, to, sums, queries, groups);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    private Tiles tiles() {
        return tiles.orElseThrow(() -> new IllegalStateException("these kernels use no matrix unit"));
    }

    /** A function like {@link #addProduct} for fp32 of rows with elements {@code kStride} bytes apart. */
    MethodHandle addedProduct(int kStride) {
        return product(width, WeightType.FP32, kStride, true);
    }

    /** Calls what {@link #addedProduct} has made. */
    static void addProduct(
            MethodHandle function, long a, long rowStride, long panel, long k, long tile, long rows, long ahead) {
        try {
            function.invokeExact(a, rowStride, panel, k, tile, rows, ahead);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void expand(WeightType type, long panel, long to, long k) {
        try {
            get(expansions, type).invokeExact(panel, to, k);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link RowCode#finish}. */
    void finish(Finish finish, long tiles, long out, long outStride, long rows, long tileStride, long count) {
        try {
            get(finishes, finish).invokeExact(tiles, out, outStride, rows, tileStride, count);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link RowCode#columns}. */
    void columns(Binary op, long tile, long numbers, long rows) {
        try {
            get(columns, op).invokeExact(tile, numbers, rows);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** See {@link RowCode#largest}. */
    void largest(long from, long vectors, long chunks, long to) {
        try {
            largest.invokeExact(from, vectors, chunks, to);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** bf16 to fp32. */
    void widen(long from, long to, int count) {
        try {
            get(widenings, fitting(count)).invokeExact(from, to, (long) count);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** fp32 to bf16, to nearest even: rows of {@code count} elements, a multiple of 8. */
    void narrow(long from, long fromStride, long to, long toStride, long rows, int count) {
        try {
            Width fitting = count % 16 == 0 ? width : Width.XMM;
            get(narrowings, fitting).invokeExact(from, fromStride, to, toStride, rows, (long) count);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** As {@link #narrow}, on a processor with AVX512_BF16. */
    void narrowForPairs(long from, long fromStride, long to, long toStride, long rows, int count) {
        if (count % (2 * width.lanes()) != 0) {
            narrow(from, fromStride, to, toStride, rows, count);
            return;
        }
        try {
            pairNarrowing.invokeExact(from, fromStride, to, toStride, rows, (long) count);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** @param numbers 1 / count and eps */
    void norm(long from, long to, long weights, int count, long numbers) {
        try {
            get(norms, fitting(count)).invokeExact(from, to, weights, (long) count, numbers);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    /** As {@link #norm}, to bf16 on a processor with AVX512_BF16; the count is a multiple of 32. */
    void normNarrow(long from, long to, long weights, int count, long numbers) {
        try {
            narrowNorm.invokeExact(from, to, weights, (long) count, numbers);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void rotate(long from, long fromStride, long to, long toStride, long heads, long table, int half) {
        try {
            get(rotations, fitting(half)).invokeExact(from, fromStride, to, toStride, heads, table, (long) half);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void softmax(boolean masked, long scores, long positions, long state, long limits, long sums, long headDim) {
        try {
            (masked ? maskedSoftmax : softmax).invokeExact(scores, positions, state, limits, sums, headDim);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void normalise(long sums, long headDim, long state) {
        try {
            normalisation.invokeExact(sums, headDim, state);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void toLanes(long addresses, long tile, long tileStride, long quads, long headDim, long factor) {
        try {
            toLanes.invokeExact(addresses, tile, tileStride, quads, headDim, factor);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void fromLanes(long addresses, long tile, long tileStride, long quads, long headDim) {
        try {
            fromLanes.invokeExact(addresses, tile, tileStride, quads, headDim);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void keyPanels(DType type, long from, long stride, long to, long vectors) {
        try {
            get(keyPanels, type).invokeExact(from, stride, to, vectors);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void valuePanels(DType type, long from, long stride, long to, long panelStride, long panels, long positions) {
        try {
            get(valuePanels, type).invokeExact(from, stride, to, panelStride, panels, positions);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void decodeSoftmax(
            long scores,
            long tileStride,
            long tiles,
            long weights,
            long weightStride,
            long queries,
            long largest,
            long factors) {
        try {
            decodeSoftmax.invokeExact(scores, tileStride, tiles, weights, weightStride, queries, largest, factors);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void decodeSums(long weights, long weightStride, long positions, long sums, long factors, long groups) {
        try {
            decodeSums.invokeExact(weights, weightStride, positions, sums, factors, groups);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    void scaleRows(long tile, long factors, long rows) {
        try {
            rowScaling.invokeExact(tile, factors, rows);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    private static AssertionError failed(Throwable e) {
        switch (e) {
            case RuntimeException cause -> throw cause;
            case Error cause -> throw cause;
            default -> throw new AssertionError("machine code throws nothing", e);
        }
    }
}
