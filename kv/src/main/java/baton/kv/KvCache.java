package baton.kv;

import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

/**
 * A pool of KV blocks in one contiguous region of memory, of the host or of a device: block {@code b} is the bytes {@code [b * blockBytes, (b +
 * 1) * blockBytes)}, laid out as {@link KvLayout} says. The region's owner decides how long it lives and which threads may write;
 * this record only says where things are.
 *
 * @param memory the region, at least {@code blocks * layout.blockBytes()} long
 * @param layout of a block; its layers are those of one group
 * @param blocks number of blocks
 * @param layerNames the name of each layer in vLLM's terms, e.g. {@code model.layers.0.self_attn.attn}
 * @param groups the layers that share blocks
 */
public record KvCache(KvMemory memory, KvLayout layout, int blocks, List<String> layerNames, KvGroups groups) {
    /** A pool of blocks that hold all layers. */
    public KvCache(KvMemory memory, KvLayout layout, int blocks, List<String> layerNames) {
        this(memory, layout, blocks, layerNames, KvGroups.one(layout.layers()));
    }

    /** A pool in host memory that only this process can map. */
    public KvCache(MemorySegment memory, KvLayout layout, int blocks, List<String> layerNames) {
        this(new KvMemory.Host(memory, Optional.empty()), layout, blocks, layerNames);
    }

    public KvCache {
        Objects.requireNonNull(memory, "memory");
        layerNames = List.copyOf(layerNames);
        if (memory.bytes() < blocks * layout.blockBytes()) {
            throw new IllegalArgumentException("memory of %d bytes is smaller than blocks=%d of %d bytes"
                    .formatted(memory.bytes(), blocks, layout.blockBytes()));
        }
        if (layerNames.size() != groups.layers()) {
            throw new IllegalArgumentException(
                    "layerNames has %d names for layers=%d".formatted(layerNames.size(), groups.layers()));
        }
        if (layout.layers() != groups.layersOfBlock()) {
            throw new IllegalArgumentException("the layout has layers=%d for groups of up to %d layers"
                    .formatted(layout.layers(), groups.layersOfBlock()));
        }
    }

    /**
     * The bytes of the pool.
     *
     * @throws IllegalStateException if they are a device's
     */
    public MemorySegment host() {
        return memory.host();
    }

    /**
     * The bytes of a block, all layers.
     *
     * @throws IllegalStateException if they are a device's
     */
    public MemorySegment block(int block) {
        Objects.checkIndex(block, blocks);
        return host().asSlice(block * layout.blockBytes(), layout.blockBytes());
    }

    /**
     * The bytes of one layer of a block.
     *
     * @throws IllegalStateException if they are a device's
     */
    public MemorySegment layer(int block, int layer) {
        return host().asSlice(layerStart(block, layer), layout.layerBytes());
    }

    /** Offset in {@link #memory} of one layer of a block. */
    public long layerStart(int block, int layer) {
        Objects.checkIndex(block, blocks);
        return block * layout.blockBytes() + layout.layerOffset(groups.slotOf(layer));
    }

    /**
     * Offset in {@link #memory} of a position's key of a head; its value follows the key.
     *
     * @param blockTable of the position's sequence, of the layer's group
     */
    public long entryStart(int[] blockTable, int layer, int head, int position) {
        int blockSize = layout.blockSize();
        return layerStart(blockTable[position / blockSize], layer)
                + head * layout.headBytes()
                + position % blockSize * layout.entryBytes();
    }
}
