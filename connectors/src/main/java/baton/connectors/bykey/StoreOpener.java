package baton.connectors.bykey;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import java.io.IOException;

/** Opens the stores that a connector's settings ask for. A simulation opens others. */
public interface StoreOpener {
    /** Opens the machine's stores. */
    StoreOpener SYSTEM = new StoreOpener() {};

    /** A store of settings that is not opened yet. */
    interface Closed {
        StoreFormat format();

        BlockStore open(Ticker ticker);
    }

    /** @throws IllegalStateException if the memory cannot be had */
    default ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, settings, ticker);
        } catch (IOException e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    /** @throws ConfigException if the memory cannot be had, naming the setting of its size */
    default ValueCache memory(String field, StoreFormat format, HostMemorySettings settings, Ticker ticker) {
        try {
            return memory(format, settings, ticker);
        } catch (ConfigException e) {
            throw e;
        } catch (IllegalArgumentException | IllegalStateException e) {
            throw new ConfigException(field, "cannot be used: " + e.getMessage(), e);
        }
    }

    /** Opens a store behind the memory. */
    default BlockStore open(Closed store, Ticker ticker) {
        return store.open(ticker);
    }
}
