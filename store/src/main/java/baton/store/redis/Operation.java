package baton.store.redis;

import baton.memory.Gate;
import baton.store.StoreTask;
import baton.store.remote.Failure;
import io.lettuce.core.protocol.CommandType;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What a task of a store does: requests, some of which lead to more. It is over when all have ended or its task is done, whichever is
 * first. Threads that copy between the network's buffers and the caller's memory are inside its gate, for one value; behind an ended gate a
 * reply that comes late is dropped, and what was not written yet is not.
 */
abstract class Operation {
    private final Operations operations;
    protected final StoreTask task;
    private final int keys;
    private final long bytes;
    private final long started;

    /** Requests that have not ended, and one more until the first ones have been submitted. */
    private final AtomicInteger open = new AtomicInteger(1);

    private final AtomicBoolean over = new AtomicBoolean();

    private final Gate<StoreTask> gate = new Gate<>() {
        @Override
        protected void over(StoreTask ended) {
            operations.ended(Operation.this);
            ended.end();
        }
    };

    /**
     * @param keys of the batch
     * @param bytes that it counts for while it is in flight
     */
    Operation(Operations operations, StoreTask task, int keys, long bytes) {
        this.operations = operations;
        this.task = task;
        this.keys = keys;
        this.bytes = bytes;
        started = operations.ticker().nanos();
    }

    final int keyCount() {
        return keys;
    }

    final long bytes() {
        return bytes;
    }

    /** Sends the first requests. */
    protected abstract void submit();

    final void start() {
        operations.alarm().watch(task);
        task.onDone(this::abandon);
        submit();
        requestEnded();
    }

    final boolean isOver() {
        return over.get();
    }

    /** Copies to or from the caller's memory, unless it is over. Whether it was copied. */
    final boolean use(Runnable copy) {
        if (!gate.enter()) {
            return false;
        }
        try {
            copy.run();
        } finally {
            gate.exit();
        }
        return true;
    }

    /** The task is done before its requests have ended, or is ended with the store. */
    final void abandon() {
        if (over.compareAndSet(false, true)) {
            if (task.deadline().isOver()) {
                operations.timedOut(open.get(), operations.ticker().nanos() - started);
            }
            operations.alarm().forget(task);
            gate.end(task);
        }
    }

    /** Waits until no memory of the caller is used any more, which is soon. */
    final void awaitQuiet() {
        gate.awaitEmpty();
    }

    final void opened(int requests) {
        open.addAndGet(requests);
    }

    private void requestEnded() {
        if (open.decrementAndGet() == 0 && over.compareAndSet(false, true)) {
            operations.alarm().forget(task);
            gate.end(task);
        }
    }

    /** A request of an operation, which it keeps open until it has ended. */
    abstract static class Part extends Request {
        private final Operation of;
        private final int count;

        /** @param keys that it is for */
        Part(Operation of, CommandType type, long cost, int keys) {
            super(type, cost);
            this.of = of;
            this.count = keys;
        }

        @Override
        final boolean isWanted() {
            return !of.isOver();
        }

        /** What the reply means. */
        protected abstract void apply();

        @Override
        protected final void answered() {
            try {
                apply();
            } finally {
                of.requestEnded();
            }
        }

        /** Whether an error reply has been dealt with otherwise, by another request. */
        protected boolean retried(Failure cause) {
            return false;
        }

        @Override
        protected final void failed(Failure cause, String error) {
            try {
                if (!retried(cause)) {
                    of.operations.refused(cause, error);
                    if (!of.isOver()) {
                        of.operations.counters().failed(cause, count);
                    }
                }
            } finally {
                of.requestEnded();
            }
        }
    }
}
