package baton.router;

import java.util.concurrent.atomic.AtomicLong;

/** The bytes of all bodies that have come and are not yet answered. For any threads. */
final class BodyMemory {
    /** Of the longest that there may be. */
    static final int BODIES = 16;

    private final long limit;
    private final AtomicLong used = new AtomicLong();

    BodyMemory(RouterConfig.Limits limits) {
        this.limit = (long) BODIES * limits.maxBodyBytes();
    }

    /** Counts so many bytes more if there is room. */
    boolean take(int bytes) {
        if (used.addAndGet(bytes) <= limit) {
            return true;
        }
        used.addAndGet(-bytes);
        return false;
    }

    void giveBack(int bytes) {
        used.addAndGet(-bytes);
    }

    long limit() {
        return limit;
    }
}
