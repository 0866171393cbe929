package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.store.StoreFormat;
import baton.store.remote.ValueHeader;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * Names of a store's objects, and their bytes beside those of their share.
 *
 * <p>In a namespace of Baton's own, a {@link ValueHeader} with the magic {@code BTMC}, of the format and the share.
 *
 * <p>In a namespace of vLLM's, nothing, as vLLM reads and writes the same objects. The checksum of one that Baton wrote, 4 bytes, is then
 * an object of its own: its key is the first one's with {@value #CHECKSUM_SUFFIX} at the end.
 */
final class ObjectFormat {
    static final String CHECKSUM_SUFFIX = "@crc32c";

    private static final int CHECKSUM_BYTES = 4;
    private static final int MAGIC = 0x42544d43;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);
    private static final long ALIGNMENT = 64;

    private final boolean framed;
    private final long headerBytes;
    private final List<ObjectLayout.Share> shares;
    private final List<String> keyStarts;
    private final List<ValueHeader> headers;

    /** The offset of each share's object in the memory of a key. */
    private final long[] offsets;

    private final long bytes;

    private ObjectFormat(StoreFormat format, MooncakeNames names, String namespace, boolean framed) {
        this.framed = framed;
        headerBytes = framed ? ValueHeader.BYTES : 0;
        shares = ObjectLayout.of(format, names.tensorShares(), names.pipelineShares())
                .shares();
        ObjectKeys keys = ObjectKeys.of(names.prefix(), names.model(), namespace);
        keyStarts = shares.stream().map(keys::of).toList();
        headers = shares.stream()
                .map(share -> new ValueHeader(
                        MAGIC,
                        "%s tp_rank=%d pp_rank=%d bytes=%d"
                                .formatted(format.describe(), share.tensor(), share.pipeline(), share.bytes()),
                        share.bytes()))
                .toList();
        offsets = new long[shares.size()];
        long end = 0;
        for (int i = 0; i < offsets.length; i++) {
            offsets[i] = end;
            end += aligned(headerBytes + shares.get(i).bytes()) + ALIGNMENT;
        }
        bytes = end;
    }

    private static long aligned(long bytes) {
        return Math.ceilDiv(bytes, ALIGNMENT) * ALIGNMENT;
    }

    /** Baton's own objects in Base64, under names distinct from those of plain bytes. */
    static ObjectFormat ofRest(StoreFormat format, MooncakeNames names) {
        return new ObjectFormat(
                format, names, "@store_format:baton_base64_" + new ValueHeader(format).formatName(), true);
    }

    /** Baton's own objects. */
    static ObjectFormat ofBaton(StoreFormat format, MooncakeNames names) {
        return new ObjectFormat(format, names, "@store_format:baton_" + new ValueHeader(format).formatName(), true);
    }

    /** The objects that vLLM writes with the number of tensor shares as {@code store_tp_size}. */
    static ObjectFormat ofVllm(StoreFormat format, MooncakeNames names) {
        if (format.blocksPerChunk() != 1) {
            throw new IllegalArgumentException(
                    "blocksPerChunk=" + format.blocksPerChunk() + ", vLLM's objects have one block");
        }
        String namespace = format.layout().kvHeads() == 1
                ? "@store_pp:%d@store_format:tp_shared_mqa".formatted(names.pipelineShares())
                : "@store_tp:%d@store_pp:%d@store_format:tp_shared_lbhnc"
                        .formatted(names.tensorShares(), names.pipelineShares());
        return new ObjectFormat(format, names, namespace, false);
    }

    /** Whether objects have headers. */
    boolean isFramed() {
        return framed;
    }

    /** Objects of a value. */
    int shares() {
        return shares.size();
    }

    /** Bytes of memory that the objects of a value take, with their checksums. */
    long bytes() {
        return bytes;
    }

    String name(int share, BlockHash key) {
        return ObjectKeys.key(keyStarts.get(share), key);
    }

    /** An object of the key of that index in a call's memory. */
    MemorySegment object(MemorySegment memory, int key, int share) {
        return memory.asSlice(
                key * bytes + offsets[share], headerBytes + shares.get(share).bytes());
    }

    MemorySegment checksum(MemorySegment memory, int key, int share) {
        long object = headerBytes + shares.get(share).bytes();
        return memory.asSlice(key * bytes + offsets[share] + aligned(object), CHECKSUM_BYTES);
    }

    /** Makes an object of its share of a value. */
    void gather(int share, MemorySegment value, MemorySegment object, BlockHash key) {
        shares.get(share).gather(value, object.asSlice(headerBytes));
        if (framed) {
            headers.get(share).write(object, key);
        }
    }

    void scatter(int share, MemorySegment object, MemorySegment value) {
        shares.get(share).scatter(object.asSlice(headerBytes), value);
    }

    /** {@link Outcome#DONE}, or the fault of an object that has a header. */
    Outcome check(int share, MemorySegment object, BlockHash key) {
        return headers.get(share).check(object, key).map(Outcome::of).orElse(Outcome.DONE);
    }

    /** Writes the checksum of an object without a header into memory for its own. */
    static void writeChecksum(MemorySegment object, MemorySegment to) {
        to.set(INT, 0, crc(object));
    }

    static Outcome checkChecksum(MemorySegment object, MemorySegment checksum) {
        return checksum.get(INT, 0) == crc(object) ? Outcome.DONE : Outcome.CHECKSUM;
    }

    private static int crc(MemorySegment object) {
        CRC32C crc = new CRC32C();
        crc.update(object.asByteBuffer());
        return (int) crc.getValue();
    }

    /** Whether an object that does not verify is removed: this store must not remove vLLM's objects of another model or type. */
    boolean mayRemove(Outcome damage) {
        return framed || damage == Outcome.CHECKSUM;
    }

    /** @throws ConfigException if an object is larger */
    void requireAtMost(long most) {
        long largest = headerBytes
                + shares.stream().mapToLong(ObjectLayout.Share::bytes).max().orElseThrow();
        if (largest > most) {
            throw new ConfigException(
                    "block_size",
                    "makes objects of %d bytes in Mooncake's store, which takes at most %d: use a smaller block_size, or"
                                    .formatted(largest, most)
                            + " a larger tensor_parallel_size");
        }
    }
}
