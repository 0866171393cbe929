package baton.store.lm;

import baton.store.StoreTask;
import baton.store.remote.Failure;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What a task does: requests, some of which lead to more. When the task is done before they have ended, they are abandoned, each on its
 * connection's event loop: so no memory is in use when the last one has ended.
 */
abstract class LmOperation {
    protected final LmConnections connections;
    protected final StoreTask task;
    private final long bytes;
    private final long started;

    /** Requests that have not ended, and one more until the first ones have been submitted. */
    private final AtomicInteger open = new AtomicInteger(1);

    private final AtomicBoolean abandoned = new AtomicBoolean();

    /** @param bytes that it counts for while it is in flight */
    LmOperation(LmConnections connections, StoreTask task, long bytes) {
        this.connections = connections;
        this.task = task;
        this.bytes = bytes;
        started = connections.ticker().nanos();
    }

    final long bytes() {
        return bytes;
    }

    /** Sends the first requests. */
    protected abstract void submit();

    final void start() {
        connections.alarm().watch(task);
        task.onDone(this::abandon);
        submit();
        requestEnded();
    }

    /** Whether its result is not awaited any more. */
    final boolean isAbandoned() {
        return abandoned.get();
    }

    /** The task is done before its requests have ended, or is ended with the client. */
    final void abandon() {
        if (open.get() == 0 || !abandoned.compareAndSet(false, true)) {
            return;
        }
        if (task.deadline().isOver()) {
            connections.timedOut(open.get(), connections.ticker().nanos() - started);
        }
        connections.abandon(this);
    }

    /** So many requests will be submitted. */
    final void opened(List<? extends LmRequest> requests) {
        open.addAndGet(requests.size());
    }

    final void requestEnded() {
        if (open.decrementAndGet() == 0) {
            connections.alarm().forget(task);
            connections.ended(this);
            task.end();
        }
    }

    /** A request of an operation, which it keeps open until it has ended. */
    abstract static class Part extends LmRequest {
        private final LmOperation of;
        private final int count;

        /** @param keys that it is for */
        Part(LmOperation of, long cost, int keys) {
            super(cost);
            this.of = of;
            this.count = keys;
        }

        final LmOperation operation() {
            return of;
        }

        @Override
        protected final void ended() {
            of.requestEnded();
        }

        @Override
        protected final void failed(Failure cause) {
            of.connections.counters().failed(cause, count);
        }
    }
}
