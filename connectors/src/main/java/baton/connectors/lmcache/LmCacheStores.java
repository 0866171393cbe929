package baton.connectors.lmcache;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.file.FileStoreSettings;
import baton.store.lmcache.ChunkShare;
import baton.store.lmcache.ObjectNames;
import java.util.List;

/** Opens the stores that the connector's settings ask for. A simulation opens others. */
public interface LmCacheStores {
    ValueCache memory(StoreFormat format, long bytes, Ticker ticker);

    BlockStore disk(FileStoreSettings settings, StoreFormat format, Ticker ticker);

    /** @param shares of all ranks; their objects have these names */
    BlockStore remote(
            RemoteStore remote, StoreFormat format, List<ChunkShare> shares, ObjectNames names, Ticker ticker);
}
