package baton.kv;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * Limits the rate of log lines about like events that any peer can cause: some lines in each period are written, further events are counted and named
 * with the next line. For any threads.
 */
public final class Bursts {
    private final int lines;
    private final long periodNanos;
    private final Ticker ticker;
    private long began;
    private int written;
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

    /** Runs {@code line} if an event that happens now is to have one. It takes what is to stand at the line's end: nothing, or how many had none. */
    public synchronized void event(Consumer<String> line) {
        if (hasRoom()) {
            written++;
            line.accept(unsaid == 0 ? "" : " (" + unsaid + " more before)");
            unsaid = 0;
        } else {
            unsaid++;
        }
    }

    /** How many events had no line and should have one together now; counts them as written. 0 if there are none, or not yet. */
    public synchronized long due() {
        return unsaid > 0 && hasRoom() ? rest() : 0;
    }

    /** As {@link #due}, when nothing more comes. */
    public synchronized long rest() {
        long rest = unsaid;
        unsaid = 0;
        return rest;
    }

    private boolean hasRoom() {
        long now = ticker.nanos();
        if (now - began >= periodNanos) {
            began = now;
            written = 0;
        }
        return written < lines;
    }
}
