package baton.router.trace;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;

/** The traces of requests under way, and of those that ended last. Any thread. */
public final class RequestTraces {
    /** About 2 KB each. */
    public static final int KEPT = 2000;

    private final int kept;

    @GuardedBy("this")
    private final Set<RequestTrace> running = new LinkedHashSet<>();

    /** Those that ended last come first. */
    @GuardedBy("this")
    private final Deque<RequestTrace> ended = new ArrayDeque<>();

    /** @param kept ended requests */
    public RequestTraces(int kept) {
        this.kept = kept;
    }

    public synchronized void started(RequestTrace trace) {
        running.add(trace);
    }

    public synchronized void ended(RequestTrace trace) {
        running.remove(trace);
        ended.addFirst(trace);
        if (ended.size() > kept) {
            ended.removeLast();
        }
    }

    /** The latest request with this id among those that may be seen. */
    public synchronized Optional<RequestTrace> find(String id, Predicate<RequestTrace> visible) {
        Predicate<RequestTrace> wanted = trace -> trace.id().equals(id) && visible.test(trace);
        Optional<RequestTrace> found = running.stream().filter(wanted).reduce((_, last) -> last);
        return found.isPresent() ? found : ended.stream().filter(wanted).findFirst();
    }

    /** Requests under way that may be seen, the latest first. */
    public List<RequestTrace.Snapshot> running(int most, Predicate<RequestTrace> visible) {
        List<RequestTrace> taken;
        synchronized (this) {
            taken = new ArrayList<>(running).reversed();
        }
        return taken.stream()
                .filter(visible)
                .limit(most)
                .map(RequestTrace::snapshot)
                .toList();
    }

    /** Ended requests that may be seen, the last first. */
    public List<RequestTrace.Snapshot> ended(int most, Predicate<RequestTrace> visible) {
        List<RequestTrace> taken;
        synchronized (this) {
            taken = ended.stream().filter(visible).limit(most).toList();
        }
        return taken.stream().map(RequestTrace::snapshot).toList();
    }
}
