package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.connector.Measurement;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Counts what happens to keys until it is taken. Thread-safe. */
final class MooncakeCounters {
    private static final int MOST_EVENTS = 1 << 16;

    private record Change(BlockHash key, boolean stored) {}

    private final String store;

    /** By measurement, label and its value. */
    @GuardedBy("this")
    private final Map<List<String>, Long> counts =
            new TreeMap<>((a, b) -> a.toString().compareTo(b.toString()));

    @GuardedBy("this")
    private final ArrayDeque<Change> changes = new ArrayDeque<>();

    MooncakeCounters(String store) {
        this.store = store;
    }

    /** @param result {@code found}, {@code absent}, {@code hit}, {@code miss}, {@code stored}, {@code present}, {@code unverified} */
    void count(String result, long keys) {
        add("baton:kv_store_keys", "result", result, keys);
    }

    void failed(Outcome cause, long keys) {
        add("baton:kv_store_failures", "cause", cause.label(), keys);
    }

    void read(long bytes) {
        count("hit", 1);
        add("baton:kv_store_bytes", "direction", "read", bytes);
    }

    synchronized void stored(BlockHash key, long bytes) {
        count("stored", 1);
        add("baton:kv_store_bytes", "direction", "written", bytes);
        changed(key, true);
    }

    synchronized void removed(BlockHash key) {
        changed(key, false);
    }

    private synchronized void add(String name, String label, String value, long number) {
        if (number > 0) {
            counts.merge(List.of(name, label, value), number, Long::sum);
        }
    }

    @GuardedBy("this")
    private void changed(BlockHash key, boolean stored) {
        if (changes.size() == MOST_EVENTS) {
            changes.removeFirst();
        }
        changes.addLast(new Change(key, stored));
    }

    /** Keys that follow each other with the same change are one event. */
    synchronized List<StoreEvent> takeEvents() {
        List<StoreEvent> events = new ArrayList<>();
        List<BlockHash> keys = new ArrayList<>();
        while (!changes.isEmpty()) {
            Change change = changes.removeFirst();
            keys.add(change.key);
            if (changes.isEmpty() || changes.getFirst().stored != change.stored) {
                events.add(new StoreEvent(keys, change.stored));
                keys.clear();
            }
        }
        return events;
    }

    synchronized List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>();
        counts.forEach((what, number) -> taken.add(new Measurement(
                what.get(0), Measurement.Kind.COUNTER, number, Map.of("store", store, what.get(1), what.get(2)))));
        counts.clear();
        return taken;
    }
}
