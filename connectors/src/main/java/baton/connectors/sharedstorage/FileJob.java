package baton.connectors.sharedstorage;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.prompt.StorageException;
import java.time.Duration;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Work on files for one request, with a deadline that a rank's thread enforces. It is done in tasks: one runs at a time, as far as
 * possible, and {@link #changed} starts the next one. No task waits for a rank.
 *
 * <p>A task touches the pools only while it holds the job's monitor and the job is not over. A rank's thread ends a job under the same
 * monitor, so a job that is over, for instance because of its deadline, never reads or writes a pool again, however long its file takes. The
 * task is not interrupted: that would close its file, which waits for the hanging operation.
 *
 * <p>Its state is guarded by its monitor.
 */
abstract class FileJob implements IoTasks.Task {
    private static final Logger log = LoggerFactory.getLogger(FileJob.class);

    /** A task that still runs so long after the end of its job hangs. */
    private static final Duration GRACE = Duration.ofSeconds(5);

    private final String name;
    private final IoTasks tasks;
    private final IoThreads threads;
    private final Ticker ticker;
    private final Runnable onEnd;
    private final long startNanos;
    private long endNanos;
    private boolean over;
    private boolean reported;
    private Optional<String> cause = Optional.empty();
    private String reason = "";

    /** Its first task was accepted, or is being submitted. */
    private boolean submitted;

    /** A task is queued or runs. */
    private boolean active;

    /** Something has changed since the task that runs was started. */
    private boolean again;

    private volatile boolean overdue;

    /** The deadline after the job's end; empty before. */
    private volatile Optional<Deadline> grace = Optional.empty();

    /**
     * @param name for logs
     * @param onEnd run once when the job is over, with the monitor held
     */
    FileJob(String name, IoTasks tasks, IoThreads threads, Ticker ticker, Runnable onEnd) {
        this.name = name;
        this.tasks = tasks;
        this.threads = threads;
        this.ticker = ticker;
        this.onEnd = onEnd;
        this.startNanos = ticker.nanos();
    }

    /** Goes on as far as possible, and calls {@link #end} when all is done. Runs in a task, without the monitor; not if the job is over. */
    abstract void advance() throws StorageException;

    /** Releases the job's resources. Runs in a task after the job is over, without the monitor, perhaps more than once. */
    void release() {}

    final void begin() {
        synchronized (this) {
            submitted = true;
            active = true;
        }
        if (!tasks.submit(this)) {
            synchronized (this) {
                submitted = false;
                active = false;
            }
            fail("timeout", "the storage does not answer");
        }
    }

    /** Starts a task, as the job may be able to go on. */
    final synchronized void changed() {
        notifyAll();
        if (!submitted) {
            return;
        }
        if (active) {
            again = true;
        } else {
            active = true;
            tasks.resubmit(this);
        }
    }

    @Override
    public final void run() {
        boolean toAdvance;
        synchronized (this) {
            again = false;
            toAdvance = !over;
        }
        try {
            if (toAdvance) {
                advance();
            }
        } catch (StorageException e) {
            fail(e.fault().label(), String.valueOf(e.getMessage()));
        } catch (RuntimeException | Error e) {
            log.error("{} failed unexpectedly", name, e);
            fail("internal", e.toString());
        }
        boolean toRelease;
        synchronized (this) {
            toRelease = over;
        }
        if (toRelease) {
            try {
                release();
            } catch (RuntimeException | Error e) {
                log.error("{} left something behind", name, e);
            }
        }
        synchronized (this) {
            active = again || (over && !toRelease);
            if (active) {
                tasks.resubmit(this);
            }
        }
    }

    @Override
    public final boolean isOverdue() {
        return overdue || grace.map(Deadline::isOver).orElse(false);
    }

    final void fail(String label) {
        fail(label, label);
    }

    /** Ends the job, unless it is over already. When this returns the job does not touch the pools any more. */
    final synchronized void fail(String label, String why) {
        if (!over) {
            cause = Optional.of(label);
            reason = why;
            end();
            if (!active) {
                changed();
            }
        }
    }

    final synchronized void end() {
        if (!over) {
            over = true;
            endNanos = ticker.nanos();
            grace = Optional.of(Deadline.after(ticker, GRACE));
            notifyAll();
            onEnd.run();
        }
    }

    /** True once: the outcome is reported once, whichever rank asks. */
    final synchronized boolean isFirstReport() {
        boolean first = !reported;
        reported = true;
        return first;
    }

    final synchronized boolean isOver() {
        return over;
    }

    /** Why it failed, as a metric's label; empty if it did not. */
    final synchronized Optional<String> cause() {
        return cause;
    }

    /** Why it failed, for a log. */
    final synchronized String reason() {
        return reason;
    }

    /** The seconds from {@code nanos} to the job's end; 0 if it ended before. */
    final synchronized double secondsAfter(long nanos) {
        return Math.max(0, endNanos - nanos) / 1e9;
    }

    final long startNanos() {
        return startNanos;
    }

    /** Returns when the job is over. At the deadline it is. */
    final synchronized void awaitEnd(long deadline) {
        while (!over) {
            awaitChange(deadline);
        }
    }

    /** Fails the job if it is not over by now. Called by a rank's thread. */
    final synchronized void expireAt(long deadline) {
        long now = ticker.nanos();
        if (!over && now - deadline >= 0) {
            overdue = true;
            fail("timeout", "not done within " + (now - startNanos) / 1_000_000 + " ms");
        }
    }

    /** Lets time pass, or fails the job if the deadline has passed. */
    private synchronized void awaitChange(long deadline) {
        expireAt(deadline);
        if (over) {
            return;
        }
        try {
            threads.awaitChange(this);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            fail("interrupted");
        }
    }
}
