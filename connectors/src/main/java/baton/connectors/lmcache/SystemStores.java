package baton.connectors.lmcache;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.FileOperations;
import baton.store.StoreFormat;
import baton.store.SystemIoThreads;
import baton.store.ValueCache;
import baton.store.file.FileBlockStore;
import baton.store.file.FileStoreSettings;
import baton.store.lm.LmClient;
import baton.store.lmcache.ChunkShare;
import baton.store.lmcache.FsTransport;
import baton.store.lmcache.LmCacheStore;
import baton.store.lmcache.LmTransport;
import baton.store.lmcache.ObjectNames;
import baton.store.lmcache.ObjectTransport;
import baton.store.lmcache.RedisTransport;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import java.io.IOException;
import java.util.List;

/** The machine's stores. */
final class SystemStores implements LmCacheStores {
    /** For chunks on their way; one has room in any case. */
    private static final long STAGING_BYTES = 256L << 20;

    @Override
    public ValueCache memory(StoreFormat format, long bytes, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, HostMemorySettings.of(bytes), ticker);
        } catch (IOException e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    @Override
    public BlockStore disk(FileStoreSettings settings, StoreFormat format, Ticker ticker) {
        return FileBlockStore.open(settings, format, ticker);
    }

    @Override
    public BlockStore remote(
            RemoteStore remote, StoreFormat format, List<ChunkShare> shares, ObjectNames names, Ticker ticker) {
        ObjectTransport transport = switch (remote) {
            case RemoteStore.Redis(var settings) ->
                new RedisTransport(settings, shares.getFirst().bytes(), ticker);
            case RemoteStore.Lm(var settings) -> new LmTransport(LmClient.open(settings, ticker));
            case RemoteStore.Fs(var directories, boolean metadata) ->
                new FsTransport(directories, metadata, FileOperations.SYSTEM, new SystemIoThreads(), ticker);
        };
        return new LmCacheStore(format, shares, names, transport, STAGING_BYTES, ticker);
    }
}
