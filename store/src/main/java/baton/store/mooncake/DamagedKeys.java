package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.HashMap;
import java.util.Map;

/**
 * Keys of which an object did not verify and could not be removed, because readers have leases on it. To ask for it would begin another lease,
 * so it is left alone for as long as one lasts. Thread-safe.
 */
final class DamagedKeys {
    /** More are not remembered, but read and found damaged again. */
    private static final int MOST = 4096;

    @GuardedBy("this")
    private final Map<BlockHash, Deadline> leases = new HashMap<>();

    synchronized void add(BlockHash key, Deadline lease) {
        if (leases.size() < MOST || leases.containsKey(key)) {
            leases.put(key, lease);
        }
    }

    synchronized void removed(BlockHash key) {
        leases.remove(key);
    }

    synchronized boolean has(BlockHash key) {
        return leases.containsKey(key);
    }

    synchronized boolean isLeased(BlockHash key) {
        Deadline lease = leases.get(key);
        return lease != null && !lease.isOver();
    }
}
