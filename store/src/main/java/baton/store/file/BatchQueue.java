package baton.store.file;

import baton.kv.Deadline;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.StoreTask;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntConsumer;

/**
 * Works on the keys of batches, several at once: all threads on the first batch that has keys left. A thread that hangs in a key keeps that
 * batch from becoming quiet, and no other one. Thread-safe.
 */
final class BatchQueue {
    private final IoTasks tasks;
    private final int concurrent;
    private final int queued;

    @GuardedBy("this")
    private final Deque<Batch> queue = new ArrayDeque<>();

    /** The batches that are not quiet. */
    @GuardedBy("this")
    private final Set<Batch> batches = new HashSet<>();

    @GuardedBy("this")
    private int runners;

    @GuardedBy("this")
    private boolean closed;

    /**
     * @param concurrent keys that are worked on at once
     * @param queued batches that wait
     */
    BatchQueue(IoThreads threads, int concurrent, int queued) {
        // A thread that is about to end still counts as one that runs.
        this.tasks = new IoTasks(threads, concurrent, concurrent);
        this.concurrent = concurrent;
        this.queued = queued;
    }

    /** An operation on some keys. Its state is guarded by the queue. */
    static final class Batch {
        private final StoreTask task;
        private final int keys;
        private final IntConsumer work;
        private final IntConsumer abandoned;
        private int next;
        private int running;
        private boolean ended;

        /**
         * @param keys that are worked on
         * @param work for the key of an index; does not throw
         * @param abandoned takes the number of keys that were not ended when the task was done
         */
        Batch(StoreTask task, int keys, IntConsumer work, IntConsumer abandoned) {
            this.task = task;
            this.keys = keys;
            this.work = work;
            this.abandoned = abandoned;
        }
    }

    /** @return false if it is rejected; its task is over then */
    boolean submit(Batch batch) {
        boolean stuck = tasks.isStuck();
        dropOverdueIfFull();
        boolean accepted;
        synchronized (this) {
            accepted = !closed && !stuck && queue.size() < queued;
            if (accepted) {
                queue.addLast(batch);
                batches.add(batch);
            }
        }
        if (!accepted) {
            batch.task.end();
            return false;
        }
        batch.task.onDone(() -> abandon(batch));
        for (int i = 0; i < batch.keys && startRunner(); i++) {
            // One for each key, as far as there may be.
        }
        boolean served;
        synchronized (this) {
            served = runners > 0 || batch.next == batch.keys;
        }
        if (!served) {
            batch.task.cancel();
        }
        return served;
    }

    /** Overdue batches leave the queue only when they are asked. */
    private void dropOverdueIfFull() {
        List<Batch> waiting;
        synchronized (this) {
            waiting = queue.size() < queued ? List.of() : List.copyOf(queue);
        }
        waiting.forEach(batch -> batch.task.isDone());
    }

    private boolean startRunner() {
        synchronized (this) {
            if (runners == concurrent || queue.isEmpty()) {
                return false;
            }
            runners++;
        }
        if (tasks.submit(new Runner())) {
            return true;
        }
        synchronized (this) {
            runners--;
        }
        return false;
    }

    private final class Runner implements IoTasks.Task {
        private volatile Optional<Deadline> deadline = Optional.empty();

        @Override
        public void run() {
            for (Optional<Unit> unit = next(); unit.isPresent(); unit = next()) {
                Batch batch = unit.get().batch;
                deadline = Optional.of(batch.task.deadline());
                if (!batch.task.isDone()) {
                    batch.work.accept(unit.get().key);
                }
                deadline = Optional.empty();
                ended(batch);
            }
        }

        @Override
        public boolean isOverdue() {
            return deadline.map(Deadline::isOver).orElse(false);
        }
    }

    private record Unit(Batch batch, int key) {}

    private synchronized Optional<Unit> next() {
        Batch batch = queue.peekFirst();
        if (batch == null) {
            runners--;
            return Optional.empty();
        }
        int key = batch.next++;
        batch.running++;
        if (batch.next == batch.keys) {
            queue.removeFirst();
        }
        return Optional.of(new Unit(batch, key));
    }

    private void ended(Batch batch) {
        boolean last;
        synchronized (this) {
            batch.running--;
            last = isLast(batch);
        }
        if (last) {
            batch.task.end();
        }
    }

    /** The task is done: keys that are not begun are left out. */
    private void abandon(Batch batch) {
        boolean last;
        int left;
        synchronized (this) {
            left = batch.keys - batch.next + batch.running;
            batch.next = batch.keys;
            queue.remove(batch);
            last = isLast(batch);
        }
        if (left > 0) {
            batch.abandoned.accept(left);
        }
        if (last) {
            batch.task.end();
        }
    }

    @GuardedBy("this")
    private boolean isLast(Batch batch) {
        boolean last = batch.running == 0 && batch.next == batch.keys && !batch.ended;
        if (last) {
            batch.ended = true;
            batches.remove(batch);
        }
        return last;
    }

    /** Whether all threads are held by keys that are overdue. */
    boolean isStuck() {
        return tasks.isStuck();
    }

    /** Waits until nothing is worked on. Whether that is so. */
    boolean awaitIdle(Deadline deadline) {
        return tasks.awaitIdle(deadline);
    }

    /** Cancels all batches, and rejects further ones. Keys that are being worked on go on. */
    void close() {
        List<Batch> left;
        synchronized (this) {
            closed = true;
            left = List.copyOf(batches);
        }
        left.forEach(batch -> batch.task.cancel());
    }
}
