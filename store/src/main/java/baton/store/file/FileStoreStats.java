package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import baton.store.EventLog;
import baton.store.StoreEvent;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** A store's counters and events. Thread-safe. */
final class FileStoreStats {
    private final Counts counts = new Counts();
    private final EventLog events = new EventLog();

    enum Operation {
        GET,
        PUT,
        CONTAINS,
        COLLECT
    }

    void failed(Operation operation, FileFault cause, long keys) {
        counts.add(
                "baton:kv_file_failures",
                keys,
                Map.of("operation", operation.name().toLowerCase(Locale.ROOT), "cause", cause.label()));
    }

    void read(long bytes) {
        counts.add("baton:kv_file_read_bytes", bytes);
    }

    void stored(BlockHash key, long bytes) {
        counts.add("baton:kv_file_written_bytes", bytes);
        events.add(key, true);
    }

    void removed(BlockHash key) {
        events.add(key, false);
    }

    void collected(long files) {
        counts.add("baton:kv_file_collected", files);
    }

    List<StoreEvent> takeEvents() {
        return events.take();
    }

    List<Measurement> takeMeasurements() {
        return counts.take();
    }
}
