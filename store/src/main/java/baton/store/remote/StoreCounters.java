package baton.store.remote;

import baton.kv.BlockHash;
import baton.kv.connector.Measurement;
import baton.store.EventLog;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.EnumMap;
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

    @GuardedBy("this")
    private final Map<Result, Long> results = new EnumMap<>(Result.class);

    @GuardedBy("this")
    private final Map<Failure, Long> failures = new EnumMap<>(Failure.class);

    @GuardedBy("this")
    private final Map<Failure, Long> failedConnects = new EnumMap<>(Failure.class);

    @GuardedBy("this")
    private boolean unverified;

    @GuardedBy("this")
    private long readBytes;

    @GuardedBy("this")
    private long writtenBytes;

    private final EventLog events = new EventLog();

    /** @param store its name, the label {@code store} */
    public StoreCounters(String store) {
        this.store = store;
    }

    public synchronized void count(Result result, long keys) {
        results.merge(result, keys, Long::sum);
        unverified |= result == Result.UNVERIFIED;
    }

    /** Whether {@link Result#UNVERIFIED} was ever counted. */
    public synchronized boolean hasUnverified() {
        return unverified;
    }

    public synchronized void failed(Failure cause, long keys) {
        failures.merge(cause, keys, Long::sum);
    }

    /** An attempt to connect has failed. */
    public synchronized void connectFailed(Failure cause) {
        failedConnects.merge(cause, 1L, Long::sum);
    }

    public synchronized void read(long bytes) {
        readBytes += bytes;
        results.merge(Result.HIT, 1L, Long::sum);
    }

    public synchronized void stored(BlockHash key, long bytes) {
        stored(bytes);
        events.add(key, true);
    }

    /** A value has been written under a key that makes no event. */
    public synchronized void stored(long bytes) {
        writtenBytes += bytes;
        results.merge(Result.STORED, 1L, Long::sum);
    }

    public void removed(BlockHash key) {
        events.add(key, false);
    }

    public List<StoreEvent> takeEvents() {
        return events.take();
    }

    public synchronized List<Measurement> takeMeasurements(int connections) {
        List<Measurement> taken = takeCounts();
        taken.add(Measurement.gauge("baton:kv_store_connections", connections, "store", store));
        return taken;
    }

    /** The same without connections. */
    public synchronized List<Measurement> takeCounts() {
        List<Measurement> taken = new ArrayList<>();
        results.forEach((result, keys) -> taken.add(count("baton:kv_store_keys", keys, "result", result.name())));
        failures.forEach((cause, keys) -> taken.add(count("baton:kv_store_failures", keys, "cause", cause.label())));
        failedConnects.forEach((cause, attempts) ->
                taken.add(count("baton:kv_store_connect_failures", attempts, "cause", cause.label())));
        if (readBytes > 0) {
            taken.add(count("baton:kv_store_bytes", readBytes, "direction", "read"));
        }
        if (writtenBytes > 0) {
            taken.add(count("baton:kv_store_bytes", writtenBytes, "direction", "written"));
        }
        results.clear();
        failures.clear();
        failedConnects.clear();
        readBytes = 0;
        writtenBytes = 0;
        return taken;
    }

    private Measurement count(String name, long value, String label, String labelValue) {
        return new Measurement(
                name,
                Measurement.Kind.COUNTER,
                value,
                Map.of("store", store, label, labelValue.toLowerCase(Locale.ROOT)));
    }
}
