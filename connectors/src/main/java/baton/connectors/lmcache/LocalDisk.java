package baton.connectors.lmcache;

import baton.connectors.bykey.StoreOpener;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.file.FileBlockStore;
import baton.store.file.FileStoreSettings;

/** LMCache's {@code local_disk}. */
record LocalDisk(FileStoreSettings settings, StoreFormat format) implements StoreOpener.Closed {
    @Override
    public BlockStore open(Ticker ticker) {
        return FileBlockStore.open(settings, format, ticker);
    }
}
