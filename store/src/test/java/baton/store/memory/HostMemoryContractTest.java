package baton.store.memory;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import java.io.IOException;

/** The contract of block stores, by values in memory of one process. */
class HostMemoryContractTest extends BlockStoreContract {
    @Override
    protected Medium medium() {
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) throws IOException {
                return HostMemoryStore.open(format, HostMemorySettings.of(600 * format.valueBytes()), Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return false;
            }
        };
    }
}
