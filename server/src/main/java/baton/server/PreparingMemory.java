package baton.server;

import java.util.concurrent.atomic.AtomicLong;

/**
 * The memory of all requests before the engine has them: bodies, their JSON, rendered and encoded prompts. It is counted by
 * estimates that are rather too high. A quarter is reserved for small requests, so that a few large ones do not block them. Any
 * thread.
 */
final class PreparingMemory {
    /** Most bytes of a small request. */
    private static final long SMALL = 1 << 20;

    private final long limit;
    private final AtomicLong used = new AtomicLong();

    PreparingMemory(long limit) {
        this.limit = limit;
    }

    /** Most bytes that one request can get. */
    long most() {
        return limit - limit / 4;
    }

    long used() {
        return used.get();
    }

    /**
     * Counts {@code bytes} as used if there is room.
     *
     * @param held bytes held by the same request until now
     */
    boolean reserve(long bytes, long held) {
        long allowed = held + bytes <= SMALL ? limit : most();
        long now = used.get();
        while (now + bytes <= allowed) {
            if (used.compareAndSet(now, now + bytes)) {
                return true;
            }
            now = used.get();
        }
        return false;
    }

    void release(long bytes) {
        used.addAndGet(-bytes);
    }
}
