package baton.connectors.onesided;

import baton.kv.KvLayout;
import baton.kv.KvMemory;
import java.util.Arrays;
import java.util.OptionalInt;

/**
 * Where a rank's blocks lie, layer by layer: the regions of vLLM's NIXL connector. A layer's share of a block, {@link
 * KvLayout#layerBytes} bytes, is contiguous; the layers of one block need not be.
 *
 * @param addresses of block 0, for each layer, in the rank's process
 * @param strides bytes from one block to the next, for each layer
 * @param device number of the device with the memory; empty for memory of the host
 */
public record LayerRegions(long[] addresses, long[] strides, OptionalInt device) {
    public LayerRegions {
        if (addresses.length == 0 || addresses.length != strides.length) {
            throw new IllegalArgumentException(addresses.length + " addresses, " + strides.length + " strides");
        }
    }

    public static LayerRegions ofPool(KvMemory pool, KvLayout layout) {
        OptionalInt device =
                pool instanceof KvMemory.Device of ? OptionalInt.of(of.device().number()) : OptionalInt.empty();
        return ofPool(pool.address(), layout, device);
    }

    /** The regions of a Baton pool: its blocks are contiguous. */
    public static LayerRegions ofPool(long pool, KvLayout layout, OptionalInt device) {
        long[] addresses = new long[layout.layers()];
        Arrays.setAll(addresses, layer -> pool + layout.layerOffset(layer));
        long[] strides = new long[layout.layers()];
        Arrays.fill(strides, layout.blockBytes());
        return new LayerRegions(addresses, strides, device);
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
}
