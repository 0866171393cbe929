package baton.router.cache;

import java.util.concurrent.atomic.AtomicLong;

/** Entries that the tables of all instances may have places for together. Any thread. */
public final class IndexBudget {
    private final long most;
    private final AtomicLong used = new AtomicLong();

    public IndexBudget(long most) {
        this.most = most;
    }

    boolean take(long entries) {
        long now = used.get();
        while (now + entries <= most) {
            if (used.compareAndSet(now, now + entries)) {
                return true;
            }
            now = used.get();
        }
        return false;
    }

    void giveBack(long entries) {
        used.addAndGet(-entries);
    }

    /** Entries that tables have places for. */
    public long used() {
        return used.get();
    }
}
