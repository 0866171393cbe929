package baton.connectors.onesided;

import java.util.Collection;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;

/** The loads of one rank. The rank's thread owns it. */
public class LoadTable<L extends Load> {
    private final Map<String, L> loads = new LinkedHashMap<>();
    /** Events of other threads. */
    private final Queue<Runnable> events = new ConcurrentLinkedQueue<>();

    private final Runnable wake;

    /** @param wake has the rank's thread go on; from any thread */
    protected LoadTable(Runnable wake) {
        this.wake = wake;
    }

    /**
     * Results of loads since the last report.
     *
     * @param received requests with finished loads
     * @param invalid their blocks without the promised content
     * @param unverified those of {@code received} with blocks that came without digests
     */
    public record Finished(Set<String> received, Set<Integer> invalid, Set<String> unverified) {
        public static final Finished NONE = new Finished(Set.of(), Set.of(), Set.of());
    }

    public final boolean isEmpty() {
        return loads.isEmpty();
    }

    protected final boolean hasEvents() {
        return !events.isEmpty();
    }

    /** Has an event of another thread run in the rank's, before the loads go on. Any thread. */
    public final void happened(Runnable event) {
        events.add(event);
        wake.run();
    }

    protected final Collection<L> loads() {
        return Collections.unmodifiableCollection(loads.values());
    }

    /** @param id of the request; of a load that is not reported, any that no other load has */
    public final void start(String id, L load) {
        loads.put(id, load);
    }

    /** The request's blocks are not wanted any more. */
    public final void cancel(String requestId) {
        L load = loads.get(requestId);
        if (load != null) {
            load.cancel();
        }
    }

    /** Goes on with all loads as far as possible. */
    public final void advance(long now) {
        for (Runnable event = events.poll(); event != null; event = events.poll()) {
            event.run();
        }
        boolean moved = true;
        while (moved) {
            moved = false;
            for (L load : loads.values()) {
                moved |= load.advance(now);
            }
        }
    }

    /** Takes out the loads that are over. */
    public final Finished takeFinished(long now) {
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        Set<String> unverified = new LinkedHashSet<>();
        for (Iterator<Map.Entry<String, L>> all = loads.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry<String, L> next = all.next();
            if (next.getValue().isOver()) {
                all.remove();
                if (next.getValue().isReported()) {
                    received.add(next.getKey());
                    invalid.addAll(next.getValue().invalid());
                    if (next.getValue().isUnverified()) {
                        unverified.add(next.getKey());
                    }
                }
                next.getValue().settle(now);
            }
        }
        return new Finished(received, invalid, unverified);
    }

    /** Drops all loads; returns when nothing reads the pool any more. The agent is closed. */
    public final void close() {
        loads.values().forEach(Load::await);
        loads.clear();
    }
}
