package baton.router.upstream;

/**
 * The connector of an instance, which decides how it hands KV caches over.
 *
 * @param name as in {@code kv_connector}; empty for an instance that says that it has none
 * @param isBaton whether the instance is Baton's; others are taken for vLLM's
 */
public record InstanceConnector(String name, boolean isBaton) {
    /** The connector of a registered instance that reports none: only instances with this one register. */
    public static final String OF_REGISTERED = "P2pNcclConnector";

    public boolean isNone() {
        return name.isEmpty();
    }

    @Override
    public String toString() {
        return (isNone() ? "no connector" : name) + " of " + (isBaton ? "Baton" : "vLLM");
    }
}
