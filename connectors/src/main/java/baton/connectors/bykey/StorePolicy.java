package baton.connectors.bykey;

import baton.kv.JsonFields;
import baton.kv.Setting;
import java.time.Duration;

/**
 * Which blocks are stored, and the deadlines of stores and loads.
 *
 * @param promptOnly whether only prompts are stored, not outputs
 * @param storeThreshold how often a chunk must have been computed before it is stored; up to 1 all are
 * @param trackedKeys how many keys are remembered for that
 * @param acquire the longest that a request waits for values that are not in memory, and its answer for those that are being stored
 * @param answersWait whether the answer to a request waits until its prompt is stored: where other instances look for it, which may be
 *     asked as soon as there is an answer
 * @param loadBytesWithinStep bytes of a rank that are loaded within a step, before its forward pass; requests with more wait for later steps
 * @param tenantShare the share of the values in memory, above 0 and at most 1, that one tenant keeps when its requests end
 * @param copy for a copy between pool and memory
 */
public record StorePolicy(
        boolean promptOnly,
        int storeThreshold,
        int trackedKeys,
        Duration acquire,
        boolean answersWait,
        long loadBytesWithinStep,
        double tenantShare,
        Duration copy) {
    private static final String TENANT_SHARE = "tenant_share";

    public static final Setting TENANT_SETTING = Setting.absent(
            TENANT_SHARE,
            "1",
            "The share of the values in memory, above 0 and at most 1, that one tenant keeps, the last that it has used; a tenant is a"
                    + " `cache_salt` up to its first `:`.");

    /** @throws baton.kv.ConfigException if it is not in its range */
    public static double tenantShare(JsonFields extra) {
        return extra.number(TENANT_SHARE, Double.MIN_VALUE, 1).orElse(1.0);
    }
}
