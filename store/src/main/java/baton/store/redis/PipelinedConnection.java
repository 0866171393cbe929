package baton.store.redis;

import baton.kv.Ticker;
import baton.store.remote.Failure;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.CommandType;
import io.netty.buffer.ByteBuf;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/*
 * Requests wait in a queue until there is room in the window of what is sent and not answered: the window bounds the network's buffers, and
 * what is lost when a connection is.
 *
 *   down -> (connect) -> asked for its version -> up <-> suspect -> down
 *
 * A connection is suspect when an operation's deadline has passed and no reply has come for long: nothing is given to it until a reply comes.
 * If none comes it is closed and connected anew, which succeeds only with a server that answers. So a server that hangs costs operations a
 * deadline once.
 *
 * The monitor is a leaf but for that of the client library: requests are ended without it.
 */

/** A connection to the server that is made again whenever it is lost. Thread-safe. */
final class PipelinedConnection {
    private static final Duration FIRST_BACKOFF = Duration.ofMillis(50);
    private static final Duration MOST_BACKOFF = Duration.ofSeconds(2);

    /** Sent with one flush, so that the server works on the first ones while the next are written. */
    private static final long FLUSHED_AT_ONCE = 1L << 20;

    private static final int MOST_UNANSWERED = 1024;

    private static final Pattern VERSION = Pattern.compile("redis_version:([0-9]+)\\.([0-9]+)");

    private final Connections pool;
    private final Ticker ticker;
    private final long window;

    @GuardedBy("this")
    private final ArrayDeque<Request> queue = new ArrayDeque<>();

    @GuardedBy("this")
    private @Nullable StatefulRedisConnection<byte[], byte[]> connection;

    @GuardedBy("this")
    private boolean ready;

    @GuardedBy("this")
    private boolean suspect;

    @GuardedBy("this")
    private long suspicions;

    @GuardedBy("this")
    private boolean closed;

    @GuardedBy("this")
    private long epoch;

    @GuardedBy("this")
    private int unanswered;

    @GuardedBy("this")
    private long unansweredBytes;

    /** Since when replies are missing: the last one, or the first request sent after all had been answered. */
    @GuardedBy("this")
    private long waitingSince;

    @GuardedBy("this")
    private int attempts;

    private volatile boolean hasGetex;

    /** @param window bytes that may be unanswered; one request always may */
    PipelinedConnection(Connections pool, Ticker ticker, long window) {
        this.pool = pool;
        this.ticker = ticker;
        this.window = window;
    }

    /** Whether requests given to it can be expected to be answered. */
    synchronized boolean isUsable() {
        return ready && !suspect;
    }

    /** Whether the server can read a value and set its expiry at once. */
    boolean hasGetex() {
        return hasGetex;
    }

    /** Sends requests, as soon as there is room for them. */
    void submit(List<? extends Request> requests) {
        boolean accepted;
        synchronized (this) {
            accepted = ready;
            if (accepted) {
                queue.addAll(requests);
            }
        }
        if (accepted) {
            pump();
        } else {
            requests.forEach(request -> request.fail(Failure.UNAVAILABLE));
        }
    }

    private void pump() {
        while (true) {
            List<Request> batch = new ArrayList<>();
            List<Request> unwanted = new ArrayList<>();
            StatefulRedisConnection<byte[], byte[]> to;
            synchronized (this) {
                to = connection;
                if (!ready || to == null) {
                    return;
                }
                long bytes = 0;
                while (!queue.isEmpty() && bytes < FLUSHED_AT_ONCE) {
                    Request next = queue.getFirst();
                    if (!next.isWanted()) {
                        unwanted.add(queue.removeFirst());
                        continue;
                    }
                    if (unanswered > 0 && (unanswered == MOST_UNANSWERED || unansweredBytes + next.cost() > window)) {
                        break;
                    }
                    batch.add(queue.removeFirst());
                    bytes += next.cost();
                    sending(next);
                }
            }
            unwanted.forEach(request -> request.fail(Failure.TIMEOUT));
            if (batch.isEmpty()) {
                return;
            }
            send(to, batch);
        }
    }

    @GuardedBy("this")
    private void sending(Request request) {
        if (unanswered == 0) {
            waitingSince = ticker.nanos();
        }
        unanswered++;
        unansweredBytes += request.cost();
        request.sendOn(this, epoch);
    }

    private static void send(StatefulRedisConnection<byte[], byte[]> to, List<Request> batch) {
        try {
            var _ = to.dispatch(batch);
        } catch (RuntimeException e) {
            batch.forEach(request -> request.completeExceptionally(e));
        }
    }

    /** Called by a request that has its reply. */
    void answered(Request request) {
        boolean more;
        synchronized (this) {
            if (!received(request)) {
                return;
            }
            waitingSince = ticker.nanos();
            suspect = false;
            more = !queue.isEmpty() && unanswered <= MOST_UNANSWERED / 2 && unansweredBytes <= window / 2;
        }
        if (more) {
            pump();
        }
    }

    /** Called by a request that gets none. */
    void unanswered(Request request) {
        synchronized (this) {
            // As long as others are under way their replies go on.
            if (!received(request) || unanswered > 0 || queue.isEmpty()) {
                return;
            }
        }
        pump();
    }

    @GuardedBy("this")
    private boolean received(Request request) {
        if (request.epoch() != epoch) {
            return false;
        }
        unanswered--;
        unansweredBytes -= request.cost();
        return true;
    }

    void connect() {
        synchronized (this) {
            if (closed) {
                return;
            }
        }
        CompletableFuture<StatefulRedisConnection<byte[], byte[]>> future;
        try {
            future = pool.connect();
        } catch (RuntimeException e) {
            notConnected(e);
            return;
        }
        var _ = future.whenComplete((made, error) -> {
            if (error != null) {
                notConnected(error);
            } else {
                connected(made);
            }
        });
    }

