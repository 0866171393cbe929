package baton.router.trace;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

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

    /** The latest request with this id. */
    public synchronized Optional<RequestTrace> find(String id) {
        Optional<RequestTrace> found =
                running.stream().filter(trace -> trace.id().equals(id)).reduce((_, last) -> last);
        return found.isPresent()
                ? found
                : ended.stream().filter(trace -> trace.id().equals(id)).findFirst();
    }

    /** Requests under way, the latest first. */
    public List<RequestTrace.Snapshot> running(int most) {
        List<RequestTrace> taken;
        synchronized (this) {
            taken = new ArrayList<>(running).reversed();
        }
        return taken.stream().limit(most).map(RequestTrace::snapshot).toList();
    }

    /** Ended requests, the last first. */
    public List<RequestTrace.Snapshot> ended(int most) {
        List<RequestTrace> taken = new ArrayList<>();
        synchronized (this) {
            Iterator<RequestTrace> each = ended.iterator();
            while (each.hasNext() && taken.size() < most) {
                taken.add(each.next());
            }
        }
        return taken.stream().map(RequestTrace::snapshot).toList();
    }
}
