package baton.store.lmcache;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import java.util.List;
import java.util.Optional;

/** Chunks as objects of four ranks: two stages of two. */
abstract class LmCacheStoreContract extends BlockStoreContract {
    /** Opens a connection, and waits until it is up. */
    abstract ObjectTransport transport(long objectBytes) throws Exception;

    /** Keys of one test are not those of another. */
    abstract String prefix();

    @Override
    protected Medium medium() {
        String prefix = prefix();
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) throws Exception {
                int layers = format.layout().layers() / 2;
                List<ChunkShare> shares = ChunkShare.of(format, 2, List.of(layers, layers));
                // Two buffers: chunks wait for them.
                return new LmCacheStore(
                        format,
                        shares,
                        (key, worker) -> Optional.of(
                                prefix + Integer.toHexString(format.describe().hashCode()) + "@4@" + worker + "@"
                                        + Long.toHexString(key.a()) + "@bfloat16"),
                        transport(shares.getFirst().bytes()),
                        5 * format.valueBytes(),
                        Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }
}
