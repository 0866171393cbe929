package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.connector.Measurement;
import baton.store.EventLog;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** A store's counters and events. Thread-safe. */
final class FileStoreStats {
    @GuardedBy("this")
    private final Map<Fault, Long> faults = new TreeMap<>();

    private final EventLog events = new EventLog();

    @GuardedBy("this")
    private long read;

    @GuardedBy("this")
    private long written;

    @GuardedBy("this")
    private long removed;

    enum Operation {
        GET,
        PUT,
        CONTAINS,
        COLLECT
    }

    private record Fault(Operation operation, FileFault cause) implements Comparable<Fault> {
        @Override
        public int compareTo(Fault other) {
            return operation == other.operation ? cause.compareTo(other.cause) : operation.compareTo(other.operation);
        }
    }

    synchronized void failed(Operation operation, FileFault cause, long keys) {
        if (keys > 0) {
            faults.merge(new Fault(operation, cause), keys, Long::sum);
        }
    }

    synchronized void read(long bytes) {
        read += bytes;
    }

    synchronized void stored(BlockHash key, long bytes) {
        written += bytes;
        events.add(key, true);
    }

    void removed(BlockHash key) {
        events.add(key, false);
    }

    synchronized void collected(long files) {
        removed += files;
    }

    List<StoreEvent> takeEvents() {
        return events.take();
    }

    synchronized List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>();
        faults.forEach((fault, keys) -> taken.add(new Measurement(
                "baton:kv_file_failures",
                Measurement.Kind.COUNTER,
                keys,
                Map.of("operation", fault.operation.name().toLowerCase(Locale.ROOT), "cause", fault.cause.label()))));
        count(taken, "baton:kv_file_read_bytes", read);
        count(taken, "baton:kv_file_written_bytes", written);
        count(taken, "baton:kv_file_collected", removed);
        faults.clear();
        read = 0;
        written = 0;
        removed = 0;
        return taken;
    }

    private static void count(List<Measurement> taken, String name, long value) {
        if (value > 0) {
            taken.add(Measurement.count(name, value));
        }
    }
}
