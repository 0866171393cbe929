package baton.kv;

/** The policy for a request whose external KV could not be loaded. */
public enum LoadFailurePolicy {
    /** Compute the tokens that could not be loaded. */
    RECOMPUTE("recompute"),
    /** End the request with an error. */
    FAIL("fail");

    private final String configName;

    LoadFailurePolicy(String configName) {
        this.configName = configName;
    }

    /** The value of {@code kv_load_failure_policy}. */
    public String configName() {
        return configName;
    }

    /** @throws ConfigException if {@code name} is no policy */
    public static LoadFailurePolicy parse(String name) {
        return switch (name) {
            case "recompute" -> RECOMPUTE;
            case "fail" -> FAIL;
            default -> throw ConfigException.unsupported("kv_load_failure_policy", name, "recompute, fail");
        };
    }
}
