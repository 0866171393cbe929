package baton.connectors.mooncakestore;

import baton.connectors.bykey.StoreOpener;
import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.store.mooncake.MooncakeNames;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Memory that copies at once, and behind it a map in place of the store. */
final class TestStores implements StoreOpener {
    private final Map<StoreFormat, Map<BlockHash, byte[]>> values = new HashMap<>();

    final List<MooncakeNames> opened = new ArrayList<>();

    @Override
    public ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, settings.withThreads(0), ticker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    int stored() {
        return values.values().stream().mapToInt(Map::size).sum();
    }

    @Override
    public BlockStore open(Closed store, Ticker ticker) {
        opened.add(((StoreAccess.Shared) store).names());
        return new MapStore(store.format(), values.computeIfAbsent(store.format(), _ -> new HashMap<>()));
    }
}
