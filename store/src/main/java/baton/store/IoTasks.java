package baton.store;

import baton.kv.Deadline;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/**
 * Runs tasks that may hang, a bounded number at once and a bounded number in a queue. A task that hangs cannot be ended, so it keeps its
 * thread; when all threads are kept so, further tasks are rejected instead of being queued. Thread-safe.
 */
public final class IoTasks {
    private final IoThreads threads;
    private final int concurrent;
    private final int queueLimit;

    @GuardedBy("this")
    private final List<Task> running = new ArrayList<>();

    @GuardedBy("this")
    private final Deque<Task> queue = new ArrayDeque<>();

    /**
     * @param concurrent tasks that run at once
     * @param queueLimit tasks that wait for a thread
     */
    public IoTasks(IoThreads threads, int concurrent, int queueLimit) {
        this.threads = threads;
        this.concurrent = concurrent;
        this.queueLimit = queueLimit;
    }

    public interface Task {
        /** Does not throw. */
        void run();

        /** Whether its deadline has passed, so that its result is not awaited any more. Must take no lock. */
        boolean isOverdue();
    }

    /** @return false if the task is rejected: the queue is full, all threads are held by tasks that are overdue, or there is no memory
     *     for a thread */
    public synchronized boolean submit(Task task) {
        if (isStuck()) {
            return false;
        }
        if (running.size() == concurrent && queue.size() >= queueLimit) {
            queue.removeIf(Task::isOverdue);
            if (queue.size() >= queueLimit) {
                return false;
            }
        }
        return add(task);
    }

    /** Runs a task once more that was submitted and has ended; it is never rejected. */
    public synchronized void resubmit(Task task) {
        if (!add(task)) {
            queue.addLast(task);
        }
    }

    /** Whether all threads are held by tasks that are overdue. */
    public synchronized boolean isStuck() {
        return running.size() == concurrent && running.stream().allMatch(Task::isOverdue);
    }

    public synchronized boolean isIdle() {
        return running.isEmpty() && queue.isEmpty();
    }

    /** Waits until all tasks have ended. An interrupt does not end it, and is set again after it. Whether they have. */
    public boolean awaitIdle(Deadline deadline) {
        boolean interrupted = false;
        while (!isIdle() && !deadline.isOver()) {
            try {
                awaitChange();
            } catch (InterruptedException _) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return isIdle();
    }

    /** Waits as {@link IoThreads#awaitChange}, for {@link #isIdle}. */
    public synchronized void awaitChange() throws InterruptedException {
        if (!isIdle()) {
            threads.awaitChange(this);
        }
    }

    private synchronized boolean add(Task task) {
        if (running.size() < concurrent) {
            return start(task);
        }
        queue.addLast(task);
        return true;
    }

    /** False if the system has no memory for a thread. */
    private synchronized boolean start(Task task) {
        running.add(task);
        try {
            threads.start(() -> {
                try {
                    task.run();
                } finally {
                    ended(task);
                }
            });
            return true;
        } catch (OutOfMemoryError e) {
            running.remove(task);
            return false;
        }
    }

    private synchronized void ended(Task task) {
        running.remove(task);
        if (!queue.isEmpty()) {
            Task next = queue.removeFirst();
            if (!start(next)) {
                queue.addFirst(next);
            }
        }
        notifyAll();
    }
}
