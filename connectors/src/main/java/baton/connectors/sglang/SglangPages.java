package baton.connectors.sglang;

import baton.connectors.ConnectorRuntime.Memory;
import baton.connectors.onesided.PromptPlan.Ready;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.transfer.Range;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * Memory in SGLang's order, in which prompts lie while they are transferred: for each layer a buffer of keys and one of values, in which a
 * page is {@code [token][kv head][head dim]}, and rows with the other data for a decode instance, SGLang's {@code MetadataBuffers}. There
 * are as many pages as the pool has blocks. The lowest free ones are taken, and pages that are never taken occupy no memory.
 *
 * <p>The rank's thread owns it, but for the copies.
 */
final class SglangPages {
    /** Bytes in a row of each buffer of {@code MetadataBuffers.get_buf_infos}, without its options. */
    private static final int[] ROW_BYTES = {64, 64, 64, 64, 512, 512, 64, 128, 64, 64, 64};

    private static final int TOKENS = 0;
    private static final int CACHED = 1;
    private static final int ROOM = 9;
    /** The last one is optional: SGLang's own checksums are of another kind. */
    private static final int CHECKSUM = 10;

    /** Rooms are numbers from 0. */
    private static final long NO_ROOM = -1;

    private static final int ROWS = 4096;
    /** Beside a checksum of this class. */
    private static final long SIGNATURE = 0x4e4f_5441_42L;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    private final KvCache cache;
    private final KvLayout layout;
    private final MemorySegment memory;
    private final long itemBytes;
    private final FreeNumbers pages;
    private final FreeNumbers rows = new FreeNumbers(ROWS);

    /** @param memory of {@link #bytes} */
    SglangPages(KvCache cache, Memory memory) {
        this.cache = cache;
        this.layout = cache.layout();
        this.memory = memory.region().memory();
        this.itemBytes = itemBytes(layout);
        this.pages = new FreeNumbers(cache.blocks());
    }

    static long bytes(KvCache cache) {
        return 2L * cache.layout().layers() * cache.blocks() * itemBytes(cache.layout())
                + ROWS * rowOffset(ROW_BYTES.length);
    }

    private static long itemBytes(KvLayout layout) {
        return layout.layerBytes() / 2;
    }

    private static long rowOffset(int buffer) {
        long offset = 0;
        for (int before = 0; before < buffer; before++) {
            offset += ROW_BYTES[before];
        }
        return offset;
    }

    /** Numbers below a bound that are free; the lowest are taken first. */
    private static final class FreeNumbers {
        private final BitSet free = new BitSet();

        private FreeNumbers(int count) {
            free.set(0, count);
        }

        private Optional<int[]> take(int count) {
            if (free.cardinality() < count) {
                return Optional.empty();
            }
            int[] taken = free.stream().limit(count).toArray();
            for (int number : taken) {
                free.clear(number);
            }
            return Optional.of(taken);
        }

        private void give(int... numbers) {
            for (int number : numbers) {
                free.set(number);
            }
        }
    }

    /**
     * Pages and a row of one prompt.
     *
     * @param pages in the order of the prompt's blocks
     */
    record Place(int[] pages, int row) {}

    /** Takes free pages and a row; empty if there are too few. */
    Optional<Place> take(int count) {
        Optional<int[]> row = rows.take(1);
        if (row.isEmpty()) {
            return Optional.empty();
        }
        Optional<Place> place = pages.take(count).map(taken -> new Place(taken, row.get()[0]));
        if (place.isEmpty()) {
            rows.give(row.get());
        }
        return place;
    }

    void give(Place place) {
        pages.give(place.pages());
        rows.give(place.row());
    }

    /** Bytes of a page in each buffer. */
    long itemBytes() {
        return itemBytes;
    }

