package baton.connectors.mooncakestore;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.mooncake.MooncakeNames;
import java.io.Closeable;

/** Opens the stores that the connector's settings ask for. A simulation opens others. */
public interface StoreOpener {
    /** @param bytes of the values */
    ValueCache memory(StoreFormat format, long bytes, Ticker ticker);

    /** The store that instances share. */
    interface Shared {
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
    }

    /** @param real the store of the settings, which is not opened yet */
    default Shared shared(Shared real) {
        return real;
    }
}
