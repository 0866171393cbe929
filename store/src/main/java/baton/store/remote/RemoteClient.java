package baton.store.remote;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.StoreTask;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoop;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.ssl.SslHandler;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The connections to a server, their threads, and the operations on them: some connections are for values, one for look-ups, which so do not
 * wait behind values. Thread-safe.
 *
 * @param <R> requests of the protocol
 */
public final class RemoteClient<R extends RemoteRequest> implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(RemoteClient.class);

    /** Event loops: while one reads, the other can verify. */
    private static final int THREADS = 2;

    /** A connection is worth it for so many bytes. */
    private static final long LEAST_SHARE = 256L << 10;

    private static final Duration LEAST_SILENCE = Duration.ofMillis(10);
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(5);

    private final RemoteServer server;
    private final long window;
    private final RemoteProtocol<R> protocol;
    private final StoreCounters counters;
    private final Ticker ticker;
    private final MultiThreadIoEventLoopGroup loops;
    private final List<RemoteConnection<R>> values = new ArrayList<>();
    private final RemoteConnection<R> lookups;
    private final AtomicInteger next = new AtomicInteger();
    private final DeadlineAlarm alarm;

    @GuardedBy("this")
    private final Set<RemoteOperation<R>> operations = new HashSet<>();

    @GuardedBy("this")
    private long bytesInFlight;

    @GuardedBy("this")
    private boolean closed;

    /** The problem that was logged last of the server; empty while it is well. */
    private final AtomicReference<String> problem = new AtomicReference<>("not connected yet");

    /**
     * Begins to connect, and to reconnect whenever a connection is lost.
     *
     * @param window bytes that may be unanswered on a connection; one request always may
     */
    public RemoteClient(
            RemoteServer server, long window, RemoteProtocol<R> protocol, StoreCounters counters, Ticker ticker) {
        this.server = server;
        this.window = window;
        this.protocol = protocol;
        this.counters = counters;
        this.ticker = ticker;
        loops = new MultiThreadIoEventLoopGroup(
                THREADS, Thread.ofPlatform().daemon().name("store-client-", 0).factory(), NioIoHandler.newFactory());
        for (int i = 0; i < server.limits().connections(); i++) {
            values.add(new RemoteConnection<>(this, loops.next()));
        }
        lookups = new RemoteConnection<>(this, loops.next());
        alarm = new DeadlineAlarm(ticker, (time, action) -> after(lookups.loop(), time, action));
        all().forEach(RemoteConnection::connect);
    }

    private Stream<RemoteConnection<R>> all() {
        return Stream.concat(values.stream(), Stream.of(lookups));
    }

    /** Whether anything can be sent. */
    public boolean isUsable() {
        return all().anyMatch(RemoteConnection::isUsable);
    }

    /** Connections that are up. */
    public int usable() {
        return (int) all().filter(RemoteConnection::isUsable).count();
    }

    public Ticker ticker() {
        return ticker;
    }

    public StoreCounters counters() {
        return counters;
    }

    DeadlineAlarm alarm() {
        return alarm;
    }

    long window() {
        return window;
    }

    Duration connectTimeout() {
        return server.limits().connectTimeout();
    }

    /** Starts an operation, unless it is rejected. */
    public StoreTask run(RemoteOperation<R> operation) {
        Optional<Failure> why = admit(operation);
        if (why.isPresent()) {
            counters.failed(why.get(), operation.keys());
            operation.task().end();
        } else {
            operation.start();
        }
        return operation.task();
    }

    private Optional<Failure> admit(RemoteOperation<R> operation) {
        if (operation.keys() == 0 || operation.task().deadline().isOver()) {
            return Optional.of(Failure.TIMEOUT);
        }
        if (!isUsable()) {
            return Optional.of(Failure.UNAVAILABLE);
        }
        synchronized (this) {
            if (closed) {
                return Optional.of(Failure.CLOSED);
            }
            if (bytesInFlight > 0
                    && bytesInFlight + operation.bytes() > server.limits().maxBytesInFlight()) {
                return Optional.of(Failure.QUEUE_FULL);
            }
            Optional<Failure> refusal = operation.refusal();
            if (refusal.isEmpty()) {
                bytesInFlight += operation.bytes();
                operations.add(operation);
            }
            return refusal;
        }
    }

    /** An operation uses no memory any more. */
    synchronized void ended(RemoteOperation<R> operation) {
        if (operations.remove(operation)) {
            bytesInFlight -= operation.bytes();
            notifyAll();
        }
    }

    /** Has all connections end their work for an operation. */
    void abandon(RemoteOperation<R> operation) {
        all().forEach(connection -> connection.abandon(operation));
    }

    /** Sends look-ups. */
    void lookUp(List<? extends R> requests) {
        if (lookups.isUsable()) {
            lookups.submit(requests);
        } else {
            transfer(requests);
        }
    }

    /** Sends requests with values, over several connections if they are large. */
    public void transfer(List<? extends R> requests) {
        List<RemoteConnection<R>> usable = new ArrayList<>(values);
        usable.removeIf(connection -> !connection.isUsable());
        if (usable.isEmpty()) {
            lookups.submit(requests);
            return;
        }
        long bytes = 0;
        for (R request : requests) {
            bytes += request.cost();
        }
        int shares = Math.clamp(Math.ceilDiv(bytes, LEAST_SHARE), 1, Math.min(usable.size(), requests.size()));
        int first = next.getAndAdd(shares) & Integer.MAX_VALUE;
        for (int i = 0; i < shares; i++) {
            usable.get((first + i) % usable.size())
                    .submit(requests.subList(requests.size() * i / shares, requests.size() * (i + 1) / shares));
        }
    }

    /** An operation has ended without its replies after so long: connections that were silent for much of it are not to be trusted. */
    void timedOut(int requests, long nanos) {
        counters.failed(Failure.TIMEOUT, requests);
        Duration silence = Duration.ofNanos(nanos).dividedBy(2);
        if (silence.compareTo(LEAST_SILENCE) >= 0 && all().anyMatch(connection -> connection.isStalled(silence))) {
            all().forEach(RemoteConnection::suspect);
            note("does not answer");
        }
    }

    void connect(RemoteConnection<R> connection) {
        Bootstrap bootstrap = new Bootstrap()
                .group(connection.loop())
                .channel(NioSocketChannel.class)
                .option(ChannelOption.TCP_NODELAY, true)
                .option(ChannelOption.SO_KEEPALIVE, true)
                .option(
                        ChannelOption.CONNECT_TIMEOUT_MILLIS,
                        Math.toIntExact(
                                Math.min(Integer.MAX_VALUE, connectTimeout().toMillis())))
                .handler(new ChannelInitializer<>() {
                    @Override
                    protected void initChannel(Channel channel) {
                        server.tls().ifPresent(context -> {
                            SslHandler handler = context.newHandler(channel.alloc(), server.host(), server.port());
                            handler.setHandshakeTimeoutMillis(connectTimeout().toMillis());
                            channel.pipeline().addLast(handler);
                        });
                        channel.pipeline().addLast(protocol.session(connection));
                    }
                });
        var _ = bootstrap.connect(server.host(), server.port()).addListener(result -> {
            if (!result.isSuccess()) {
                connection.notConnected(result.cause());
            }
        });
    }

    void connectFailed(Failure failure, String text) {
        counters.connectFailed(failure);
        note(text);
    }

    /** Runs something later, on an event loop. Not at all once this is closed. */
    void after(EventLoop loop, Duration time, Runnable action) {
        try {
            var _ = loop.schedule(action, time.toNanos(), TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException _) {
            // It is closed.
        }
    }

    void connected() {
        if (!problem.getAndSet("").isEmpty()) {
            log.info("{} is connected", server.name());
        }
    }

    /** Logs the fault of the server, once in a row. */
    public void note(String text) {
        if (!text.equals(problem.getAndSet(text))) {
            log.warn("{} {}; its values are misses until it is back", server.name(), text);
        }
    }

    /** Ends all operations, connections and threads, with a deadline. */
    @Override
    public void close() {
        List<RemoteOperation<R>> last;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            last = List.copyOf(operations);
        }
        last.forEach(operation -> operation.task().cancel());
        all().forEach(RemoteConnection::close);
        Deadline deadline = Deadline.after(ticker, CLOSED_WITHIN);
        try {
            synchronized (this) {
                while (!operations.isEmpty() && deadline.awaitNotify(this)) {
                    // Looks again.
                }
            }
            var ending = loops.shutdownGracefully(0, deadline.remainingMillis(), TimeUnit.MILLISECONDS);
            if (!ending.await(deadline.remainingMillis())) {
                log.warn("the connections to {} have not ended within {}", server.name(), deadline);
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        }
    }
}
