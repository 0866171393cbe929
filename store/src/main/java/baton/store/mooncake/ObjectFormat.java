package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** What a store's objects are called and hold. */
final class ObjectFormat {
    private static final long ALIGNMENT = 64;

    private final ObjectCodec codec;
    private final List<ObjectLayout.Share> shares;
    private final List<String> keyStarts;
    private final List<MemorySegment> digests;

    /** By share, where an object begins in the memory of a key. */
    private final long[] offsets;

    private final long bytes;

    private ObjectFormat(StoreFormat format, MooncakeNames names, String namespace, ObjectCodec codec) {
        this.codec = codec;
        shares = ObjectLayout.of(format, names.tensorShares(), names.pipelineShares())
                .shares();
        ObjectKeys keys = ObjectKeys.of(names.prefix(), names.model(), namespace);
        keyStarts = shares.stream().map(keys::of).toList();
        digests = shares.stream()
                .map(share -> ObjectCodec.formatDigest(format, share))
                .toList();
        offsets = new long[shares.size()];
        long end = 0;
        for (int i = 0; i < offsets.length; i++) {
            offsets[i] = end;
            end += aligned(codec.headerBytes() + shares.get(i).bytes()) + ALIGNMENT;
        }
        bytes = end;
    }

    private static long aligned(long bytes) {
        return Math.ceilDiv(bytes, ALIGNMENT) * ALIGNMENT;
    }

    /** Baton's own objects in Base64, under names that nothing takes for those of bytes. */
    static ObjectFormat ofRest(StoreFormat format, MooncakeNames names) {
        return new ObjectFormat(
                format, names, "@store_format:baton_base64_" + ObjectCodec.formatName(format), ObjectCodec.FRAMED);
    }

    /** Baton's own objects. */
    static ObjectFormat ofBaton(StoreFormat format, MooncakeNames names) {
        return new ObjectFormat(
                format, names, "@store_format:baton_" + ObjectCodec.formatName(format), ObjectCodec.FRAMED);
    }

    /** The objects that vLLM writes whose {@code store_tp_size} is the number of tensor shares. */
    static ObjectFormat ofVllm(StoreFormat format, MooncakeNames names) {
        if (format.blocksPerChunk() != 1) {
            throw new IllegalArgumentException(
                    "blocksPerChunk=" + format.blocksPerChunk() + ", vLLM's objects have one block");
        }
        String namespace = format.layout().kvHeads() == 1
                ? "@store_pp:%d@store_format:tp_shared_mqa".formatted(names.pipelineShares())
                : "@store_tp:%d@store_pp:%d@store_format:tp_shared_lbhnc"
                        .formatted(names.tensorShares(), names.pipelineShares());
        return new ObjectFormat(format, names, namespace, ObjectCodec.RAW);
    }

    ObjectCodec codec() {
        return codec;
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
                key * bytes + offsets[share],
                codec.headerBytes() + shares.get(share).bytes());
    }

    MemorySegment checksum(MemorySegment memory, int key, int share) {
        long object = codec.headerBytes() + shares.get(share).bytes();
        return memory.asSlice(key * bytes + offsets[share] + aligned(object), ObjectCodec.CHECKSUM_BYTES);
    }

    /** Makes an object of its share of a value. */
    void gather(int share, MemorySegment value, MemorySegment object, BlockHash key) {
        shares.get(share).gather(value, object.asSlice(codec.headerBytes()));
        codec.seal(object, key, digests.get(share));
    }

    void scatter(int share, MemorySegment object, MemorySegment value) {
        shares.get(share).scatter(object.asSlice(codec.headerBytes()), value);
    }

    Outcome check(int share, MemorySegment object, BlockHash key) {
        return codec.check(object, key, digests.get(share));
    }

    /** Whether what does not verify is removed: among vLLM's objects what is of another model or type is not this store's to remove. */
    boolean mayRemove(Outcome damage) {
        return codec == ObjectCodec.FRAMED || damage == Outcome.CHECKSUM;
    }

    /** @throws ConfigException if an object is larger */
    void requireAtMost(long most) {
        long largest = codec.headerBytes()
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
