package baton.engine.local;

import baton.engine.ConnectorCall;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Says when the connector does not return from a call. The engine waits for it: the thread may be in the middle of a change of the
 * pool or of the connector, so it cannot be interrupted or given up, but its operator can see which call it waits for.
 */
final class ConnectorWatch implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ConnectorWatch.class);

    /** No connector of Baton's waits as long in ordinary work, and no client should without a word. */
    static final Duration LONG = Duration.ofSeconds(10);

    private static final Duration INTERVAL = Duration.ofSeconds(1);
    private static final int MOST_FRAMES = 12;

    private final String connector;
    private final Supplier<Optional<ConnectorCall>> longest;
    private final double longSeconds;
    private final CountDownLatch closed = new CountDownLatch(1);
    private volatile Optional<ConnectorCall> blocking = Optional.empty();
    /** The log says it again after twice the time. */
    private double nextMention;

    /**
     * @param connector its name
     * @param longest the call that has lasted longest, if any has not returned; for any thread
     */
    ConnectorWatch(String connector, Supplier<Optional<ConnectorCall>> longest, Duration atLeast) {
        this.connector = connector;
        this.longest = longest;
        this.longSeconds = atLeast.toNanos() / 1e9;
        this.nextMention = longSeconds;
    }

    void start() {
        Thread.ofPlatform().name("connector-watch").daemon().start(() -> {
            try {
                while (!closed.await(INTERVAL.toNanos(), TimeUnit.NANOSECONDS)) {
                    look();
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        });
    }

    /** The call that has not returned for too long, when it was last looked. */
    Optional<ConnectorCall> blocking() {
        return blocking;
    }

    void look() {
        Optional<ConnectorCall> found = longest.get().filter(call -> call.seconds() >= longSeconds);
        if (found.isEmpty()) {
            if (blocking.isPresent()) {
                LOG.warn(
                        "{} of {} has returned; the engine goes on",
                        blocking.get().method(),
                        connector);
            }
            nextMention = longSeconds;
        } else if (found.get().seconds() >= nextMention) {
            ConnectorCall call = found.get();
            nextMention = 2 * call.seconds();
            LOG.error(
                    "{} of {} has not returned for {} s. The engine waits for it: no request goes on until it returns. It is at{}",
                    call.method(),
                    connector,
                    Math.round(call.seconds()),
                    Arrays.stream(call.thread().getStackTrace())
                            .limit(MOST_FRAMES)
                            .map(frame -> "\n\tat " + frame)
                            .collect(Collectors.joining()));
        }
        blocking = found;
    }

    @Override
    public void close() {
        closed.countDown();
    }
}
