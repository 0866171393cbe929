package baton.store.remote;

import baton.kv.Ticker;
import baton.store.StoreTask;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Ends tasks at their deadlines that no caller asks. All tasks share a timer, which is set anew only for a deadline that comes before those
 * of the tasks under way, so that beginning and ending a task wakes no thread of the timer. Thread-safe.
 */
public final class DeadlineAlarm {
    private final Ticker ticker;
    private final Timer timer;
    private final Set<StoreTask> tasks = ConcurrentHashMap.newKeySet();

    @GuardedBy("this")
    private boolean set;

    /** The time of the alarm on the ticker's clock. */
    @GuardedBy("this")
    private long setFor;

    /** Runs tasks later, in real time. */
    @FunctionalInterface
    public interface Timer {
        /** Runs something later, on any thread; not at all once the store is closed. */
        void after(Duration time, Runnable action);
    }

    public DeadlineAlarm(Ticker ticker, Timer timer) {
        this.ticker = ticker;
        this.timer = timer;
    }

    /** Ends a task at its deadline, unless {@link #forget} comes before. */
    public void watch(StoreTask task) {
        tasks.add(task);
        set(task.deadline().remainingNanos());
    }

    public void forget(StoreTask task) {
        tasks.remove(task);
    }

    /** How many tasks are watched. */
    int size() {
        return tasks.size();
    }

    private void set(long nanos) {
        synchronized (this) {
            long at = ticker.nanos() + nanos;
            if (set && setFor - at <= 0) {
                return;
            }
            set = true;
            setFor = at;
        }
        timer.after(Duration.ofNanos(nanos), this::look);
    }

    private void look() {
        synchronized (this) {
            set = false;
        }
        long next = Long.MAX_VALUE;
        for (StoreTask task : tasks) {
            if (!task.isDone()) {
                next = Math.min(next, task.deadline().remainingNanos());
            }
        }
        if (next < Long.MAX_VALUE) {
            set(next);
        }
    }
}