    /** Addresses of the buffers: keys of all layers, then values of all layers. */
    long[] kvBuffers() {
        long[] addresses = new long[2 * layout.layers()];
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = memory.address() + kvOffset(i);
        }
        return addresses;
    }

    private long kvOffset(int buffer) {
        return (long) buffer * cache.blocks() * itemBytes;
    }

    /** Addresses of the buffers that rows lie in. */
    long[] rowBuffers() {
        long[] addresses = new long[ROW_BYTES.length];
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = memory.address() + rowStart(i, 0);
        }
        return addresses;
    }

    private long rowStart(int buffer, int row) {
        return kvOffset(2 * layout.layers()) + ROWS * rowOffset(buffer) + (long) row * ROW_BYTES[buffer];
    }

    /** Copies blocks of the pool into pages; any thread. */
    void fill(int[] blocks, Place place) {
        move(blocks, place, true);
    }

    /** Copies pages into blocks of the pool; any thread. */
    void empty(Place place, int[] blocks) {
        move(blocks, place, false);
    }

    private void move(int[] blocks, Place place, boolean toPages) {
        MemorySegment pool = cache.host();
        long bytes = (long) layout.headDim() * layout.dtype().bytes();
        for (int i = 0; i < blocks.length; i++) {
            for (int layer = 0; layer < layout.layers(); layer++) {
                long area = cache.layerStart(blocks[i], layer);
                for (int value = 0; value < 2; value++) {
                    long page = kvOffset(value * layout.layers() + layer) + place.pages()[i] * itemBytes;
                    for (int token = 0; token < layout.blockSize(); token++) {
                        for (int head = 0; head < layout.kvHeads(); head++) {
                            long inPool =
                                    area + head * layout.headBytes() + token * layout.entryBytes() + value * bytes;
                            long inPage = page + (token * (long) layout.kvHeads() + head) * bytes;
                            if (toPages) {
                                MemorySegment.copy(pool, inPool, memory, inPage, bytes);
                            } else {
                                MemorySegment.copy(memory, inPage, pool, inPool, bytes);
                            }
                        }
                    }
                }
            }
        }
    }

    /** Empties a row that a prefill instance is to write; it is of no room then. */
    void clearRow(int row) {
        for (int buffer = 0; buffer < ROW_BYTES.length; buffer++) {
            row(buffer, row).fill((byte) 0);
        }
        row(ROOM, row).set(LONG, 0, NO_ROOM);
    }

    private MemorySegment row(int buffer, int row) {
        return memory.asSlice(rowStart(buffer, row), ROW_BYTES[buffer]);
    }

    /** Writes the row of a prompt after its pages are filled; any thread. */
    void writeRow(Place place, Ready prompt) {
        clearRow(place.row());
        row(TOKENS, place.row()).set(INT, 0, prompt.token());
        row(CACHED, place.row()).set(INT, 0, prompt.cached());
        row(ROOM, place.row()).set(LONG, 0, Long.parseLong(prompt.key()));
        row(CHECKSUM, place.row()).set(LONG, 0, checksum(place.pages(), prompt.prompt()));
        row(CHECKSUM, place.row()).set(LONG, Long.BYTES, SIGNATURE);
    }

    /** The room that a prefill instance has written into a row. */
    long room(int row) {
        return row(ROOM, row).get(LONG, 0);
    }

    /** Whether a Baton instance has written the row, with a checksum. */
    boolean hasChecksum(int row) {
        return row(CHECKSUM, row).get(LONG, Long.BYTES) == SIGNATURE;
    }

    /** Whether the row's checksum is that of the pages and the prompt; any thread. */
    boolean isIntact(Place place, String prompt) {
        return row(CHECKSUM, place.row()).get(LONG, 0) == checksum(place.pages(), prompt);
    }

    private long checksum(int[] numbers, String prompt) {
        CRC32C crc = new CRC32C();
        crc.update(prompt.getBytes(StandardCharsets.UTF_8));
        for (int buffer = 0; buffer < 2 * layout.layers(); buffer++) {
            for (int page : numbers) {
                crc.update(memory.asSlice(kvOffset(buffer) + page * itemBytes, itemBytes)
                        .asByteBuffer());
            }
        }
        return crc.getValue();
    }

    /**
     * The ranges to write to a decode rank.
     *
     * @param rank has as many layers and as large pages
     * @param own pages and row here; the pages are as many as the rank's
     */
    List<Range> ranges(Place own, DecodeRank rank, WantedPages wanted) {
        List<Range> ranges = new ArrayList<>();
        long[] buffers = kvBuffers();
        for (int buffer = 0; buffer < buffers.length; buffer++) {
            for (int i = 0; i < own.pages().length; i++) {
                Range.append(
                        ranges,
                        new Range(
                                buffers[buffer] + own.pages()[i] * itemBytes,
                                rank.kvBuffers()[buffer] + wanted.pages()[i] * itemBytes,
                                itemBytes));
            }
        }
        int rowBuffers = Math.min(rank.rowBuffers().length, rank.isBaton() ? ROW_BYTES.length : CHECKSUM);
        for (int buffer = 0; buffer < rowBuffers; buffer++) {
            ranges.add(new Range(
                    memory.address() + rowStart(buffer, own.row()),
                    rank.rowBuffers()[buffer] + (long) wanted.row() * ROW_BYTES[buffer],
                    ROW_BYTES[buffer]));
        }
        return ranges;
    }
}
