package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R12;
import static baton.memory.Assembler.Reg.R13;
import static baton.memory.Assembler.Reg.R14;
import static baton.memory.Assembler.Reg.R15;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RBP;
import static baton.memory.Assembler.Reg.RBX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;
import static baton.memory.Assembler.Reg.RSP;

import baton.memory.Assembler;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Width;
import java.util.List;

/**
 * Products on the matrix unit (AMX): of rows in bf16 with a panel of pairs, see {@link PanelMatrix}, as {@link ProductCode} computes them.
 * The unit takes a panel of pairs: 16 pairs of inputs of 16 outputs are a tile, the panel's other 16 outputs another.
 *
 * <p>32 rows are multiplied at once, two tiles of them with two of the panel, so that each tile that is loaded is used twice. The sums of
 * fewer rows are the same bits: each of a tile's numbers is summed by itself, in the order of k.
 */
final class TileCode {
    /** Rows of a tile, and its columns of fp32. */
    static final int ROWS = 16;

    /** Rows that are multiplied together. */
    static final int MOST_ROWS = 2 * ROWS;

    /** Pairs of k in a tile. */
    private static final int PAIRS = 16;

    /** Inputs in a tile. */
    static final int INPUTS = 2 * PAIRS;

    /** Distance in bytes at which weights that are used once are fetched. */
    static final long AHEAD_BYTES = 16384;

    /** The same in each of several panels. */
    private static final int AHEAD_BESIDE_BYTES = 4096;

    /** Panels that up to {@link #ROWS} rows are multiplied with side by side: as many as there are tiles for their sums. */
    static final int PANELS_BESIDE = 3;

    private static final int TILE_ROW = 64;
    private static final int CACHE_LINE = 64;

    /** Bytes of a panel's row, of pairs of bf16 or of sums in fp32. */
    private static final int PANEL_ROW = 2 * TILE_ROW;

    /** Bytes of a panel's row, of pairs of 8 bits. */
    private static final int PANEL_ROW_OF_BYTES = PANEL_ROW / 2;

    /** The bytes of expanded weights for two tiles of a panel's width. */
    static final int EXPANDED_BYTES = 2 * PAIRS * PANEL_ROW;

    // Tiles. The sums of row tile i and column tile j are tile 2 * i + j.
    private static final int ROW_TILES = 4;
    private static final int COLUMN_TILES = 6;

    // Of products with panels side by side. The tiles before are their sums.
    private static final int ROWS_BESIDE = 6;
    private static final int COLUMNS_BESIDE = 7;

    private static final Reg A = RDI;
    private static final Reg ROW_STRIDE = RSI;
    private static final Reg PANEL = RDX;
    private static final Reg STEPS = RCX;
    private static final Reg TILE = R8;
    private static final Reg ROWS_LEFT = R9;
    private static final Reg WEIGHTS = RAX;
    private static final Reg PANEL_STRIDE = R10;
    private static final List<Reg> POINTERS = List.of(R11, RBX);
    private static final Reg STEPS_LEFT = R12;
    private static final Reg CONFIGURATION = R13;
    private static final Reg AHEAD = RBP;
    private static final Reg EXPANDED = RBP;
    private static final Reg NEXT_EXPANDED = R14;
    private static final Reg SPARE = R15;
    private static final List<Reg> SAVED = List.of(RBX, RBP, R12, R13, R14, R15);

    private final Assembler code = new Assembler(Width.ZMM);
    private final boolean adds;
    private final int prefetched;
    private final boolean expands;

    private TileCode(boolean adds, int prefetched) {
        this(adds, prefetched, false);
    }

    private TileCode(boolean adds, int prefetched, boolean expands) {
        this.adds = adds;
        this.prefetched = prefetched;
        this.expands = expands;
    }

    /** {@code (configuration)}: configures the thread's tiles by one of {@link TileConfigurations}. */
    static byte[] configure() {
        Assembler code = new Assembler(Width.ZMM);
        code.configureTiles(at(RDI, 0));
        code.returnFromVectors();
        return code.code();
    }

    /** {@code ()}: releases the tiles that {@link #configure} has set up. */
    static byte[] release() {
        Assembler code = new Assembler(Width.ZMM);
        code.releaseTiles();
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (a, row stride, panel, count of pairs of k, tile, rows, ahead)}: the product, as of {@link ProductCode}. Pairs are a multiple of
     * 16.
     *
     * @param adds whether sums go on from those in the tile
     * @param prefetched lines that are fetched at each 16 pairs, from {@code ahead} on; at least one
     */
    static byte[] product(boolean adds, int prefetched) {
        return new TileCode(adds, prefetched).product();
    }

    /**
     * {@code (a, row stride, panel, count of pairs of k, tile, rows, expanded)}: the product of up to 32 rows with a panel of 8-bit pairs. These
     * become bf16 at {@code expanded}, which has {@link #EXPANDED_BYTES}: those of the next tile while the last ones are multiplied.
     */
    static byte[] expandingProduct() {
        return new TileCode(false, 0, true).product();
    }

