package baton.store.memory;

import baton.kv.BlockHash;
import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Events and measurements of a {@link SlotCache}, until they are taken. Its monitor is a leaf. Thread-safe. */
final class CacheRecord {
    private static final int MOST_EVENTS = 10_000;
    private static final int MOST_SIZES = 1000;

    private final boolean keepsEvents;

    @GuardedBy("this")
    private final Deque<StoreEvent> events = new ArrayDeque<>();

    @GuardedBy("this")
    private final List<Measurement> sizes = new ArrayList<>();

    private final Counts counts = new Counts();

    CacheRecord(boolean keepsEvents) {
        this.keepsEvents = keepsEvents;
    }

    boolean keepsEvents() {
        return keepsEvents;
    }

    /** Values have come, or gone; the oldest event makes room. */
    synchronized void add(List<BlockHash> keys, boolean stored) {
        if (!keepsEvents || keys.isEmpty()) {
            return;
        }
        if (events.size() == MOST_EVENTS) {
            events.removeFirst();
        }
        events.addLast(new StoreEvent(keys, stored));
    }

    synchronized void reserved(int slots) {
        if (sizes.size() < MOST_SIZES) {
            sizes.add(Measurement.items("vllm:kv_offload_cpu_allocation_size", slots));
        }
    }

    void reservationFailed() {
        counts.add("vllm:kv_offload_allocation_failure", 1);
    }

    void lockTimedOut() {
        counts.add("baton:kv_store_lock_timeouts", 1);
    }

    synchronized List<StoreEvent> takeEvents() {
        List<StoreEvent> taken = List.copyOf(events);
        events.clear();
        return taken;
    }

    synchronized List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>(sizes);
        sizes.clear();
        taken.addAll(counts.take());
        return taken;
    }
}
