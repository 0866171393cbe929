package baton.kv.connector;

import java.util.Locale;

/** The place of the KV caches that a connector loads, as vLLM's metrics name it. */
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
