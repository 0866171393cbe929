package baton.connectors.onesided;

import baton.kv.KvLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The table of checksums beside a rank's pool. An entry has the generation of a block and, once the block is complete, its checksums:
 * for each key/value head and each {@link #unit} of slots one CRC32C over the bytes in all layers, so that a reader with other heads or
 * another block size can check what it has read.
 *
 * <p>An entry is {@code [generation: long | sealed generation: long | checksums: int[head][unit]]}, little-endian, and a multiple of
 * 8 bytes. A block is sealed, that is its checksums are valid, if both generations are equal. The owner writes the generation before it
 * writes the block, and a reader reads the entry after it has read the block, so that it detects a block that was reused meanwhile.
 *
 * <p>Not thread-safe.
 */
public final class BlockChecksums {
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final long SEALED = Long.BYTES;
    private static final long CHECKSUMS = 2L * Long.BYTES;
    private static final int MOST_SLOTS = 16;

    private final MemorySegment table;
    private final MemorySegment pool;
    private final KvLayout layout;

    /**
     * @param table zeros; {@link #entryBytes} for each block
     * @param pool the blocks
     */
    public BlockChecksums(MemorySegment table, MemorySegment pool, KvLayout layout) {
        this.table = table;
        this.pool = pool;
        this.layout = layout;
    }

    /** Slots of a block of this size that share a checksum. */
    static int unit(int blockSize) {
        return blockSize % MOST_SLOTS == 0 ? MOST_SLOTS : blockSize;
    }

    /** Bytes of an entry. */
    public static long entryBytes(KvLayout layout) {
        long checksums = (long) layout.kvHeads() * (layout.blockSize() / unit(layout.blockSize()));
        return Math.ceilDiv(CHECKSUMS + checksums * Integer.BYTES, Long.BYTES) * Long.BYTES;
    }

    /** Where in an entry the checksum is of a unit of one head. */
    private static long checksumAt(KvLayout layout, int head, int slot) {
        int unit = unit(layout.blockSize());
        return CHECKSUMS + ((long) head * (layout.blockSize() / unit) + slot / unit) * Integer.BYTES;
    }

    /** The block is about to be written by another request. */
    public void open(int block, long generation) {
        long entry = entry(block);
        table.set(LONG, entry + SEALED, 0L);
        table.set(LONG, entry, generation);
        VarHandle.fullFence();
    }

    /** Begins the checksums of blocks that this step completes layer by layer. */
    public Batch begin(int[] blocks) {
        return new Batch(blocks);
    }

    /** Blocks that are completed together. Each layer is added to their checksums when it is complete, while it is in the processor's cache. */
    public final class Batch {
        private final int[] blocks;
        /** By block, head and unit: over the layers so far. */
        private final CRC32C[] checksums;

        private int layers;

        private Batch(int[] blocks) {
            this.blocks = blocks;
            int units = layout.blockSize() / unit(layout.blockSize());
            checksums = new CRC32C[blocks.length * layout.kvHeads() * units];
            Arrays.setAll(checksums, _ -> new CRC32C());
        }

        /** The blocks have the layers up to this one. */
        public void complete(int layer) {
            for (; layers <= layer; layers++) {
                int next = 0;
                int unit = unit(layout.blockSize());
                for (int block : blocks) {
                    ByteBuffer bytes = bytes(pool, layout, block);
                    for (int head = 0; head < layout.kvHeads(); head++) {
                        for (int slot = 0; slot < layout.blockSize(); slot += unit) {
                            update(checksums[next++], bytes, layout, layers, head, slot, unit);
                        }
                    }
                }
            }
        }

        /** The blocks are complete. */
        public void finish() {
            complete(layout.layers() - 1);
            int unit = unit(layout.blockSize());
            for (int block : blocks) {
                table.set(LONG, entry(block) + SEALED, 0L);
            }
            int next = 0;
            for (int block : blocks) {
                for (int head = 0; head < layout.kvHeads(); head++) {
                    for (int slot = 0; slot < layout.blockSize(); slot += unit) {
                        table.set(
                                INT, entry(block) + checksumAt(layout, head, slot), (int) checksums[next++].getValue());
                    }
                }
            }
            VarHandle.releaseFence();
            for (int block : blocks) {
                table.set(LONG, entry(block) + SEALED, table.get(LONG, entry(block)));
            }
        }
    }

    /** Generation of the block's content, or of what is being written to it. */
    long generation(int block) {
        return table.get(LONG, entry(block));
    }

    private long entry(int block) {
        return block * entryBytes(layout);
    }

    /**
     * The mismatch of a copied unit of one head of a block.
     *
     * @param entry the owner's entry for the block
     * @param layout the owner's
     * @param head of the owner's rank
     * @param slot the unit's first
     * @param checksum of the copy
     */
    static Optional<Rejection> check(
            MemorySegment entry, KvLayout layout, long generation, int head, int slot, int checksum) {
        if (entry.get(LONG, 0) != generation) {
            return Optional.of(Rejection.STALE);
        }
        if (entry.get(LONG, SEALED) != generation) {
            return Optional.of(Rejection.TORN);
        }
        return entry.get(INT, checksumAt(layout, head, slot)) == checksum
                ? Optional.empty()
                : Optional.of(Rejection.CORRUPT);
    }

    /** Checksum of the slots {@code [slot, slot + slots)} of one head of a block, in all layers. */
    static int checksum(CRC32C crc, MemorySegment pool, KvLayout layout, int block, int head, int slot, int slots) {
        crc.reset();
        ByteBuffer bytes = bytes(pool, layout, block);
        for (int layer = 0; layer < layout.layers(); layer++) {
            update(crc, bytes, layout, layer, head, slot, slots);
        }
        return (int) crc.getValue();
    }

    /** Adds one layer to such a checksum. All layers make it, in their order. */
    static void update(
            CRC32C crc, MemorySegment pool, KvLayout layout, int block, int layer, int head, int slot, int slots) {
        update(crc, bytes(pool, layout, block), layout, layer, head, slot, slots);
    }

    private static void update(
            CRC32C crc, ByteBuffer block, KvLayout layout, int layer, int head, int slot, int slots) {
        int at = Math.toIntExact(layout.entryOffset(layer, head, slot));
        crc.update(
                block.limit(at + Math.toIntExact(slots * layout.entryBytes())).position(at));
    }

    private static ByteBuffer bytes(MemorySegment pool, KvLayout layout, int block) {
        return pool.asSlice(block * layout.blockBytes(), layout.blockBytes()).asByteBuffer();
    }
}
