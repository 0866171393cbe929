package baton.store.mooncake;

import baton.kv.KvLayout;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * How a value, which has all layers and heads of the model, is divided into objects: one for each pipeline stage and each share of the heads.
 * An object is {@code [block][layer][head][token][K | V]} with the layers and heads of its share. For values of one block that is the
 * layout of vLLM's objects in the format {@code tp_shared_lbhnc} (ibid., {@code LBHNCStoreLayout}).
 */
final class ObjectLayout {
    private final List<Share> shares;

    /**
     * The part of a value that is one object.
     *
     * @param bytes of the object
     * @param inValue where each of its ranges begins in the value
     * @param rangeBytes of each range; they follow each other in the object
     */
    record Share(int pipeline, int tensor, long bytes, long[] inValue, long rangeBytes) {
        void gather(MemorySegment value, MemorySegment object) {
            for (int i = 0; i < inValue.length; i++) {
                MemorySegment.copy(value, inValue[i], object, i * rangeBytes, rangeBytes);
            }
        }

        void scatter(MemorySegment object, MemorySegment value) {
            for (int i = 0; i < inValue.length; i++) {
                MemorySegment.copy(object, i * rangeBytes, value, inValue[i], rangeBytes);
            }
        }
    }

    private ObjectLayout(List<Share> shares) {
        this.shares = List.copyOf(shares);
    }

    /**
     * @param tensorShares shares of the heads; divides their number
     * @param pipelineShares shares of the layers
     */
    static ObjectLayout of(StoreFormat format, int tensorShares, int pipelineShares) {
        KvLayout layout = format.layout();
        if (layout.kvHeads() % tensorShares != 0 || layout.layers() < pipelineShares) {
            throw new IllegalArgumentException(
                    "%d heads in %d layers cannot be divided by tensorShares=%d pipelineShares=%d"
                            .formatted(layout.kvHeads(), layout.layers(), tensorShares, pipelineShares));
        }
        if (tensorShares == 1 && pipelineShares == 1) {
            return new ObjectLayout(List.of(new Share(0, 0, format.valueBytes(), new long[] {0}, format.valueBytes())));
        }
        int heads = layout.kvHeads() / tensorShares;
        List<Share> shares = new ArrayList<>();
        for (int stage = 0; stage < pipelineShares; stage++) {
            int first = layout.layers() * stage / pipelineShares;
            int layers = layout.layers() * (stage + 1) / pipelineShares - first;
            // Ranges of a stage's layers that continue each other are one.
            int rows = tensorShares == 1 ? 1 : layers;
            long rangeBytes = layers / rows * layout.headBytes() * heads;
            for (int tensor = 0; tensor < tensorShares; tensor++) {
                long[] inValue = new long[format.blocksPerChunk() * rows];
                for (int i = 0; i < inValue.length; i++) {
                    inValue[i] = i / rows * layout.blockBytes()
                            + layout.layerOffset(first + i % rows)
                            + layout.headBytes() * heads * tensor;
                }
                shares.add(new Share(stage, tensor, inValue.length * rangeBytes, inValue, rangeBytes));
            }
        }
        return new ObjectLayout(shares);
    }

    List<Share> shares() {
        return shares;
    }
}
