package baton.connectors.mooncakestore;

import baton.connectors.bykey.StoreOpener;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.mooncake.MooncakeBlockStore;
import baton.store.mooncake.MooncakeNames;
import baton.store.mooncake.MooncakeRest;
import baton.store.mooncake.MooncakeSetup;
import baton.store.mooncake.StoreLibrary;
import java.io.Closeable;

/** How the store is reached. */
sealed interface StoreAccess {
    /**
     * Opens it for values.
     *
     * @param vllm whether its objects are vLLM's, if it is reached by the library
     * @throws IllegalStateException if it cannot be used
     */
    BlockStore open(StoreFormat format, MooncakeNames names, boolean vllm, Ticker ticker);

    /**
     * Gives it this process's memory and nothing else.
     *
     * @throws IllegalStateException if it cannot be used
     */
    Closeable mount(Ticker ticker);

    /** Through a REST service, which has the store's memory. */
    record Rest(MooncakeRest service) implements StoreAccess {
        @Override
        public BlockStore open(StoreFormat format, MooncakeNames names, boolean vllm, Ticker ticker) {
            return MooncakeBlockStore.open(format, names, service, ticker);
        }

        @Override
        public Closeable mount(Ticker ticker) {
            throw new IllegalStateException("a REST service takes no memory");
        }
    }

    /** Access by Mooncake's library, as a client of the store itself. */
    record Library(StoreLibrary.Found library, MooncakeSetup setup) implements StoreAccess {
        @Override
        public BlockStore open(StoreFormat format, MooncakeNames names, boolean vllm, Ticker ticker) {
            return MooncakeBlockStore.open(format, names, vllm, library, setup, ticker);
        }

        @Override
        public Closeable mount(Ticker ticker) {
            return MooncakeBlockStore.mount(library, setup, ticker);
        }
    }

    /** The store that instances share. */
    record Shared(StoreAccess access, StoreFormat format, MooncakeNames names, boolean vllm)
            implements StoreOpener.Closed {
        @Override
        public BlockStore open(Ticker ticker) {
            return access.open(format, names, vllm, ticker);
        }
    }
}
