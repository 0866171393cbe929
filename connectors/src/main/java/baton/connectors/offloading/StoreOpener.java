package baton.connectors.offloading;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.Eviction;
import baton.store.memory.SharedMemory;
import java.util.Optional;

/** Opens the stores that the connector's settings ask for. A simulation opens others. */
public interface StoreOpener {
    /**
     * @param bytes of the values
     * @param shared with other processes; empty for memory of this process
     */
    ValueCache memory(StoreFormat format, long bytes, Eviction eviction, Optional<SharedMemory> shared, Ticker ticker);

    /**
     * @param type of the tier
     * @param settings all of the tier's
     * @throws baton.kv.ConfigException if they cannot be used
     */
    BlockStore tier(String type, JsonFields settings, StoreFormat format, Ticker ticker);
}
