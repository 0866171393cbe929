package baton.store;

import baton.kv.BlockHash;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/** Values that came and went, until they are taken; the oldest make room. Thread-safe. */
public final class EventLog {
    private static final int MOST = 1 << 16;

    private record Change(BlockHash key, boolean stored) {}

    @GuardedBy("this")
    private final ArrayDeque<Change> changes = new ArrayDeque<>();

    public synchronized void add(BlockHash key, boolean stored) {
        if (changes.size() == MOST) {
            changes.removeFirst();
        }
        changes.addLast(new Change(key, stored));
    }

    /** Keys that follow each other with the same change are one event. */
    public synchronized List<StoreEvent> take() {
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
}