    /**
     * {@code (a, row stride, first panel, count of pairs of k, first tile, rows)}: the products of up to {@link #ROWS} rows with {@link
     * #PANELS_BESIDE} panels that follow each other. The processor fetches them side by side, and so more at once than of a single one.
     *
     * @param tileStride bytes from a panel's tile to the next panel's
     */
    static byte[] productBeside(int tileStride) {
        return new TileCode(false, 0).beside(tileStride);
    }

    /**
     * {@code (table, row stride, panel, count of pairs of k, tile, row groups)}: the product of rows of which each 16 lie at an address of the
     * table. Row groups are of 16, an even number. Tiles are configured.
     */
    static byte[] gatheredProduct() {
        return new TileCode(false, 0).gathered();
    }

    /**
     * {@code (a, row stride, panel, count of pairs of k, tile, rows)}: adds the product to the sums in the tile. Rows are a multiple of 32. Tiles
     * are configured.
     */
    static byte[] addedProduct() {
        return new TileCode(true, 0).added();
    }

    private byte[] product() {
        begin();
        Label many = code.label();
        Label few = code.label();
        Label single = code.label();
        Label end = code.label();
        code.compare(ROWS_LEFT, MOST_ROWS);
        code.jump(Condition.LESS, few);
        configure(MOST_ROWS);
        code.bind(many);
        wholeGroup();
        code.compare(ROWS_LEFT, MOST_ROWS);
        code.jump(Condition.NOT_LESS, many);
        code.bind(few);
        code.compare(ROWS_LEFT, 0);
        code.jump(Condition.EQUAL, end);
        code.move(CONFIGURATION, ROWS_LEFT);
        code.shiftLeft(CONFIGURATION, Integer.numberOfTrailingZeros(TileConfigurations.BYTES));
        code.move(RAX, TileConfigurations.ofProduct(0));
        code.configureTiles(at(RAX, CONFIGURATION, 1, 0));
        pointers();
        code.compare(ROWS_LEFT, ROWS);
        code.jump(Condition.NOT_GREATER, single);
        rows(2);
        code.jump(end);
        code.bind(single);
        rows(1);
        code.bind(end);
        code.releaseTiles();
        return end();
    }

