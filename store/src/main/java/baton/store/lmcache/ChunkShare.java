package baton.store.lmcache;

import baton.kv.BlockCopy;
import baton.kv.BlockCopy.TokenMajor;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;

/**
 * A rank's share of a chunk, as LMCache keeps it: {@code KV_2LTD}, which is {@code [K | V][layer][token][head][element]} with the rank's
 * layers and heads.
 *
 * @param format of the chunk in Baton's layout, with all layers and heads
 * @param firstLayer of the model, from 0
 * @param firstHead likewise, of the key/value heads
 */
public record ChunkShare(StoreFormat format, int firstLayer, int layers, int firstHead, int heads) {
    /**
     * The shares of all ranks, in the order of LMCache's {@code worker_id}: stage by stage.
     *
     * @param stageLayers layers of each pipeline stage
     */
    public static List<ChunkShare> of(StoreFormat format, int tensorParallelSize, List<Integer> stageLayers) {
        int heads = format.layout().kvHeads();
        int own = Math.max(1, heads / tensorParallelSize);
        List<ChunkShare> shares = new ArrayList<>();
        int firstLayer = 0;
        for (int layers : stageLayers) {
            for (int tensor = 0; tensor < tensorParallelSize; tensor++) {
                shares.add(new ChunkShare(format, firstLayer, layers, heads * tensor / tensorParallelSize, own));
            }
            firstLayer += layers;
        }
        return List.copyOf(shares);
    }

    ObjectMetadata metadata() {
        return ObjectMetadata.of(
                layers,
                format.tokens(),
                heads * format.layout().headDim(),
                format.layout().dtype());
    }

    /** Bytes of the object. */
    public long bytes() {
        return 2L * layers * layerBytes();
    }

    /** Bytes of the keys, and of the values, of one layer. */
    private long layerBytes() {
        KvLayout layout = format.layout();
        return (long) format.tokens()
                * heads
                * layout.headDim()
                * layout.dtype().bytes();
    }

    /** @param value the chunk in Baton's layout */
    void encode(MemorySegment value, MemorySegment object) {
        BlockCopy copy = copy(value);
        int[] blocks = blocks();
        for (int layer = 0; layer < layers; layer++) {
            copy.gather(firstLayer + layer, blocks, 0, format.tokens(), part(object, layer), 0);
        }
    }

    /** The reverse; the parts of other ranks are left as they are. */
    void decode(MemorySegment object, MemorySegment value) {
        BlockCopy copy = copy(value);
        int[] blocks = blocks();
        for (int layer = 0; layer < layers; layer++) {
            copy.scatter(firstLayer + layer, blocks, 0, format.tokens(), part(object, layer), 0);
        }
    }

    private BlockCopy copy(MemorySegment value) {
        KvLayout layout = format.layout();
        return new BlockCopy(
                new KvCache(value, layout, format.blocksPerChunk(), Collections.nCopies(layout.layers(), "")),
                firstHead,
                heads);
    }

    private int[] blocks() {
        return IntStream.range(0, format.blocksPerChunk()).toArray();
    }

    private TokenMajor part(MemorySegment object, int layer) {
        long bytes = layerBytes();
        return new TokenMajor.Split(
                object.asSlice(layer * bytes, bytes), object.asSlice((layers + layer) * bytes, bytes), heads, 0);
    }
}
