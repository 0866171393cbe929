package baton.connectors.onesided;

import baton.kv.KvCache;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The table of checksums beside a rank's pool. An entry has the generation of a block and, once the block is complete, its checksums:
 * for each key/value head and each {@link #unit} of slots one digest of the bytes in all layers, so that a reader with other heads or
 * another block size can check the bytes read. The owner chooses the kind of the digests, and a reader computes the same.
 *
 * <p>An entry is {@code [generation: long | sealed generation: long | checksums: int[head][unit]]}, little-endian, and a multiple of
 * 8 bytes; checksums of {@link KvDigest#SUM61} are {@code long}. A block is sealed, that is its checksums are valid, if both generations
 * are equal. The owner writes the generation before it writes the block, and a reader reads the entry after it has read the block, so
 * that it detects a block that was reused meanwhile.
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
    private final KvCache cache;
    private final KvDigest kind;
    private final KvLayout layout;

    /** A rank's table, for peers: its address in the rank's process. */
    public record Table(KvDigest kind, long address) {}

    /** Neighbouring slots of one head of a block, in all layers. */
    record Unit(int block, int head, int slot, int slots) {
        private Runs runs(KvLayout layout) {
            return new Runs(
                    block * layout.blockBytes() + layout.entryOffset(0, head, slot),
                    layout.layerBytes(),
                    layout.layers(),
                    slots * layout.entryBytes());
        }
    }

    /** @param table zeros; {@link #entryBytes} for each block */
    public BlockChecksums(MemorySegment table, KvCache cache, KvDigest kind) {
        this.table = table;
        this.cache = cache;
        this.kind = kind;
        this.layout = cache.layout();
    }

    /** Slots of a block of this size that share a checksum. */
    static int unit(int blockSize) {
        return blockSize % MOST_SLOTS == 0 ? MOST_SLOTS : blockSize;
    }

    /** Bytes of an entry. */
    public static long entryBytes(KvLayout layout, KvDigest kind) {
        long checksums = (long) layout.kvHeads() * (layout.blockSize() / unit(layout.blockSize()));
        return Math.ceilDiv(CHECKSUMS + checksums * kind.bytes(), Long.BYTES) * Long.BYTES;
    }

    /** Where in an entry the checksum is of a unit of one head. */
    private static long checksumAt(KvLayout layout, KvDigest kind, int head, int slot) {
        int unit = unit(layout.blockSize());
        return CHECKSUMS + ((long) head * (layout.blockSize() / unit) + slot / unit) * kind.bytes();
    }

    private static long checksum(MemorySegment memory, long at, KvDigest kind) {
        return switch (kind) {
            case NONE -> 0;
            case CRC32C -> Integer.toUnsignedLong(memory.get(INT, at));
            case SUM61 -> memory.get(LONG, at);
        };
    }

    private void write(long at, long checksum) {
        switch (kind) {
            case NONE -> {}
            case CRC32C -> table.set(INT, at, (int) checksum);
            case SUM61 -> table.set(LONG, at, checksum);
        }
    }

    /** The block is about to be written by another request. */
    public void open(int block, long generation) {
        long entry = entry(block);
        table.set(LONG, entry + SEALED, 0L);
        table.set(LONG, entry, generation);
        VarHandle.fullFence();
    }

    private boolean digestsLayers() {
        return kind != KvDigest.NONE && !isOfDevice(cache);
    }

    /** Begins the checksums of blocks that this step completes layer by layer. */
    public Batch begin(int[] blocks) {
        return new Batch(blocks);
    }

    /**
     * Blocks that are completed together. The host adds each layer to their checksums when it is complete, while it is in the processor's
     * cache; a device digests all layers at the end.
     */
    public final class Batch {
        private final int[] blocks;
        private final List<Unit> units = new ArrayList<>();
        /** For each unit, the digest over the layers so far. */
        private final List<KvDigest.Running> digests = new ArrayList<>();

        private int layers;

        private Batch(int[] blocks) {
            this.blocks = blocks;
            int slots = unit(layout.blockSize());
            for (int block : blocks) {
                for (int head = 0; head < layout.kvHeads(); head++) {
                    for (int slot = 0; slot < layout.blockSize(); slot += slots) {
                        units.add(new Unit(block, head, slot, slots));
                        if (digestsLayers()) {
                            digests.add(kind.begin());
                        }
                    }
                }
            }
        }

        /** The blocks have the layers up to this one. */
        public void complete(int layer) {
            if (!digestsLayers()) {
                return;
            }
            for (; layers <= layer; layers++) {
                for (int i = 0; i < units.size(); i++) {
                    add(digests.get(i), cache, units.get(i), layers);
                }
            }
        }

        /** The blocks are complete. */
        public void finish() {
            complete(layout.layers() - 1);
            long[] values = digestsLayers()
                    ? digests.stream().mapToLong(KvDigest.Running::value).toArray()
                    : digests(cache, kind, units);
            for (int block : blocks) {
                table.set(LONG, entry(block) + SEALED, 0L);
            }
            for (int i = 0; i < values.length; i++) {
                Unit unit = units.get(i);
                write(entry(unit.block()) + checksumAt(layout, kind, unit.head(), unit.slot()), values[i]);
            }
            VarHandle.releaseFence();
            for (int block : blocks) {
                table.set(LONG, entry(block) + SEALED, table.get(LONG, entry(block)));
            }
        }
    }

    /** The generation of the block's content, or of the content being written. */
    long generation(int block) {
        return table.get(LONG, entry(block));
    }

    private long entry(int block) {
        return block * entryBytes(layout, kind);
    }

    /**
     * The mismatch of a copied unit of one head of a block.
     *
     * @param entry the owner's entry for the block
     * @param layout the owner's
     * @param kind the owner's
     * @param unit of the owner's rank
     * @param checksum of the copy
     */
    static Optional<Rejection> check(
            MemorySegment entry, KvLayout layout, KvDigest kind, long generation, Unit unit, long checksum) {
        if (entry.get(LONG, 0) != generation) {
            return Optional.of(Rejection.STALE);
        }
        if (entry.get(LONG, SEALED) != generation) {
            return Optional.of(Rejection.TORN);
        }
        return checksum(entry, checksumAt(layout, kind, unit.head(), unit.slot()), kind) == checksum
                ? Optional.empty()
                : Optional.of(Rejection.CORRUPT);
    }

    static boolean isOfDevice(KvCache cache) {
        return cache.memory() instanceof KvMemory.Device;
    }

    /** Digests of units of a pool. Their bytes are in place. Waits for the device, if it is a device's pool. */
    static long[] digests(KvCache cache, KvDigest kind, List<Unit> units) {
        long[] digests = new long[units.size()];
        if (kind == KvDigest.NONE) {
            return digests;
        }
        KvLayout layout = cache.layout();
        switch (cache.memory()) {
            case KvMemory.Device device ->
                device.copier()
                        .digest(
                                kind,
                                units.stream().map(unit -> unit.runs(layout)).toList(),
                                digests,
                                KvFence.PASSED)
                        .await();
            case KvMemory.Host _ -> {
                for (int i = 0; i < digests.length; i++) {
                    KvDigest.Running digest = kind.begin();
                    for (int layer = 0; layer < layout.layers(); layer++) {
                        add(digest, cache, units.get(i), layer);
                    }
                    digests[i] = digest.value();
                }
            }
        }
        return digests;
    }

    /** Adds one layer to a digest of a unit. All layers make it, in their order. */
    static void add(KvDigest.Running digest, KvCache cache, Unit unit, int layer) {
        Runs runs = unit.runs(cache.layout());
        digest.add(cache.host()
                .asSlice(runs.first() + layer * runs.stride(), runs.bytes())
                .asByteBuffer());
    }
}
