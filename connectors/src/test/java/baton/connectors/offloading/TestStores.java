package baton.connectors.offloading;

import baton.connectors.bykey.StoreOpener;
import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Memory that copies at once, and behind it maps in place of other stores. */
final class TestStores implements StoreOpener {
    /** By format, as stores keep those apart. */
    private final Map<StoreFormat, Map<BlockHash, byte[]>> values = new HashMap<>();

    /** Those that were opened. */
    final List<MapStore> tiers = new ArrayList<>();

    @Override
    public ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        try {
            return HostMemoryStore.open(
                    format,
                    HostMemorySettings.of(settings.capacityBytes())
                            .withEviction(settings.eviction())
                            .withThreads(0),
                    ticker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public BlockStore open(Closed store, Ticker ticker) {
        MapStore tier = new MapStore(store.format(), values.computeIfAbsent(store.format(), _ -> new HashMap<>()));
        tiers.add(tier);
        return tier;
    }
}
