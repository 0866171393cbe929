package baton.store;

import baton.kv.Deadline;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.function.IntPredicate;

/**
 * An operation of a {@link BlockStore} on a batch of keys. It has two ends: it is <em>done</em> when its result stands, at its deadline at the
 * latest; it is <em>quiet</em> when it uses none of the memory given to it any more. They differ if it hangs: then the caller goes on without
 * the result, but may not reuse the memory yet.
 *
 * <p>Listeners run once, on the thread that brings the end about or adds them, and must be quick. A deadline that passes is noticed by
 * {@link #isDone}, which a caller asks in its loop.
 *
 * <p>Thread-safe.
 */
public final class StoreTask {
    private final Deadline deadline;

    @GuardedBy("this")
    private final BitSet succeeded;

    @GuardedBy("this")
    private final List<Runnable> doneListeners = new ArrayList<>(1);

    @GuardedBy("this")
    private final List<Runnable> quietListeners = new ArrayList<>(1);

    private volatile boolean done;
    private volatile boolean quiet;

    /** @param keys of the batch */
    public StoreTask(int keys, Deadline deadline) {
        this.succeeded = new BitSet(keys);
        this.deadline = deadline;
    }

    /** One that was rejected: over, without success for any key. */
    public static StoreTask rejected(int keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys, deadline);
        task.end();
        return task;
    }

    /**
     * A task for other keys whose work this one does. It ends when this one is quiet, and its own end cancels this one.
     *
     * @param success whether it succeeds for a key; asked when this one is quiet
     */
    public StoreTask forKeys(int keys, IntPredicate success) {
        StoreTask task = new StoreTask(keys, deadline);
        task.onDone(this::cancel);
        onQuiet(() -> {
            for (int key = 0; key < keys; key++) {
                if (success.test(key)) {
                    task.succeed(key);
                }
            }
            task.end();
        });
        return task;
    }

    public Deadline deadline() {
        return deadline;
    }

    /** Whether its result stands. */
    public boolean isDone() {
        if (!done && deadline.isOver()) {
            markDone();
        }
        return done;
    }

    /** Whether it uses none of the memory given to it any more. */
    public boolean isQuiet() {
        return quiet;
    }

    /** Whether it succeeded for a key; final once it is done. */
    public synchronized boolean succeeded(int key) {
        return succeeded.get(key);
    }

    /** The number of keys from the front for which the operation succeeded. */
    public synchronized int succeededFromFront() {
        return succeeded.nextClearBit(0);
    }

    /** The number of keys for which the operation succeeded. */
    public synchronized int succeededCount() {
        return succeeded.cardinality();
    }

    public void onDone(Runnable listener) {
        synchronized (this) {
            if (!done) {
                doneListeners.add(listener);
                return;
            }
        }
        listener.run();
    }

    public void onQuiet(Runnable listener) {
        synchronized (this) {
            if (!quiet) {
                quietListeners.add(listener);
                return;
            }
        }
        listener.run();
    }

    /** The store reports that the operation has succeeded for a key. Without effect once it is done. */
    public synchronized void succeed(int key) {
        if (!done) {
            succeeded.set(key);
        }
    }

    /**
     * For the store: the operation has succeeded for some of the keys that follow each other. Without effect once it is done.
     *
     * @param first index of the key that bit 0 is for
     */
    public synchronized void succeed(int first, BitSet those) {
        if (!done) {
            for (int key = those.nextSetBit(0); key >= 0; key = those.nextSetBit(key + 1)) {
                succeeded.set(first + key);
            }
        }
    }

    /** The store reports that the operation is over and uses no memory any more. */
    public void end() {
        markDone();
        List<Runnable> listeners;
        synchronized (this) {
            if (quiet) {
                return;
            }
            quiet = true;
            listeners = List.copyOf(quietListeners);
            quietListeners.clear();
        }
        listeners.forEach(Runnable::run);
    }

    /** Lets the result stand as it is, e.g. because the caller needs it no longer. The store goes on only to end its use of memory. */
    public void cancel() {
        markDone();
    }

    private void markDone() {
        List<Runnable> listeners;
        synchronized (this) {
            if (done) {
                return;
            }
            done = true;
            listeners = List.copyOf(doneListeners);
            doneListeners.clear();
        }
        listeners.forEach(Runnable::run);
    }
}
