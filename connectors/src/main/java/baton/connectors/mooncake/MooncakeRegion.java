package baton.connectors.mooncake;

import baton.kv.KvCache;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Where one layer's blocks lie in a rank's memory: the layer's page of block {@code b} is the {@code bytes} at
 * {@code address + b * stride}, in the order {@code [kv head][token][K | V]}.
 *
 * @param layer name, as vLLM's
 * @param layerIndex number in the name, of the whole model's layers
 * @param group index of the KV cache group of the block ids
 */
record MooncakeRegion(String layer, int layerIndex, int group, long address, long stride, long bytes) {
    private static final Pattern NUMBER = Pattern.compile("(?:^|\\.)([0-9]{1,6})(?:\\.|$)");

    /** A pool's regions. A block has all of its layers in one range, so the stride is the block's length. */
    static List<MooncakeRegion> of(KvCache cache) {
        List<MooncakeRegion> regions = new ArrayList<>();
        for (int layer = 0; layer < cache.layerNames().size(); layer++) {
            String name = cache.layerNames().get(layer);
            regions.add(new MooncakeRegion(
                    name,
                    index(name, layer),
                    0,
                    cache.memory().address() + cache.layout().layerOffset(layer),
                    cache.layout().blockBytes(),
                    cache.layout().layerBytes()));
        }
        return List.copyOf(regions);
    }

    /** The only number between the dots of a name, as vLLM's {@code extract_layer_index} takes it. */
    private static int index(String name, int byDefault) {
        Matcher number = NUMBER.matcher(name);
        return number.find() ? Integer.parseInt(number.group(1)) : byDefault;
    }

    /** Address of a block's page. */
    long page(int block) {
        return address + block * stride;
    }
}
