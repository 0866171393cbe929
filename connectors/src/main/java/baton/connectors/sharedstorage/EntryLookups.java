package baton.connectors.sharedstorage;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.IoTasks;
import baton.store.IoThreads;
import java.time.Duration;
import java.util.Optional;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs look-ups in the storage beside the scheduler's thread: several at once, a bounded number, each with a deadline. A look-up that is
 * over its deadline, or that cannot be started because too many hang, has no result; it is counted and logged.
 *
 * <p>Confined to the scheduler's thread, but for the look-ups.
 */
final class EntryLookups {
    private static final Logger log = LoggerFactory.getLogger(EntryLookups.class);

    static final Duration TIMEOUT = Duration.ofSeconds(1);
    private static final int CONCURRENT = 8;
    private static final int QUEUED = 1024;
    private static final int LOG_LINES = 3;
    private static final Duration LOG_PERIOD = Duration.ofMinutes(1);

    private final IoTasks tasks;
    private final Ticker ticker;
    private final Runnable wake;
    private final Bursts bursts;
    private int timeouts;

    /** @param wake called from any thread when a look-up has ended */
    EntryLookups(IoThreads threads, Ticker ticker, Runnable wake) {
        this.tasks = new IoTasks(threads, CONCURRENT, QUEUED);
        this.ticker = ticker;
        this.wake = wake;
        this.bursts = new Bursts(LOG_LINES, LOG_PERIOD, ticker);
    }

    /** The deadline of a wait that begins now. */
    Deadline deadline() {
        return Deadline.after(ticker, TIMEOUT);
    }

    /** @param action runs on another thread; one that throws has no result */
    <T> Lookup<T> start(String requestId, Deadline deadline, Supplier<T> action) {
        Lookup<T> lookup = new Lookup<>(requestId, deadline, action, wake);
        if (deadline.isOver()) {
            // A request's further look-up after one that took too long, which was counted.
            lookup.state = new State.Missed<>();
        } else {
            lookup.rejected = !tasks.submit(lookup);
        }
        return lookup;
    }

    /** Whether look-ups are not even started, because too many hang. */
    boolean isStuck() {
        return tasks.isStuck();
    }

    /** The state of a look-up. It does not change after it has left {@link State.Pending}. */
    <T> State<T> state(Lookup<T> lookup) {
        if (lookup.state instanceof State.Pending<T>) {
            Optional<Optional<T>> result = lookup.result;
            if (result.isPresent()) {
                lookup.state = result.get().<State<T>>map(State.Done::new).orElseGet(State.Missed::new);
            } else if (lookup.rejected || lookup.deadline.isOver()) {
                lookup.state = new State.Missed<>();
                lookup.cancelled = true;
                timeouts++;
                bursts.event(more -> log.warn(
                        "request {}: the storage's directory has not answered within {}; the request goes on without it{}",
                        lookup.requestId,
                        TIMEOUT,
                        more));
            }
        }
        return lookup.state;
    }

    /** The result is not wanted any more. */
    void cancel(Lookup<?> lookup) {
        lookup.cancelled = true;
    }

    /** Look-ups without a result since the last call because they took too long. */
    int takeTimeouts() {
        int taken = timeouts;
        timeouts = 0;
        return taken;
    }

    sealed interface State<T> {
        record Pending<T>() implements State<T> {}

        record Done<T>(T result) implements State<T> {}

        /** The look-up took too long, or failed. */
        record Missed<T>() implements State<T> {}
    }

    static final class Lookup<T> implements IoTasks.Task {
        private final String requestId;
        private final Deadline deadline;
        private final Supplier<T> action;
        private final Runnable wake;

        /** Owned by the scheduler's thread. */
        private State<T> state = new State.Pending<>();

        /** Owned by the scheduler's thread. */
        private boolean rejected;

        private volatile boolean cancelled;

        /** Empty until the action has ended; then its result, empty if it failed. */
        private volatile Optional<Optional<T>> result = Optional.empty();

        private Lookup(String requestId, Deadline deadline, Supplier<T> action, Runnable wake) {
            this.requestId = requestId;
            this.deadline = deadline;
            this.action = action;
            this.wake = wake;
        }

        @Override
        public void run() {
            if (cancelled) {
                return;
            }
            try {
                result = Optional.of(Optional.of(action.get()));
            } catch (RuntimeException e) {
                log.error("request {}: looking for its KV cache entry failed unexpectedly", requestId, e);
                result = Optional.of(Optional.empty());
            }
            wake.run();
        }

        @Override
        public boolean isOverdue() {
            return deadline.isOver();
        }
    }
}
