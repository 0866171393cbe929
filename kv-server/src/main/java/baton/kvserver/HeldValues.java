package baton.kvserver;

import baton.kv.Ticker;
import java.util.ArrayDeque;

/** Values that a connection's client copies out of the memory itself, the first held first. One thread uses it. */
final class HeldValues {
    /** More are not held for one connection. */
    private static final int MOST = 4096;

    private final Cache cache;
    private final ArrayDeque<Held> held = new ArrayDeque<>();

    private record Held(Entry entry, long since) {}

    HeldValues(Cache cache) {
        this.cache = cache;
    }

    /**
     * Keeps a value that is held until it is freed.
     *
     * @return false if there are too many, and it is let go of
     */
    boolean add(Entry entry) {
        if (held.size() == MOST) {
            cache.release(entry);
            return false;
        }
        held.add(new Held(entry, Ticker.system().nanos()));
        return true;
    }

    /** Lets go of so many, the first held first. @return false if there are not so many, or it is no number of values */
    boolean free(int values) {
        if (values < 1 || values > held.size()) {
            return false;
        }
        for (int i = 0; i < values; i++) {
            cache.release(held.removeFirst().entry());
        }
        return true;
    }

    void freeAll() {
        held.forEach(value -> cache.release(value.entry()));
        held.clear();
    }

    /** Whether one has been held for longer than so many nanoseconds. */
    boolean isAnyOlderThan(long nanos, long now) {
        Held first = held.peekFirst();
        return first != null && now - first.since() > nanos;
    }
}
