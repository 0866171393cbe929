package baton.kv;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.function.Consumer;

/**
 * Limits the rate of log lines about similar events that any peer can cause: in each period some events are logged, further ones are
 * counted and the count is added to the next line. Thread-safe.
 */
public final class Bursts {
    private final int lines;
    private final long periodNanos;
    private final Ticker ticker;

    @GuardedBy("this")
    private long began;

    @GuardedBy("this")
    private int written;

    @GuardedBy("this")
    private long unsaid;

    /**
     * @param lines at least 1
     * @param period in which so many are written
     */
    public Bursts(int lines, Duration period, Ticker ticker) {
        this.lines = lines;
        this.periodNanos = period.toNanos();
        this.ticker = ticker;
        this.began = ticker.nanos();
    }

    /** Counts an event and runs {@code line} if it is to be logged. Its argument is to be put at the line's end: empty, or how many events before it were not logged. */
    public synchronized void event(Consumer<String> line) {
        if (hasRoom()) {
            written++;
            line.accept(unsaid == 0 ? "" : " (" + unsaid + " more before)");
            unsaid = 0;
        } else {
            unsaid++;
        }
    }

    /** Number of events that were not logged and are to be logged together now; counts them as logged. 0 if there are none, or not yet. */
    public synchronized long due() {
        return unsaid > 0 && hasRoom() ? rest() : 0;
    }

    /** As {@link #due}, without waiting for the end of the period: for the last log line. */
    public synchronized long rest() {
        long rest = unsaid;
        unsaid = 0;
        return rest;
    }

    @GuardedBy("this")
    private boolean hasRoom() {
        long now = ticker.nanos();
        if (now - began >= periodNanos) {
            began = now;
            written = 0;
        }
        return written < lines;
    }
}
