package baton.store;

import baton.kv.BlockHash;
import java.util.List;

/**
 * Values have come to a store, or gone.
 *
 * @param keys of the values
 * @param stored false: removed
 */
public record StoreEvent(List<BlockHash> keys, boolean stored) {
    public StoreEvent {
        keys = List.copyOf(keys);
    }
}
