package baton.connectors.onesided;

import baton.kv.KvLayout;
import java.util.Arrays;

/**
 * Where a rank's blocks lie, layer by layer: the regions of vLLM's NIXL connector. A layer's share of a block, {@link
 * KvLayout#layerBytes} bytes, is contiguous; the layers of one block need not be.
 *
 * @param addresses of block 0, for each layer, in the rank's process
 * @param strides bytes from one block to the next, for each layer
 */
public record LayerRegions(long[] addresses, long[] strides) {
    public LayerRegions {
        if (addresses.length == 0 || addresses.length != strides.length) {
            throw new IllegalArgumentException(addresses.length + " addresses, " + strides.length + " strides");
        }
    }

    /** Of a Baton pool: its blocks are contiguous. */
    public static LayerRegions ofPool(long pool, KvLayout layout) {
        long[] addresses = new long[layout.layers()];
        Arrays.setAll(addresses, layer -> pool + layout.layerOffset(layer));
        long[] strides = new long[layout.layers()];
        Arrays.fill(strides, layout.blockBytes());
        return new LayerRegions(addresses, strides);
    }

    /** Address of a layer's share of a block. */
    long address(int layer, int block) {
        return addresses[layer] + block * strides[layer];
    }

    /** Whether a block with all its layers is one range. */
    boolean isContiguous(KvLayout layout) {
        for (int layer = 0; layer < addresses.length; layer++) {
            if (addresses[layer] != addresses[0] + layout.layerOffset(layer) || strides[layer] != layout.blockBytes()) {
                return false;
            }
        }
        return true;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof LayerRegions(long[] starts, long[] steps)
                && Arrays.equals(starts, addresses)
                && Arrays.equals(steps, strides);
    }

    @Override
    public int hashCode() {
        return 31 * Arrays.hashCode(addresses) + Arrays.hashCode(strides);
    }
}
