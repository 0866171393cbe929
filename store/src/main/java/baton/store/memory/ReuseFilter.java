package baton.store.memory;

import baton.kv.BlockHash;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Lets only keys be stored that come again: vLLM's {@code store_threshold}. It counts how often each key has been offered, for a bounded
 * number of them, of which those that were not offered for the longest time are forgotten. Thread-safe.
 */
public final class ReuseFilter {
    private final int threshold;
    private final int mostTracked;

    /** The keys in the order in which they were offered last. */
    @GuardedBy("this")
    private final Map<BlockHash, Integer> counts = new LinkedHashMap<>(16, 0.75f, true);

    @GuardedBy("this")
    private long skipped;

    /**
     * @param threshold offers from which on a key is stored; with 0 or 1 all are, and none is counted
     * @param mostTracked keys that are counted
     * @throws IllegalArgumentException if the threshold is negative, or the other number not positive
     */
    public ReuseFilter(int threshold, int mostTracked) {
        if (threshold < 0 || mostTracked <= 0) {
            throw new IllegalArgumentException("threshold=%d must not be negative, mostTracked=%d must be positive"
                    .formatted(threshold, mostTracked));
        }
        this.threshold = threshold;
        this.mostTracked = mostTracked;
    }

    /**
     * Counts an offer of keys.
     *
     * @return those that have been offered often enough, in order
     */
    public synchronized List<BlockHash> offer(List<BlockHash> keys) {
        if (threshold <= 1) {
            return keys;
        }
        List<BlockHash> taken = new ArrayList<>(keys.size());
        Set<BlockHash> known = new HashSet<>();
        for (BlockHash key : keys) {
            if (counts.computeIfPresent(key, (_, count) -> Math.min(count, threshold) + 1) != null) {
                known.add(key);
            }
        }
        // Keys of one offer do not drive each other out.
        int others = counts.size() - known.size();
        for (BlockHash key : keys) {
            if (known.contains(key)) {
                continue;
            }
            if (counts.size() >= mostTracked) {
                if (others == 0) {
                    continue;
                }
                Iterator<BlockHash> oldest = counts.keySet().iterator();
                oldest.next();
                oldest.remove();
                others--;
            }
            counts.put(key, 1);
        }
        for (BlockHash key : keys) {
            if (known.contains(key) && counts.getOrDefault(key, 0) >= threshold) {
                taken.add(key);
            }
        }
        skipped += keys.size() - taken.size();
        return taken;
    }

    /** Keys that were not let through, since the last call: vLLM's {@code kv_offload_stores_skipped}. */
    public synchronized long takeSkipped() {
        long taken = skipped;
        skipped = 0;
        return taken;
    }
}
