package baton.kv;

import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * The one thread that may use some state. {@link #check} tests it where assertions are enabled ({@code -ea}), as they are in tests, and
 * costs nothing elsewhere.
 */
public final class OwnerThread {
    private final AtomicReference<@Nullable Thread> owner;

    private OwnerThread(@Nullable Thread owner) {
        this.owner = new AtomicReference<>(owner);
    }

    public static OwnerThread of(Thread owner) {
        return new OwnerThread(owner);
    }

    /** The first thread that calls {@link #check} is the owner. */
    public static OwnerThread firstToCheck() {
        return new OwnerThread(null);
    }

    /** @throws AssertionError if assertions are enabled and another thread than the owner calls */
    public void check() {
        assert isOwner() : Thread.currentThread().getName() + " uses the state of the thread " + owner.get();
    }

    private boolean isOwner() {
        Thread current = Thread.currentThread();
        return current.equals(owner.get()) || owner.compareAndSet(null, current);
    }
}
