package baton.connectors.lmcache;

import baton.connectors.bykey.StoreOpener;
import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.lmcache.ObjectNames;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

/** Memory that copies at once, and maps in place of other stores, which all instances share. */
final class TestStores implements StoreOpener {
    final Map<BlockHash, byte[]> values = new HashMap<>();
    final List<ObjectNames> names = new ArrayList<>();

    @Override
    public ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, HostMemorySettings.of(1 << 20).withThreads(0), ticker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public BlockStore open(Closed store, Ticker ticker) {
        if (store instanceof RemoteObjects objects) {
            names.add(objects.names());
            return new MapStore(store.format(), values);
        }
        return new MapStore(store.format(), new HashMap<>());
    }

    /** LMCache's keys of what is stored, of the first rank. */
    List<String> keys() {
        return values.keySet().stream()
                .flatMap(key -> Stream.of(names.getLast().name(key, 0)).flatMap(Optional::stream))
                .sorted()
                .toList();
    }
}
