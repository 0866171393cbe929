package baton.store.remote;

import baton.store.StoreTask;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The work of a task: requests, some of which lead to more. When the task is done before they have ended, they are abandoned, each on its
 * connection's event loop: so no memory is in use when the last one has ended.
 *
 * @param <R> requests of the protocol
 */
public abstract class RemoteOperation<R extends RemoteRequest> {
    protected final RemoteClient<R> client;
    protected final StoreTask task;
    private final int keys;
    private final long bytes;
    private final long started;

    /** Requests that have not ended, and one more until the first ones have been submitted. */
    private final AtomicInteger open = new AtomicInteger(1);

    private final AtomicBoolean abandoned = new AtomicBoolean();

    /**
     * @param keys of the task
     * @param bytes that it counts for while it is in flight
     */
    protected RemoteOperation(RemoteClient<R> client, StoreTask task, int keys, long bytes) {
        this.client = client;
        this.task = task;
        this.keys = keys;
        this.bytes = bytes;
        started = client.ticker().nanos();
    }

    public final StoreTask task() {
        return task;
    }

    final int keys() {
        return keys;
    }

    final long bytes() {
        return bytes;
    }

    /** Why it is not begun though there is a connection; asked right before it begins. */
    protected Optional<Failure> refusal() {
        return Optional.empty();
    }

    /** Sends the first requests. */
    protected abstract void submit();

    final void start() {
        client.alarm().watch(task);
        task.onDone(this::abandon);
        submit();
        requestEnded();
    }

    /** Sends look-ups. */
    protected final void lookUp(List<? extends R> requests) {
        open.addAndGet(requests.size());
        client.lookUp(requests);
    }

    /** Sends requests with values. */
    protected final void transfer(List<? extends R> requests) {
        open.addAndGet(requests.size());
        client.transfer(requests);
    }

    /** Whether its result is not awaited any more. */
    protected final boolean isAbandoned() {
        return abandoned.get();
    }

    /** The task is done before its requests have ended, or is ended with the client. */
    private void abandon() {
        if (open.get() == 0 || !abandoned.compareAndSet(false, true)) {
            return;
        }
        if (task.deadline().isOver()) {
            client.timedOut(open.get(), client.ticker().nanos() - started);
        }
        client.abandon(this);
    }

    final void requestEnded() {
        if (open.decrementAndGet() == 0) {
            client.alarm().forget(task);
            client.ended(this);
            task.end();
        }
    }
}
