package baton.engine.kernel;

import baton.engine.kernel.RowCode.Finish;
import baton.kv.DType;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Width;
import baton.memory.Posix;
import baton.memory.Processor;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.SequencedMap;
import java.util.function.Supplier;

/** The kernels for vectors of one width, as functions of addresses. They access only the memory that they are given. Thread-safe. */
public final class Kernels {
    /** Lines that are fetched for each 16 pairs of k of a single group of rows: as many as these have. */
    private static final int FETCHED_BY_FEW = 32;

    /** The lines that several groups fetch together. More would delay the loads of rows. */
    private static final List<Integer> FETCHED_BY_MANY = List.of(2, 4, 8);

    private final Width width;
    private final boolean hasTiles;
    private final boolean attendsInPairs;
    /** The functions by kernel and variant. */
    private final Map<Kernel, SequencedMap<Object, MachineFunction>> functions = new EnumMap<>(Kernel.class);

    /** Products of one row, of two, as long as several panels are taken. */
    private final Map<WeightType, List<MachineFunction>> productsBeside = new EnumMap<>(WeightType.class);

    Kernels(Width width, boolean hasTiles, boolean attendsInPairs) {
        this.width = width;
        this.hasTiles = hasTiles;
        this.attendsInPairs = attendsInPairs;
        for (WeightType type : WeightType.values()) {
            if (type.inPairs() && width != Width.ZMM) {
                continue;
            }
            if (!onTiles(type) && type != WeightType.MXFP4_PAIRS) {
                make(Kernel.PRODUCT, type, ProductCode.of(width, type, Float.BYTES, false));
                productsBeside.put(type, productsBeside(type));
            }
            switch (type) {
                case FP32, BF16_PAIRS -> {
                    if (!onTiles(type)) {
                        make(Kernel.ADDED_PRODUCT, type, ProductCode.of(width, type, Float.BYTES, true));
                    }
                }
                case BF16, FP16, INT8, INT8_PAIRS, MXFP4_PAIRS ->
                    make(Kernel.EXPAND, type, RowCode.expand(width, type));
            }
        }
        for (Finish finish : Finish.values()) {
            int gate = Math.toIntExact(PanelMatrix.Scratch.gateOffset(width, hasTiles));
            if (!finish.narrows() || width == Width.ZMM) {
                make(Kernel.FINISH, finish, RowCode.finish(width, finish, gate));
            }
        }
        for (Width narrower : Width.values()) {
            if (narrower.lanes() <= width.lanes()) {
                make(Kernel.NARROW, narrower, RowCode.narrow(narrower));
                make(Kernel.NORM, narrower, RowCode.norm(narrower));
                make(Kernel.ROTATE, narrower, RowCode.rotate(narrower));
            }
        }
        for (DType type : DType.values()) {
            make(Kernel.WIDEN, type, RowCode.widen(width, type));
            make(Kernel.KEY_PANELS, type, DecodeCode.keys(width, type));
            make(Kernel.VALUE_PANELS, type, DecodeCode.values(width, type));
        }
        make(Kernel.NARROW, DType.F16, RowCode.halve(width));
        make(Kernel.NARROW, DType.F8_E4M3, RowCode.encode(width));
        if (width == Width.ZMM) {
            make(Kernel.NARROW_NORM, RowCode.normNarrow());
            make(Kernel.NARROW_PAIRS, RowCode.narrowPairs());
        }
        make(Kernel.SCALE_COLUMNS, RowCode.columns(width, Binary.MUL));
        make(Kernel.ADD_TO_COLUMNS, RowCode.columns(width, Binary.ADD));
        make(Kernel.LARGEST, RowCode.largest(width));
        make(Kernel.SOFTMAX, AttentionCode.softmax(width, false));
        make(Kernel.MASKED_SOFTMAX, AttentionCode.softmax(width, true));
        make(Kernel.CAP_SCORES, AttentionCode.cap(width));
        make(Kernel.NORMALISE, AttentionCode.normalise(width));
        make(Kernel.TO_LANES, AttentionCode.toLanes());
        make(Kernel.FROM_LANES, AttentionCode.fromLanes());
        make(Kernel.DECODE_SOFTMAX, DecodeCode.softmax(width));
        make(Kernel.DECODE_SUMS, DecodeCode.sums(width));
        make(Kernel.SCALE_ROWS, DecodeCode.scaleRows(width));
        if (attendsInPairs) {
            makeForPairs();
        }
        if (hasTiles) {
            makeOnTiles();
        }
    }

    /** Makes the kernels of attention over keys and values in bf16. */
    private void makeForPairs() {
        make(Kernel.QUERY_PAIRS, TileAttentionCode.queries(ProductCode.VECTORS));
        make(Kernel.RESULTS, TileAttentionCode.results());
        make(Kernel.SOFTMAX_TO_PAIRS, AttentionCode.softmaxToPairs(false));
        make(Kernel.MASKED_SOFTMAX_TO_PAIRS, AttentionCode.softmaxToPairs(true));
        make(Kernel.VALUE_COLUMNS, TileAttentionCode.valueColumns());
        if (!hasTiles) {
            make(Kernel.SCORES, ProductCode.withoutFetching(width, WeightType.BF16_PAIRS));
            make(Kernel.VALUE_PAIR_PANELS, TileAttentionCode.valuePairs());
        }
    }

