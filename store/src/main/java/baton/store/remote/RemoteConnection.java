package baton.store.remote;

import io.netty.channel.EventLoop;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/*
 * down -> (connect, open the session) -> up <-> suspect -> down
 *
 * All state belongs to the connection's event loop; other threads hand requests to it, and read whether it is usable.
 *
 * Requests wait in a queue until there is room in the window of unanswered requests, which bounds the bytes sent in vain when an operation
 * is abandoned.
 *
 * A connection is suspect when an operation's deadline has passed and nothing has come for long: nothing is given to it until something
 * comes. If nothing does it is closed and connected anew, which succeeds only with a server that answers. So a server that hangs costs
 * operations a deadline once.
 */

/**
 * A connection to the server that is made again whenever it is lost.
 *
 * @param <R> requests of the protocol
 */
public final class RemoteConnection<R extends RemoteRequest> {
    private static final Duration FIRST_BACKOFF = Duration.ofMillis(50);
    private static final Duration MOST_BACKOFF = Duration.ofSeconds(2);
    private static final int MOST_UNANSWERED = 1024;

    private final RemoteClient<R> client;
    private final EventLoop loop;
    private final ArrayDeque<R> queue = new ArrayDeque<>();
    private final ArrayDeque<R> sent = new ArrayDeque<>();

    private @Nullable RemoteSession<R> session;
    private boolean ready;
    private boolean suspect;
    private boolean closed;
    private long sentBytes;
    private long suspicions;
    private int attempts;

    private volatile boolean usable;

    /** Since when nothing has come: the last bytes, or the first request given to it after all had been answered. */
    private volatile long silentSince;

    private volatile boolean waiting;

    RemoteConnection(RemoteClient<R> client, EventLoop loop) {
        this.client = client;
        this.loop = loop;
    }

    /** Whether requests given to it can be expected to be answered. For any thread. */
    boolean isUsable() {
        return usable;
    }

    EventLoop loop() {
        return loop;
    }

    RemoteClient<R> client() {
        return client;
    }

    /** Sends requests, as soon as there is room for them. For any thread. */
    void submit(List<? extends R> requests) {
        if (!waiting) {
            waits();
        }
        run(() -> {
            if (!ready) {
                waiting = false;
                requests.forEach(request -> request.fail(Failure.UNAVAILABLE));
                return;
            }
            queue.addAll(requests);
            pump();
        });
    }

    /** Ends the use of memory by requests of an operation. For any thread. */
    void abandon(RemoteOperation<R> operation) {
        run(() -> {
            for (R request : sent) {
                if (request.isOf(operation)) {
                    request.abandon();
                }
            }
            R first = sent.peekFirst();
            if (first != null && first.isAbandoned() && session != null) {
                session.skipRest();
            }
            queue.removeIf(RemoteRequest::isUnwanted);
        });
    }

    private void run(Runnable action) {
        if (loop.inEventLoop()) {
            action.run();
        } else {
            try {
                loop.execute(action);
            } catch (RejectedExecutionException _) {
                // The loops end after all connections are closed: there is no other thread, and only failures are left.
                action.run();
            }
        }
    }

    private void pump() {
        RemoteSession<R> to = session;
        if (!ready || to == null) {
            return;
        }
        boolean written = false;
        while (!queue.isEmpty()) {
            R next = queue.getFirst();
            if (next.isUnwanted()) {
                queue.removeFirst();
                continue;
            }
            if (!sent.isEmpty() && (sent.size() >= MOST_UNANSWERED || sentBytes + next.cost() > client.window())) {
                break;
            }
            queue.removeFirst();
            write(to, next);
            written = true;
        }
        waiting = !sent.isEmpty();
        if (written) {
            to.channel().flush();
        }
    }

    private void write(RemoteSession<R> to, R request) {
        if (sent.isEmpty() && !waiting) {
            waits();
        }
        sent.addLast(request);
        sentBytes += request.cost();
        request.sent(to.write(to.channel(), request));
    }

    private void waits() {
        silentSince = client.ticker().nanos();
        waiting = true;
    }

    /** Sends a request past the queue. */
    void send(RemoteSession<R> from, R request) {
        if (isCurrent(from)) {
            write(from, request);
            from.channel().flush();
        }
    }

