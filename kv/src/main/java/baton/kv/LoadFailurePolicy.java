package baton.kv;

import java.util.Locale;

/** The policy for a request after a failed load of external KV. */
public enum LoadFailurePolicy {
    /** Compute the tokens that could not be loaded. */
    RECOMPUTE,
    /** End the request with an error. */
    FAIL;

    /** The value of {@code kv_load_failure_policy}. */
    public String configName() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** @throws ConfigException if {@code name} is no policy */
    public static LoadFailurePolicy parse(String name) {
        return ConfigException.choose(
                KvTransferConfig.LOAD_FAILURE_POLICY, name, values(), LoadFailurePolicy::configName);
    }
}