    private void notConnected(Throwable error) {
        pool.notConnected(error);
        Duration wait;
        synchronized (this) {
            wait = backoff();
        }
        pool.after(wait, this::connect);
    }

    @GuardedBy("this")
    private Duration backoff() {
        long nanos = Math.min(FIRST_BACKOFF.toNanos() << Math.min(attempts, 10), MOST_BACKOFF.toNanos());
        attempts++;
        return Duration.ofNanos(nanos + ThreadLocalRandom.current().nextLong(nanos / 4));
    }

    private void connected(StatefulRedisConnection<byte[], byte[]> made) {
        made.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisConnected(RedisChannelHandler<?, ?> handler, SocketAddress address) {}

            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
                lost(made);
            }

            @Override
            public void onRedisExceptionCaught(RedisChannelHandler<?, ?> handler, Throwable cause) {}
        });
        Version version = new Version(made);
        synchronized (this) {
            if (!closed) {
                connection = made;
                epoch++;
                unanswered = 0;
                unansweredBytes = 0;
                sending(version);
            }
        }
        if (!isCurrent(made)) {
            // Closed, and the connection ends with the client.
            return;
        }
        if (!made.isOpen()) {
            lost(made);
            return;
        }
        send(made, List.of(version));
        pool.after(pool.connectTimeout(), () -> {
            if (!isReady(made)) {
                drop(made);
            }
        });
    }

    private synchronized boolean isCurrent(StatefulRedisConnection<byte[], byte[]> made) {
        return made.equals(connection);
    }

    private synchronized boolean isReady(StatefulRedisConnection<byte[], byte[]> made) {
        return !made.equals(connection) || ready;
    }

    private void up(StatefulRedisConnection<byte[], byte[]> made, boolean getex) {
        hasGetex = getex;
        synchronized (this) {
            if (!made.equals(connection)) {
                return;
            }
            ready = true;
            suspect = false;
            attempts = 0;
        }
        pool.connected();
    }

    /** The first request on a connection: which version the server is. It need not answer that to be used. */
    private final class Version extends Request {
        private final StatefulRedisConnection<byte[], byte[]> made;
        private String info = "";

        private Version(StatefulRedisConnection<byte[], byte[]> made) {
            super(CommandType.INFO, 0);
            this.made = made;
        }

        @Override
        protected void write(ByteBuf to, boolean getex) {
            Keys.command(to, 2, "INFO");
            Keys.argument(to, "server");
        }

        @Override
        public void set(@Nullable ByteBuffer bytes) {
            info = bytes == null ? "" : StandardCharsets.UTF_8.decode(bytes).toString();
        }

        @Override
        protected void answered() {
            Matcher version = VERSION.matcher(info);
            up(made, version.find() && 100 * number(version, 1) + number(version, 2) >= 602);
        }

        private static int number(Matcher version, int group) {
            return Integer.parseInt(version.group(group));
        }

        @Override
        protected void failed(Failure cause, String error) {
            if (cause == Failure.DISCONNECTED) {
                return;
            }
            up(made, false);
        }
    }

    private void lost(StatefulRedisConnection<byte[], byte[]> made) {
        List<Request> waiting;
        Optional<Duration> wait;
        synchronized (this) {
            if (!made.equals(connection)) {
                return;
            }
            connection = null;
            ready = false;
            suspect = false;
            epoch++;
            unanswered = 0;
            unansweredBytes = 0;
            waiting = List.copyOf(queue);
            queue.clear();
            wait = closed ? Optional.empty() : Optional.of(backoff());
        }
        waiting.forEach(request -> request.fail(Failure.DISCONNECTED));
        wait.ifPresent(time -> {
            pool.lost();
            pool.after(time, this::connect);
        });
    }

    /** Ends a connection that does not answer. */
    private void drop(StatefulRedisConnection<byte[], byte[]> made) {
        var _ = made.closeAsync();
        lost(made);
    }

    /** Whether replies have been missing for so long. */
    synchronized boolean isStalled(Duration time) {
        return ready && unanswered > 0 && ticker.nanos() - waitingSince >= time.toNanos();
    }

    /** Does not use the connection until the server has answered on it, and ends it if it does not. */
    void suspect() {
        StatefulRedisConnection<byte[], byte[]> doubted;
        long number;
        Optional<Request> ping = Optional.empty();
        synchronized (this) {
            doubted = connection;
            if (!ready || suspect || doubted == null) {
                return;
            }
            suspect = true;
            number = ++suspicions;
            if (unanswered == 0) {
                ping = Optional.of(new Ping());
                sending(ping.get());
            }
        }
        ping.ifPresent(request -> send(doubted, List.of(request)));
        pool.after(pool.connectTimeout(), () -> {
            if (isSuspectStill(doubted, number)) {
                drop(doubted);
            }
        });
    }

    private synchronized boolean isSuspectStill(StatefulRedisConnection<byte[], byte[]> doubted, long number) {
        return doubted.equals(connection) && suspect && suspicions == number;
    }

    private static final class Ping extends Request {
        private Ping() {
            super(CommandType.PING, 0);
        }

        @Override
        protected void write(ByteBuf to, boolean getex) {
            writePing(to);
        }

        @Override
        public void set(@Nullable ByteBuffer bytes) {}

        @Override
        protected void answered() {}

        @Override
        protected void failed(Failure cause, String error) {}
    }

    /** Ends all requests, and takes no more. The connection itself is ended with the client. */
    void close() {
        StatefulRedisConnection<byte[], byte[]> last;
        synchronized (this) {
            closed = true;
            last = connection;
        }
        if (last != null) {
            lost(last);
        }
    }
}
