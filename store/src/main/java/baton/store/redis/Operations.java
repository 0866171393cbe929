package baton.store.redis;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.StoreTask;
import baton.store.remote.DeadlineAlarm;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** The operations of one store at a server: which are begun, which are under way, and what their failures mean for further ones. */
final class Operations implements AutoCloseable {
    private static final Duration PAUSE = Duration.ofSeconds(1);

    private final long maxBytesInFlight;
    private final Ticker ticker;
    private final StoreCounters counters;
    private final Connections connections;
    private final DeadlineAlarm alarm;
    private final Breaker reads;
    private final Breaker writes;

    @GuardedBy("this")
    private final Set<Operation> operations = new HashSet<>();

    @GuardedBy("this")
    private long bytesInFlight;

    @GuardedBy("this")
    private boolean closed;

    /**
     * @param name of the store, for measurements
     * @param valueBytes of a stored value
     */
    Operations(String name, RedisSettings settings, long valueBytes, Ticker ticker) {
        this.maxBytesInFlight = settings.maxBytesInFlight();
        this.ticker = ticker;
        counters = new StoreCounters(name);
        connections = new Connections(settings, valueBytes, counters, ticker);
        alarm = new DeadlineAlarm(ticker, connections::after);
        reads = new Breaker(ticker, PAUSE);
        writes = new Breaker(ticker, PAUSE);
    }

    /** Begins to connect. */
    void start() {
        connections.start();
    }

    StoreTask run(Operation operation, Breaker breaker) {
        int count = operation.keyCount();
        Deadline deadline = operation.task.deadline();
        if (count == 0 || deadline.isOver()) {
            counters.failed(Failure.TIMEOUT, count);
            return StoreTask.rejected(count, deadline);
        }
        if (!connections.isUsable()) {
            return rejected(operation, Failure.UNAVAILABLE);
        }
        synchronized (this) {
            if (closed) {
                return rejected(operation, Failure.CLOSED);
            }
            if (bytesInFlight > 0 && bytesInFlight + operation.bytes() > maxBytesInFlight) {
                return rejected(operation, Failure.QUEUE_FULL);
            }
            if (!breaker.admits()) {
                return rejected(operation, Failure.PAUSED);
            }
            bytesInFlight += operation.bytes();
            operations.add(operation);
        }
        operation.start();
        return operation.task;
    }

    private StoreTask rejected(Operation operation, Failure cause) {
        counters.failed(cause, operation.keyCount());
        return StoreTask.rejected(operation.keyCount(), operation.task.deadline());
    }

    /** An operation uses no memory any more. */
    synchronized void ended(Operation operation) {
        operations.remove(operation);
        bytesInFlight -= operation.bytes();
    }

    DeadlineAlarm alarm() {
        return alarm;
    }

    Ticker ticker() {
        return ticker;
    }

    Connections connections() {
        return connections;
    }

    StoreCounters counters() {
        return counters;
    }

    Breaker reads() {
        return reads;
    }

    Breaker writes() {
        return writes;
    }

    /** The deadline of an operation has passed. */
    void timedOut(int requests, long nanos) {
        counters.failed(Failure.TIMEOUT, requests);
        connections.timedOut(Duration.ofNanos(nanos));
    }

    /** A request has failed. */
    void refused(Failure cause, String error) {
        switch (cause) {
            case LOADING, AUTHENTICATION -> {
                reads.refused();
                writes.refused();
            }
            case OUT_OF_MEMORY, READ_ONLY -> writes.refused();
            default -> {}
        }
        if (!error.isEmpty()) {
            connections.note("has replied: " + error);
        }
    }

    @Override
    public void close() {
        List<Operation> last;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            last = List.copyOf(operations);
        }
        last.forEach(Operation::abandon);
        last.forEach(Operation::awaitQuiet);
        connections.close();
    }
}
