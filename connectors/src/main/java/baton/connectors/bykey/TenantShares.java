package baton.connectors.bykey;

import baton.kv.BlockHash;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;

/** Which values in memory the requests of each tenant have used last, so that no tenant keeps more than its share. One thread's. */
final class TenantShares {
    private final int most;
    private final int slots;

    /** The keys of each tenant. Tenants and keys are in the order of their last use. */
    private final Map<String, LinkedHashSet<BlockHash>> ofTenants = new LinkedHashMap<>(16, 0.75f, true);

    private int tracked;

    /**
     * @param share of the values that one tenant may keep
     * @param slots values that the memory has room for
     */
    TenantShares(double share, int slots) {
        this.most = (int) Math.ceil(share * slots);
        this.slots = slots;
    }

    /**
     * A request of a tenant has used values.
     *
     * @param keys of a prefix; its beginning is of use without its end
     * @return those that the tenant has used least recently and that are more than its share
     */
    List<BlockHash> used(String tenant, List<BlockHash> keys) {
        if (keys.isEmpty()) {
            return List.of();
        }
        LinkedHashSet<BlockHash> own = ofTenants.computeIfAbsent(tenant, _ -> new LinkedHashSet<>());
        int before = own.size();
        keys.reversed().forEach(own::addLast);
        List<BlockHash> more = new ArrayList<>();
        while (own.size() > most) {
            more.add(own.removeFirst());
        }
        tracked += own.size() - before;
        // Keys used since by other tenants were evicted to make room.
        while (tracked > slots) {
            Map.Entry<String, LinkedHashSet<BlockHash>> oldest =
                    ofTenants.entrySet().iterator().next();
            oldest.getValue().removeFirst();
            tracked--;
            if (oldest.getValue().isEmpty()) {
                ofTenants.remove(oldest.getKey());
            }
        }
        return more;
    }
}
