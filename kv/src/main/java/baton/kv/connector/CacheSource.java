package baton.kv.connector;

import java.util.Locale;

/** Where the KV caches are that a connector brings, as vLLM's metrics tell it. */
public enum CacheSource {
    /** Memory of the host. */
    HOST,
    /** Files. */
    DISK,
    /** Another instance. */
    P2P,
    /** Several of these, or elsewhere. */
    EXTERNAL_UNSPECIFIED;

    private final String label = name().toLowerCase(Locale.ROOT);

    /** Its name in metrics. */
    public String label() {
        return label;
    }
}
