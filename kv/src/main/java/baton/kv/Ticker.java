package baton.kv;

/** Monotonic time, handed to everything that waits, so that a test can run under a virtual clock. */
@FunctionalInterface
public interface Ticker {
    /** Nanoseconds since an arbitrary origin. Only differences mean anything. */
    long nanos();

    static Ticker system() {
        return System::nanoTime;
    }
}
