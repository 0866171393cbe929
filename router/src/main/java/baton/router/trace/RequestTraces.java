package baton.router.trace;

import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;

/**
 * The traces of requests under way, and of those that ended last. Those are kept as bytes in memory of a fixed size: each collection of
 * young objects would copy thousands of small objects that live for some seconds. Any thread.
 */
public final class RequestTraces {
    /** Ended requests. */
    public static final int KEPT = 2000;

    /** For ended requests, of which one takes about 1 KB; fewer are kept if they are longer. */
    public static final int BYTES = 4 << 20;

    private final Ticker ticker;

    @GuardedBy("this")
    private final Set<RequestTrace> running = new LinkedHashSet<>();

    @GuardedBy("this")
    private final ByteRing ended;

    /**
     * @param kept ended requests at most
     * @param bytes that they take at most
     */
    public RequestTraces(int kept, int bytes, Ticker ticker) {
        this.ended = new ByteRing(kept, bytes);
        this.ticker = ticker;
    }

    public synchronized void started(RequestTrace trace) {
        running.add(trace);
    }

    /** Keeps a request that has ended, and returns it. */
    public RequestTrace.Snapshot ended(RequestTrace trace) {
        RequestTrace.Snapshot kept = trace.snapshot();
        byte[] bytes = TraceBytes.encode(kept, ticker.nanos());
        synchronized (this) {
            running.remove(trace);
            ended.add(trace.id().hashCode(), bytes);
        }
        return kept;
    }

    /** The latest request with this id among those that may be seen. */
    public Optional<RequestTrace.Snapshot> find(String id, Predicate<RequestTrace.Snapshot> visible) {
        List<RequestTrace.Snapshot> alive;
        List<byte[]> over;
        synchronized (this) {
            alive = running.stream()
                    .filter(trace -> trace.id().equals(id))
                    .map(RequestTrace::snapshot)
                    .toList();
            over = ended.withKey(id.hashCode());
        }
        long now = ticker.nanos();
        Optional<RequestTrace.Snapshot> found =
                alive.reversed().stream().filter(visible).findFirst();
        return found.isPresent()
                ? found
                : over.stream()
                        .map(bytes -> TraceBytes.decode(bytes, now))
                        .filter(trace -> trace.head().id().equals(id) && visible.test(trace))
                        .findFirst();
    }

    /** Requests under way that may be seen, the latest first. */
    public List<RequestTrace.Snapshot> running(int most, Predicate<RequestTrace.Snapshot> visible) {
        List<RequestTrace> taken;
        synchronized (this) {
            taken = new ArrayList<>(running).reversed();
        }
        return taken.stream()
                .map(RequestTrace::snapshot)
                .filter(visible)
                .limit(most)
                .toList();
    }

    /** Ended requests that may be seen, the last first. */
    public List<RequestTrace.Snapshot> ended(int most, Predicate<RequestTrace.Snapshot> visible) {
        List<byte[]> all;
        synchronized (this) {
            all = ended.all();
        }
        long now = ticker.nanos();
        return all.stream()
                .map(bytes -> TraceBytes.decode(bytes, now))
                .filter(visible)
                .limit(most)
                .toList();
    }
}
