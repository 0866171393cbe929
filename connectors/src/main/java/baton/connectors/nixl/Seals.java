package baton.connectors.nixl;

import baton.kv.KvLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The table of seals beside a rank's pool. An entry says which generation of a block is in the pool, and, once it is complete, a
 * digest of its bytes: one CRC32C for each key/value head, over its bytes in all layers, so that a reader that takes only some
 * heads, or has larger blocks, can check what it took.
 *
 * <p>An entry is {@code [generation: long | sealed generation: long | digest of each head: int...]}, little-endian, and a
 * multiple of 8 bytes. A block is sealed if both generations are equal. The owner writes the generation before it writes the
 * block, and a reader reads the entry after it has read the block, so that a block which was given away meanwhile shows.
 *
 * <p>Not thread-safe.
 */
final class Seals {
    private static final ValueLayout.OfLong LONG =
            ValueLayout.JAVA_LONG.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final long SEALED = Long.BYTES;
    private static final long DIGESTS = 2L * Long.BYTES;

    private final MemorySegment table;
    private final MemorySegment pool;
    private final KvLayout layout;

    /**
     * @param table zeros; {@link #entryBytes} for each block
     * @param pool the blocks
     */
    Seals(MemorySegment table, MemorySegment pool, KvLayout layout) {
        this.table = table;
        this.pool = pool;
        this.layout = layout;
    }

    /** Bytes of an entry. */
    static long entryBytes(int kvHeads) {
        return Math.ceilDiv(DIGESTS + (long) kvHeads * Integer.BYTES, Long.BYTES) * Long.BYTES;
    }

    /** The block is about to be written by another request. */
    void open(int block, long generation) {
        long entry = entry(block);
        table.set(LONG, entry + SEALED, 0L);
        table.set(LONG, entry, generation);
        VarHandle.fullFence();
    }

    /** The block is complete. */
    void seal(int block) {
        long entry = entry(block);
        table.set(LONG, entry + SEALED, 0L);
        CRC32C crc = new CRC32C();
        for (int head = 0; head < layout.kvHeads(); head++) {
            table.set(
                    INT,
                    entry + DIGESTS + (long) head * Integer.BYTES,
                    digest(crc, pool, layout, block, head, 0, layout.blockSize()));
        }
        VarHandle.releaseFence();
        table.set(LONG, entry + SEALED, table.get(LONG, entry));
    }

    /** Of what is in the block, or is being written to it. */
    long generation(int block) {
        return table.get(LONG, entry(block));
    }

    private long entry(int block) {
        return block * entryBytes(layout.kvHeads());
    }

    /**
     * What is wrong with a copy of one head of a block.
     *
     * @param entry the owner's entry for the block
     * @param head of the owner's rank
     * @param digest of the copy
     */
    static Optional<Rejection> check(MemorySegment entry, long generation, int head, int digest) {
        if (entry.get(LONG, 0) != generation) {
            return Optional.of(Rejection.STALE);
        }
        if (entry.get(LONG, SEALED) != generation) {
            return Optional.of(Rejection.TORN);
        }
        return entry.get(INT, DIGESTS + (long) head * Integer.BYTES) == digest
                ? Optional.empty()
                : Optional.of(Rejection.CORRUPT);
    }

    /** Digest of the slots {@code [slot, slot + slots)} of one head of a block, in all layers. */
    static int digest(CRC32C crc, MemorySegment pool, KvLayout layout, int block, int head, int slot, int slots) {
        crc.reset();
        ByteBuffer bytes = pool.asSlice(block * layout.blockBytes(), layout.blockBytes())
                .asByteBuffer();
        int length = Math.toIntExact(slots * layout.entryBytes());
        for (int layer = 0; layer < layout.layers(); layer++) {
            int at = Math.toIntExact(layout.entryOffset(layer, head, slot));
            crc.update(bytes.limit(at + length).position(at));
        }
        return (int) crc.getValue();
    }
}
