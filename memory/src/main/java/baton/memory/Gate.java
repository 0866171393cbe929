package baton.memory;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import org.jspecify.annotations.Nullable;

/**
 * A gate around memory that several threads use piece by piece. A thread that touches the memory is inside, between {@link #enter} and
 * {@link #exit}, for one piece at a time, and never waits for a peer or for another thread there. So a gate that is ended is soon empty.
 *
 * <p>Lock order: a gate's monitor is a leaf. No other lock is taken while it is held; {@link #over} runs without it.
 *
 * @param <E> how it ended
 */
public abstract class Gate<E> {
    @GuardedBy("this")
    private int inside;

    @GuardedBy("this")
    private @Nullable E end;

    @GuardedBy("this")
    private boolean over;

    /** {@link #over} has returned. */
    @GuardedBy("this")
    private boolean finished;

    /** Called once, after the end, when no thread is inside: nothing touches the memory any more. */
    protected abstract void over(E end);

    /** @return false if it has ended; otherwise {@link #exit} must follow */
    public final synchronized boolean enter() {
        if (end != null) {
            return false;
        }
        inside++;
        return true;
    }

    /** Ends a call of {@link #enter}. */
    public final void exit() {
        E last;
        synchronized (this) {
            inside--;
            last = takeEnd();
        }
        if (last != null) {
            finish(last);
        }
    }

    /** Whether no thread can enter any more. */
    public final synchronized boolean isEnded() {
        return end != null;
    }

    /** Lets no thread in any more. The first end counts, later ones do nothing. Does not wait for the threads that are inside. */
    public final void end(E how) {
        E last;
        synchronized (this) {
            if (end != null) {
                return;
            }
            end = how;
            last = takeEnd();
        }
        if (last != null) {
            finish(last);
        }
    }

    /** The end, for the one thread that finds it complete. */
    @GuardedBy("this")
    private @Nullable E takeEnd() {
        if (end == null || inside > 0 || over) {
            return null;
        }
        over = true;
        return end;
    }

    private void finish(E last) {
        try {
            over(last);
        } finally {
            synchronized (this) {
                finished = true;
                notifyAll();
            }
        }
    }

    /**
     * Waits until no thread is inside and {@link #over} has returned; the gate has been ended before. Without a deadline, because the
     * caller is about to give the memory back, for which there is no alternative to waiting, and a thread that is inside copies a piece
     * and waits for nothing.
     */
    public final void awaitEmpty() {
        boolean interrupted = false;
        synchronized (this) {
            while (!finished) {
                try {
                    wait();
                } catch (InterruptedException _) {
                    interrupted = true;
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
