package baton.store.memory;

import baton.kv.ConfigException;
import java.util.Locale;

/** Which values go when there is no room. */
public enum Eviction {
    /** Evicts the least recently used values. */
    LRU,
    /**
     * Adaptive Replacement Cache: values that were used once and values that were used again share the room as the keys that
     * come back ask for. See N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.
     */
    ARC;

    /**
     * By vLLM's names.
     *
     * @param field that it comes from, for the error
     * @throws ConfigException if there is none of that name
     */
    public static Eviction parse(String field, String name) {
        return ConfigException.choose(field, name, values(), each -> each.name().toLowerCase(Locale.ROOT));
    }
}
