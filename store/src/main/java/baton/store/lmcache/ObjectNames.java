package baton.store.lmcache;

import baton.kv.BlockHash;
import java.util.Optional;

/** The keys of a chunk's objects. */
public interface ObjectNames {
    /**
     * @param worker global rank
     * @return empty if it is not known any more
     */
    Optional<String> name(BlockHash key, int worker);
}
