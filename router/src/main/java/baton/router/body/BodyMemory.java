package baton.router.body;

import java.util.concurrent.atomic.AtomicLong;

/** Counts the bytes of all request bodies that are received and not yet answered. Any thread. */
public final class BodyMemory {
    /** How many bodies of the largest size allowed fit. */
    public static final int BODIES = 16;

    private final long limit;
    private final AtomicLong used = new AtomicLong();

    /** @param maxBodyBytes the largest request body */
    public BodyMemory(int maxBodyBytes) {
        this.limit = (long) BODIES * maxBodyBytes;
    }

    /** Counts {@code bytes} more and returns true if they fit, else returns false. */
    public boolean take(int bytes) {
        if (used.addAndGet(bytes) <= limit) {
            return true;
        }
        used.addAndGet(-bytes);
        return false;
    }

    public void giveBack(int bytes) {
        long left = used.addAndGet(-bytes);
        assert left >= 0 : "given back twice";
    }

    /** The limit in bytes. */
    public long limit() {
        return limit;
    }
}
