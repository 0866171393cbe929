package baton.engine.kernel;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The configurations of the matrix unit: for products of 1 to 32 rows, see {@link TileCode}, and for decode of 1 to 16 queries, see {@link
 * TileDecodeCode}. A configuration is {@code [palette: 1 | start row: 1 | reserved: 14 | bytes of a row: short[16] | rows:
 * byte[16]]}, the last two of each tile.
 *
 * @see <a href="https://www.intel.com/sdm">Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 18.3</a>
 */
final class TileConfigurations {
    /** The bytes of a configuration. */
    static final int BYTES = 64;

    private static final int ROW_BYTES = 64;
    private static final int ROW_BYTES_AT = 16;
    private static final int ROWS_AT = 48;

    private static final MemorySegment PRODUCTS = make(TileCode.MOST_ROWS);
    private static final MemorySegment BESIDE = make(TileCode.ROWS);
    private static final MemorySegment DECODE = make(TileCode.ROWS);

    static {
        for (int rows = 1; rows <= TileCode.MOST_ROWS; rows++) {
            int first = Math.min(rows, TileCode.ROWS);
            int second = rows - first;
            set(PRODUCTS, rows, first, first, second, second, first, second, TileCode.ROWS, TileCode.ROWS);
        }
        for (int rows = 1; rows <= TileCode.ROWS; rows++) {
            set(BESIDE, rows, rows, rows, rows, rows, rows, rows, rows, TileCode.ROWS);
        }
        for (int queries = 1; queries <= TileCode.ROWS; queries++) {
            set(DECODE, queries, TileDecodeCode.rows(queries));
        }
    }

    private TileConfigurations() {}

    /** @param rows from 1 to {@link TileCode#MOST_ROWS}, each {@link #BYTES} behind the one of a row less */
    static long ofProduct(int rows) {
        return PRODUCTS.address() + (long) rows * BYTES;
    }

    /** @param rows from 1 to {@link TileCode#ROWS}, each {@link #BYTES} behind the one of a row less; see {@link TileCode#productBeside} */
    static long ofPanelsBeside(int rows) {
        return BESIDE.address() + (long) rows * BYTES;
    }

    /** @param queries from 1 to {@link TileCode#ROWS} */
    static long ofDecode(int queries) {
        return DECODE.address() + (long) queries * BYTES;
    }

    private static MemorySegment make(int most) {
        return Arena.global().allocate((most + 1L) * BYTES, BYTES);
    }

    /** @param tiles rows of each tile */
    private static void set(MemorySegment memory, int index, int... tiles) {
        MemorySegment one = memory.asSlice((long) index * BYTES, BYTES);
        one.set(ValueLayout.JAVA_BYTE, 0, (byte) 1);
        for (int tile = 0; tile < tiles.length; tile++) {
            if (tiles[tile] > 0) {
                one.set(ValueLayout.JAVA_SHORT, ROW_BYTES_AT + 2L * tile, (short) ROW_BYTES);
                one.set(ValueLayout.JAVA_BYTE, (long) ROWS_AT + tile, (byte) tiles[tile]);
            }
        }
    }
}