    private byte[] beside(int tileStride) {
        begin();
        code.move(CONFIGURATION, ROWS_LEFT);
        code.shiftLeft(CONFIGURATION, Integer.numberOfTrailingZeros(TileConfigurations.BYTES));
        code.move(RAX, TileConfigurations.ofPanelsBeside(0));
        code.configureTiles(at(RAX, CONFIGURATION, 1, 0));
        List<Reg> panels = List.of(PANEL, R11, RBX);
        code.move(SPARE, STEPS);
        code.shiftLeft(SPARE, Integer.numberOfTrailingZeros(PAIRS * PANEL_ROW));
        for (int i = 1; i < panels.size(); i++) {
            code.address(panels.get(i), at(panels.get(i - 1), SPARE, 1, 0));
        }
        for (int sums = 0; sums < 2 * panels.size(); sums++) {
            code.clearTile(sums);
        }
        Label loop = code.label();
        code.bind(loop);
        code.loadTile(ROWS_BESIDE, at(A, ROW_STRIDE, 1, 0));
        for (int i = 0; i < panels.size(); i++) {
            for (int line = 0; line < PAIRS * PANEL_ROW; line += CACHE_LINE) {
                code.prefetch(at(panels.get(i), AHEAD_BESIDE_BYTES + line));
            }
            for (int half = 0; half < 2; half++) {
                code.loadTile(COLUMNS_BESIDE, at(panels.get(i), PANEL_STRIDE, 1, half * TILE_ROW));
                code.multiplyTiles(2 * i + half, ROWS_BESIDE, COLUMNS_BESIDE);
            }
            code.add(panels.get(i), PAIRS * PANEL_ROW);
        }
        code.add(A, TILE_ROW);
        code.subtract(STEPS, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        for (int i = 0; i < panels.size(); i++) {
            for (int half = 0; half < 2; half++) {
                code.storeTile(at(TILE, PANEL_STRIDE, 1, i * tileStride + half * TILE_ROW), 2 * i + half);
            }
        }
        code.releaseTiles();
        return end();
    }

    private byte[] added() {
        begin();
        Label loop = code.label();
        code.bind(loop);
        wholeGroup();
        code.compare(ROWS_LEFT, 0);
        code.jump(Condition.NOT_EQUAL, loop);
        return end();
    }

    private byte[] gathered() {
        begin();
        Label loop = code.label();
        code.bind(loop);
        for (int i = 0; i < 2; i++) {
            code.load(POINTERS.get(i), at(A, i * Long.BYTES));
        }
        rows(2);
        code.add(A, 2 * Long.BYTES);
        code.add(TILE, MOST_ROWS * PANEL_ROW);
        code.subtract(ROWS_LEFT, 2);
        code.jump(Condition.NOT_EQUAL, loop);
        return end();
    }

    private void begin() {
        SAVED.forEach(code::push);
        if (prefetched > 0 || expands) {
            // The seventh argument.
            code.load(expands ? EXPANDED : AHEAD, at(RSP, (SAVED.size() + 1) * Long.BYTES));
        }
        code.shiftRight(STEPS, Integer.numberOfTrailingZeros(PAIRS));
        code.move(PANEL_STRIDE, (long) PANEL_ROW);
    }

    private byte[] end() {
        SAVED.reversed().forEach(code::pop);
        code.returnFromVectors();
        return code.code();
    }

    /** Multiplies 32 rows, and goes on to those behind them. */
    private void wholeGroup() {
        pointers();
        rows(2);
        for (int i = 0; i < MOST_ROWS / 8; i++) {
            code.address(A, at(A, ROW_STRIDE, 8, 0));
        }
        code.add(TILE, MOST_ROWS * PANEL_ROW);
        code.subtract(ROWS_LEFT, MOST_ROWS);
    }

    private void configure(int rows) {
        code.move(RAX, TileConfigurations.ofProduct(rows));
        code.configureTiles(at(RAX, 0));
    }

    private void pointers() {
        code.move(POINTERS.getFirst(), A);
        code.address(POINTERS.get(1), at(A, ROW_STRIDE, 8, 0));
        code.address(POINTERS.get(1), at(POINTERS.get(1), ROW_STRIDE, 8, 0));
    }

    /** Emits the product of the pointers' rows, of one tile or of two. */
    private void rows(int rowTiles) {
        for (int row = 0; row < rowTiles; row++) {
            for (int column = 0; column < 2; column++) {
                if (adds) {
                    code.loadTile(2 * row + column, sums(row, column));
                } else {
                    code.clearTile(2 * row + column);
                }
            }
        }
        code.move(WEIGHTS, PANEL);
        code.move(STEPS_LEFT, STEPS);
        if (expands) {
            code.address(NEXT_EXPANDED, at(EXPANDED, EXPANDED_BYTES / 2));
            expand(EXPANDED);
        }
        Label loop = code.label();
        code.bind(loop);
        if (expands) {
            Label last = code.label();
            code.compare(STEPS_LEFT, 1);
            code.jump(Condition.EQUAL, last);
            expand(NEXT_EXPANDED);
            code.bind(last);
        }
        Reg columns = expands ? EXPANDED : WEIGHTS;
        for (int i = 0; i < prefetched; i++) {
            code.prefetchToSecondCache(at(AHEAD, i * CACHE_LINE));
        }
        code.loadTile(COLUMN_TILES, at(columns, PANEL_STRIDE, 1, 0));
        code.loadTile(ROW_TILES, at(POINTERS.getFirst(), ROW_STRIDE, 1, 0));
        code.multiplyTiles(0, ROW_TILES, COLUMN_TILES);
        code.loadTile(COLUMN_TILES + 1, at(columns, PANEL_STRIDE, 1, TILE_ROW));
        code.multiplyTiles(1, ROW_TILES, COLUMN_TILES + 1);
        if (rowTiles > 1) {
            code.loadTile(ROW_TILES + 1, at(POINTERS.get(1), ROW_STRIDE, 1, 0));
            code.multiplyTiles(2, ROW_TILES + 1, COLUMN_TILES);
            code.multiplyTiles(3, ROW_TILES + 1, COLUMN_TILES + 1);
        }
        if (expands) {
            code.move(SPARE, EXPANDED);
            code.move(EXPANDED, NEXT_EXPANDED);
            code.move(NEXT_EXPANDED, SPARE);
        } else {
            code.add(WEIGHTS, PAIRS * PANEL_ROW);
        }
        if (prefetched > 0) {
            code.add(AHEAD, prefetched * CACHE_LINE);
        }
        for (int row = 0; row < rowTiles; row++) {
            code.add(POINTERS.get(row), TILE_ROW);
        }
        code.subtract(STEPS_LEFT, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        for (int row = 0; row < rowTiles; row++) {
            for (int column = 0; column < 2; column++) {
                code.storeTile(sums(row, column), 2 * row + column);
            }
        }
    }

    /** Weights of 8 bits for 16 pairs of k become bf16. */
    private void expand(Reg to) {
        for (int i = 0; i < PAIRS; i++) {
            code.prefetchToSecondCache(at(WEIGHTS, (int) AHEAD_BYTES + i * PANEL_ROW_OF_BYTES));
            for (int vector = 0; vector < ProductCode.VECTORS; vector++) {
                int register = 4 * (i % 4) + 2 * vector;
                int from = i * PANEL_ROW_OF_BYTES + vector * TILE_ROW / 2;
                ProductCode.pairs(code, register, register + 1, WEIGHTS, from);
                code.store(at(to, i * PANEL_ROW + vector * TILE_ROW), register);
            }
        }
        code.add(WEIGHTS, PAIRS * PANEL_ROW_OF_BYTES);
    }

    private static Mem sums(int row, int column) {
        return at(TILE, PANEL_STRIDE, 1, row * ROWS * PANEL_ROW + column * TILE_ROW);
    }
}
