package baton.store.remote;

import baton.kv.BlockHash;
import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import baton.store.EventLog;
import baton.store.StoreEvent;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Counts the outcomes of keys until they are taken. Thread-safe. */
public final class StoreCounters {
    /** The outcome of a key. */
    public enum Result {
        FOUND,
        ABSENT,
        HIT,
        MISS,
        STORED,
        PRESENT,
        /** Read without a checksum to compare its bytes with. */
        UNVERIFIED
    }

    private final String store;
    private final Counts counts = new Counts();
    private final EventLog events = new EventLog();
    private volatile boolean unverified;

    /** @param store its name, the label {@code store} */
    public StoreCounters(String store) {
        this.store = store;
    }

    private void add(String name, long more, String label, String labelValue) {
        counts.add(name, more, Map.of("store", store, label, labelValue));
    }

    public void count(Result result, long keys) {
        add("baton:kv_store_keys", keys, "result", result.name().toLowerCase(Locale.ROOT));
        if (result == Result.UNVERIFIED) {
            unverified = true;
        }
    }

    /** Whether {@link Result#UNVERIFIED} was ever counted. */
    public boolean hasUnverified() {
        return unverified;
    }

    public void failed(Failure cause, long keys) {
        add("baton:kv_store_failures", keys, "cause", cause.label());
    }

    /** An attempt to connect has failed. */
    public void connectFailed(Failure cause) {
        add("baton:kv_store_connect_failures", 1, "cause", cause.label());
    }

    public void read(long bytes) {
        add("baton:kv_store_bytes", bytes, "direction", "read");
        count(Result.HIT, 1);
    }

    public void stored(BlockHash key, long bytes) {
        stored(bytes);
        events.add(key, true);
    }

    /** A value has been written under a key that makes no event. */
    public void stored(long bytes) {
        add("baton:kv_store_bytes", bytes, "direction", "written");
        count(Result.STORED, 1);
    }

    public void removed(BlockHash key) {
        events.add(key, false);
    }

    public List<StoreEvent> takeEvents() {
        return events.take();
    }

    public List<Measurement> takeMeasurements(int connections) {
        List<Measurement> taken = takeCounts();
        taken.add(Measurement.gauge("baton:kv_store_connections", connections, "store", store));
        return taken;
    }

    /** The same without connections. */
    public List<Measurement> takeCounts() {
        return counts.take();
    }
}