    /** The request that gets the next reply. */
    @Nullable
    R first() {
        return sent.peekFirst();
    }

    boolean isCurrent(RemoteSession<R> other) {
        return other.equals(session) && other.channel().isActive();
    }

    /** Something has come. */
    void heard() {
        silentSince = client.ticker().nanos();
        suspect = false;
        usable = ready;
    }

    /** A reply and its value are complete. Returns whether it was the request's last one. */
    boolean replied() {
        R request = sent.getFirst();
        if (!request.replied()) {
            return false;
        }
        sent.removeFirst();
        sentBytes -= request.cost();
        waiting = !sent.isEmpty();
        if (!queue.isEmpty() && sent.size() <= MOST_UNANSWERED / 2 && sentBytes <= client.window() / 2) {
            pump();
        }
        return true;
    }

    void connect() {
        run(() -> {
            if (!closed) {
                client.connect(this);
            }
        });
    }

    /** A channel is being connected. */
    void begun(RemoteSession<R> begun) {
        session = begun;
    }

    /** A channel is there; its session opens. */
    void opening(RemoteSession<R> opened) {
        if (closed) {
            drop(opened);
            return;
        }
        client.after(loop, client.connectTimeout(), () -> {
            if (opened.equals(session) && !ready) {
                opened.refuse(opened.earlyFailure(), "does not answer");
            }
        });
    }

    /** There is no channel. */
    void notConnected(Throwable cause) {
        session = null;
        if (!closed) {
            client.connectFailed(Failure.UNAVAILABLE, "cannot be connected to: " + cause);
            retry();
        }
    }

    private void retry() {
        if (!closed) {
            client.after(loop, backoff(), this::connect);
        }
    }

    private Duration backoff() {
        long nanos = Math.min(FIRST_BACKOFF.toNanos() << Math.min(attempts, 10), MOST_BACKOFF.toNanos());
        attempts++;
        return Duration.ofNanos(nanos + ThreadLocalRandom.current().nextLong(nanos / 4));
    }

    /** The server takes requests. */
    void ready(RemoteSession<R> opened) {
        if (isCurrent(opened) && !ready) {
            ready = true;
            usable = true;
            attempts = 0;
            client.connected();
        }
    }

    boolean isReady() {
        return ready;
    }

    /** A channel has ended. */
    void lost(RemoteSession<R> lost) {
        if (!lost.equals(session)) {
            return;
        }
        session = null;
        boolean was = ready;
        ready = false;
        suspect = false;
        usable = false;
        waiting = false;
        sentBytes = 0;
        List<R> failing = new ArrayList<>(sent);
        failing.addAll(queue);
        sent.clear();
        queue.clear();
        failing.forEach(request -> request.fail(Failure.DISCONNECTED));
        lost.ended();
        if (!closed) {
            if (was) {
                client.note("has closed a connection");
            } else {
                lost.tellEarlyEnd();
            }
            retry();
        }
    }

    /** Ends a channel that is of no use. */
    void drop(RemoteSession<R> last) {
        var _ = last.channel().close();
        lost(last);
    }

    /** Whether replies have been missing for so long. For any thread. */
    boolean isStalled(Duration time) {
        return usable && waiting && client.ticker().nanos() - silentSince >= time.toNanos();
    }

    /** Does not use the connection until the server has answered on it, and ends it if it does not. For any thread. */
    void suspect() {
        // At once, so that the next operation does not wait in vain, too.
        usable = false;
        run(() -> {
            RemoteSession<R> doubted = session;
            if (!ready || suspect || doubted == null) {
                return;
            }
            suspect = true;
            usable = false;
            long number = ++suspicions;
            if (sent.isEmpty()) {
                send(doubted, doubted.ping());
            }
            client.after(loop, client.connectTimeout(), () -> {
                if (doubted.equals(session) && suspect && suspicions == number) {
                    drop(doubted);
                }
            });
        });
    }

    /** Ends all requests, and takes no more. For any thread. */
    void close() {
        run(() -> {
            closed = true;
            RemoteSession<R> last = session;
            if (last != null) {
                drop(last);
            }
        });
    }
}
