package baton.store.remote;

import baton.kv.Deadline;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.Optional;

/**
 * Keeps commands of a kind from a server that refuses them: after a refusal none is sent for a pause, then one operation goes as a probe.
 * Thread-safe.
 */
public final class Breaker {
    private final Ticker ticker;
    private final Duration pause;

    /** Until when nothing is let through; empty while all is well. */
    @GuardedBy("this")
    private Optional<Deadline> until = Optional.empty();

    public Breaker(Ticker ticker, Duration pause) {
        this.ticker = ticker;
        this.pause = pause;
    }

    /** Whether an operation may be tried. The first one after a pause may, and begins another pause, which its success ends. */
    public synchronized boolean admits() {
        if (until.isEmpty()) {
            return true;
        }
        if (!until.get().isOver()) {
            return false;
        }
        until = Optional.of(Deadline.after(ticker, pause));
        return true;
    }

    public synchronized boolean isClosed() {
        return until.isEmpty();
    }

    public synchronized void refused() {
        until = Optional.of(Deadline.after(ticker, pause));
    }

    public synchronized void succeeded() {
        until = Optional.empty();
    }
}
