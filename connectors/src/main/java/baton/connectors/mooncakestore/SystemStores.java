package baton.connectors.mooncakestore;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.store.mooncake.MooncakeBlockStore;
import baton.store.mooncake.MooncakeNames;
import java.io.Closeable;
import java.io.IOException;

/** The machine's stores. */
final class SystemStores implements StoreOpener {
    @Override
    public ValueCache memory(StoreFormat format, long bytes, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, HostMemorySettings.of(bytes), ticker);
        } catch (IOException e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    /** A Mooncake store. */
    record Mooncake(StoreAccess access) implements Shared {
        @Override
        public BlockStore open(StoreFormat format, MooncakeNames names, boolean vllm, Ticker ticker) {
            return switch (access) {
                case StoreAccess.Rest rest -> MooncakeBlockStore.open(format, names, rest.service(), ticker);
                case StoreAccess.Library library ->
                    MooncakeBlockStore.open(format, names, vllm, library.library(), library.setup(), ticker);
            };
        }

        @Override
        public Closeable mount(Ticker ticker) {
            return switch (access) {
                case StoreAccess.Rest _ -> throw new IllegalStateException("a REST service takes no memory");
                case StoreAccess.Library library ->
                    MooncakeBlockStore.mount(library.library(), library.setup(), ticker);
            };
        }
    }
}
