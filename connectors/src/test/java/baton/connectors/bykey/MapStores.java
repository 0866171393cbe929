package baton.connectors.bykey;

import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Memory that copies at once, and maps in place of other stores, which all instances share. */
public final class MapStores implements StoreOpener {
    private static final long MOST_BYTES = 64L << 20;

    /** The values by format, as stores separate formats. */
    private final Map<StoreFormat, Map<BlockHash, byte[]>> values = new HashMap<>();

    /** The opened stores. */
    public final List<MapStore> stores = new ArrayList<>();

    public final List<Closed> opened = new ArrayList<>();

    @Override
    public ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        return StoreOpener.super.memory(
                format,
                settings.withThreads(0).withCapacityBytes(Math.min(settings.capacityBytes(), MOST_BYTES)),
                ticker);
    }

    @Override
    public BlockStore open(Closed store, Ticker ticker) {
        opened.add(store);
        stores.add(new MapStore(store.format(), values.computeIfAbsent(store.format(), _ -> new HashMap<>())));
        return stores.getLast();
    }

    /** The keys in the store that was opened last. */
    public Set<BlockHash> keys() {
        return stores.getLast().values.keySet();
    }
}