    private void makeOnTiles() {
        int tileBytes = Math.toIntExact(PanelMatrix.Scratch.tileBytes(Width.ZMM, true));
        make(Kernel.FEW_BY_TILES, TileCode.product(false, FETCHED_BY_FEW));
        make(Kernel.FEW_BESIDE_BY_TILES, TileCode.productBeside(tileBytes));
        make(Kernel.FEW_EXPANDING_BY_TILES, TileCode.expandingProduct());
        for (int i = 0; i < FETCHED_BY_MANY.size(); i++) {
            make(Kernel.MANY_BY_TILES, i, TileCode.product(false, FETCHED_BY_MANY.get(i)));
            make(Kernel.MANY_ADDED_BY_TILES, i, TileCode.product(true, FETCHED_BY_MANY.get(i)));
        }
        make(Kernel.CONFIGURE_TILES, TileCode.configure());
        make(Kernel.RELEASE_TILES, TileCode.release());
        make(Kernel.GATHERED_BY_TILES, TileCode.gatheredProduct());
        make(Kernel.ADDED_BY_TILES, TileCode.addedProduct());
        make(Kernel.RUNS, TileAttentionCode.runs());
        make(Kernel.DECODE_QUERY_PAIRS, TileAttentionCode.queries(1));
        make(Kernel.DECODE_RUN, TileDecodeCode.run());
        make(Kernel.DECODE_RESULTS, TileDecodeCode.results());
    }

    private void make(Kernel kernel, byte[] code) {
        make(kernel, kernel, code);
    }

    /** Puts a function in its place. */
    void make(Kernel kernel, Object variant, byte[] code) {
        functions
                .computeIfAbsent(kernel, _ -> new LinkedHashMap<>())
                .put(variant, MachineFunction.of(code, kernel.arguments()));
    }

    private List<MachineFunction> productsBeside(WeightType type) {
        List<MachineFunction> products = new ArrayList<>();
        int tileBytes = Math.toIntExact(PanelMatrix.Scratch.tileBytes(width, hasTiles));
        for (int rows = 1; ProductCode.panelsBeside(width, rows) > 1; rows++) {
            products.add(MachineFunction.of(
                    ProductCode.beside(width, type, rows, tileBytes), Kernel.PRODUCT_BESIDE.arguments()));
        }
        return products;
    }

    /** The variants of a kernel, in the order in which they were made. */
    List<Object> variants(Kernel kernel) {
        return functions.containsKey(kernel) ? List.copyOf(of(kernel).sequencedKeySet()) : List.of();
    }

    /** @throws NullPointerException if there is none, as of the matrix unit's where that is not used */
    MachineFunction get(Kernel kernel) {
        return get(kernel, kernel);
    }

    /** The function of a kernel with several variants. */
    MachineFunction get(Kernel kernel, Object variant) {
        return Objects.requireNonNull(of(kernel).get(variant), kernel.name());
    }

    private SequencedMap<Object, MachineFunction> of(Kernel kernel) {
        return Objects.requireNonNull(functions.get(kernel), kernel.name());
    }

    private static final class Avx512 {
        static final Kernels KERNELS = checked(new Kernels(Width.ZMM, false, false));
    }

    private static final class Avx512Pairs {
        static final Kernels KERNELS = checked(new Kernels(Width.ZMM, false, true));
    }

    private static final class Amx {
        static final Kernels KERNELS = make();

        private static Kernels make() {
            try {
                Posix.permitTiles();
            } catch (Posix.Failure | UnsupportedOperationException e) {
                throw new IllegalStateException("the system does not permit AMX: " + e.getMessage(), e);
            }
            return checked(new Kernels(Width.ZMM, true, true));
        }
    }

    private static final class Avx2 {
        static final Kernels KERNELS = checked(new Kernels(Width.YMM, false, false));
    }

    /**
     * The kernels for AVX2 (256 bits) or AVX-512 (512 bits), made and checked once.
     *
     * @throws IllegalArgumentException for 128 bits
     * @throws IllegalStateException if the system gives no executable memory, or a kernel computes something wrong
     */
    public static Kernels of(Width width) {
        return made(() -> switch (width) {
            case ZMM -> Avx512.KERNELS;
            case YMM -> Avx2.KERNELS;
            case XMM -> throw new IllegalArgumentException("width: is XMM, must be YMM or ZMM");
        });
    }

