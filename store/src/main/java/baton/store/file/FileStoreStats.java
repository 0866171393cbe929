package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.connector.Measurement;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** What a store counts, and its events. Thread-safe. */
final class FileStoreStats {
    /** Older events are dropped. */
    private static final int MOST_EVENTS = 1 << 16;

    @GuardedBy("this")
    private final Map<Fault, Long> faults = new TreeMap<>();

    @GuardedBy("this")
    private final Deque<Event> events = new ArrayDeque<>();

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

    private record Event(BlockHash key, boolean stored) {}

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
        add(new Event(key, true));
    }

    synchronized void removed(BlockHash key) {
        add(new Event(key, false));
    }

    synchronized void collected(long files) {
        removed += files;
    }

    private synchronized void add(Event event) {
        if (events.size() == MOST_EVENTS) {
            events.removeFirst();
        }
        events.addLast(event);
    }

    /** Those that follow each other and are of one kind are one. */
    synchronized List<StoreEvent> takeEvents() {
        List<StoreEvent> taken = new ArrayList<>();
        List<BlockHash> run = new ArrayList<>();
        while (!events.isEmpty()) {
            Event event = events.removeFirst();
            run.add(event.key);
            Event next = events.peekFirst();
            if (next == null || next.stored != event.stored) {
                taken.add(new StoreEvent(run, event.stored));
                run.clear();
            }
        }
        return taken;
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
