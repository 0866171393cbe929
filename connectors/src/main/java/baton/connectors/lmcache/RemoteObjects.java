package baton.connectors.lmcache;

import baton.connectors.bykey.StoreOpener;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.FileOperations;
import baton.store.StoreFormat;
import baton.store.SystemIoThreads;
import baton.store.lm.LmClient;
import baton.store.lmcache.ChunkShare;
import baton.store.lmcache.FsTransport;
import baton.store.lmcache.LmCacheStore;
import baton.store.lmcache.LmTransport;
import baton.store.lmcache.ObjectNames;
import baton.store.lmcache.ObjectTransport;
import baton.store.lmcache.RedisTransport;
import java.util.List;

/**
 * Objects at {@code remote_url}.
 *
 * @param shares of all ranks; their objects have these names
 */
record RemoteObjects(RemoteStore remote, StoreFormat format, List<ChunkShare> shares, ObjectNames names)
        implements StoreOpener.Closed {
    /** The buffer of chunks on their way; one has room in any case. */
    private static final long STAGING_BYTES = 256L << 20;

    @Override
    public BlockStore open(Ticker ticker) {
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