    /**
     * The kernels for AVX-512 on a processor with AVX512_BF16, with attention over bf16 by products of pairs, made and checked once.
     *
     * @throws IllegalStateException if the system gives no executable memory, or a kernel computes something wrong
     */
    public static Kernels withPairs() {
        return made(() -> Avx512Pairs.KERNELS);
    }

    /**
     * The kernels for AVX-512 with products of pairs, and attention over bf16, on the matrix unit (AMX), made and checked once.
     *
     * @throws IllegalStateException if the system gives no executable memory or does not permit the unit's use, or a kernel computes
     *     something wrong
     */
    public static Kernels withTiles() {
        return made(() -> Amx.KERNELS);
    }

    private static Kernels checked(Kernels kernels) {
        KernelCheck.check(kernels, Processor.current().has("avx512_bf16")).ifPresent(wrong -> {
            throw new IllegalStateException("its self-check found a wrong result: " + wrong);
        });
        return kernels;
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

    public Width width() {
        return width;
    }

    /** Whether pairs are multiplied on the matrix unit. */
    public boolean hasTiles() {
        return hasTiles;
    }

    /** Whether queries and weights of keys and values in bf16 are rounded to bf16. */
    boolean attendsInPairs() {
        return attendsInPairs;
    }

    /** Whether the matrix unit multiplies rows with weights of a type. */
    boolean onTiles(WeightType type) {
        return hasTiles && type.inPairs();
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
    Width fitting(int count) {
        Width fitting = width;
        while (count % fitting.lanes() != 0) {
            fitting = fitting == Width.ZMM ? Width.YMM : Width.XMM;
        }
        return fitting;
    }

    /** fp32 to bf16, to nearest even, for rows of {@code count} elements, a multiple of 8. */
    MachineFunction narrowing(int count) {
        return get(Kernel.NARROW, count % 16 == 0 ? width : Width.XMM);
    }

    /** fp32 to a type of keys and values, for rows of {@code count} elements, a multiple of 16. */
    MachineFunction narrowing(DType type, int count) {
        return type == DType.BF16 ? narrowing(count) : get(Kernel.NARROW, type);
    }

    /** The function of {@link #narrowing} on a processor with AVX512_BF16. */
    MachineFunction narrowingForPairs(int count) {
        return width == Width.ZMM && count % (2 * width.lanes()) == 0 ? get(Kernel.NARROW_PAIRS) : narrowing(count);
    }

    /** Panels that {@link #productBeside} takes with so many rows; 1 if that is for fewer rows, or for other types. */
    int panelsBeside(WeightType type, int rows) {
        if (onTiles(type)) {
            return type.hasScales() || rows > TileCode.MOST_ROWS ? 1 : TileCode.PANELS_BESIDE;
        }
        return rows <= productsBesideOf(type).size() ? ProductCode.panelsBeside(width, rows) : 1;
    }

    /**
     * Of several panels that follow each other; their tiles are those of {@link PanelMatrix.Scratch}.
     *
     * @param rows on the matrix unit at most {@link TileCode#ROWS}, else as many as {@link #panelsBeside} has been asked for
     */
    void productBeside(WeightType type, long a, long rowStride, long panels, long k, long tiles, int rows) {
        if (onTiles(type)) {
            get(Kernel.FEW_BESIDE_BY_TILES).call(a, rowStride, panels, k, tiles, rows);
        } else {
            productsBesideOf(type).get(rows - 1).call(a, rowStride, panels, k, tiles);
        }
    }

    private List<MachineFunction> productsBesideOf(WeightType type) {
        return Objects.requireNonNull(productsBeside.get(type));
    }

    /**
     * The product of pairs on the matrix unit of a block of so many rows.
     *
     * @param adds whether sums go on from those in the tile
     */
    MachineFunction manyByTiles(boolean adds, long rows) {
        return get(adds ? Kernel.MANY_ADDED_BY_TILES : Kernel.MANY_BY_TILES, fetchedLines(rows));
    }

    /** Index of the number of lines that each group of rows fetches. */
    private static int fetchedLines(long rows) {
        long wanted = Math.ceilDiv(FETCHED_BY_FEW * (long) TileCode.MOST_ROWS, rows);
        int index = 0;
        while (index < FETCHED_BY_MANY.size() - 1 && FETCHED_BY_MANY.get(index) < wanted) {
            index++;
        }
        return index;
    }

    /**
     * Configures the calling thread's tiles for {@link Kernel#GATHERED_BY_TILES} and {@link Kernel#ADDED_BY_TILES}, or for
     * {@link Kernel#DECODE_RUN}, which are called in {@code work} only: each time would take as long as a small product. The work calls no other
     * product of pairs: these end with tiles that are not configured, and the next instruction that uses one ends the process.
     *
     * @param configuration address of one of {@link TileConfigurations}, for those functions
     */
    void withTilesOfThread(long configuration, Runnable work) {
        get(Kernel.CONFIGURE_TILES).call(configuration);
        try {
            work.run();
        } finally {
            get(Kernel.RELEASE_TILES).call();
        }
    }
}
