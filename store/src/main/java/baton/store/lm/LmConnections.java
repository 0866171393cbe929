package baton.store.lm;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.StoreTask;
import baton.store.remote.DeadlineAlarm;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoop;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslHandler;
import io.netty.handler.ssl.SslHandshakeCompletionEvent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.stream.Stream;
import javax.net.ssl.SSLException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The connections to a server, their threads, and the operations on them: some connections are for values, one for look-ups, which so do not
 * wait behind values. Thread-safe.
 */
final class LmConnections implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(LmConnections.class);

    /** Event loops: what one reads the other can verify at the same time. */
    private static final int THREADS = 2;

    private static final long WINDOW = 64L << 20;

    /** A connection is worth it for so many bytes. */
    private static final long LEAST_SHARE = 256L << 10;

    private static final Duration LEAST_SILENCE = Duration.ofMillis(10);
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(5);

    private final LmSettings settings;
    private final StoreCounters counters;
    private final Ticker ticker;
    private final Optional<PeerSecret> token;
    private final Optional<SslContext> tls;
    private final MultiThreadIoEventLoopGroup loops;
    private final List<LmConnection> values = new ArrayList<>();
    private final LmConnection lookups;
    private final AtomicInteger next = new AtomicInteger();
    private final DeadlineAlarm alarm;

    @GuardedBy("this")
    private final Set<LmOperation> operations = new HashSet<>();

    @GuardedBy("this")
    private long bytesInFlight;

    @GuardedBy("this")
    private boolean closed;

    private final AtomicBoolean notMappedSaid = new AtomicBoolean();

    /** What was logged last of the server; empty while it is well. */
    private final AtomicReference<String> problem = new AtomicReference<>("not connected yet");

    /** @throws ConfigException if the settings cannot be used */
    LmConnections(LmSettings settings, StoreCounters counters, Ticker ticker) {
        this.settings = settings;
        this.counters = counters;
        this.ticker = ticker;
        token = settings.tokenFile().map(file -> PeerSecret.read("token_file", file));
        tls = settings.tls() ? Optional.of(tls(settings)) : Optional.empty();
        loops = new MultiThreadIoEventLoopGroup(
                THREADS, Thread.ofPlatform().daemon().name("lm-client-", 0).factory(), NioIoHandler.newFactory());
        for (int i = 0; i < settings.connections(); i++) {
            values.add(new LmConnection(this, loops.next(), WINDOW));
        }
        lookups = new LmConnection(this, loops.next(), WINDOW);
        alarm = new DeadlineAlarm(ticker, (time, action) -> after(lookups.loop(), time, action));
    }

    private static SslContext tls(LmSettings settings) {
        SslContextBuilder builder = SslContextBuilder.forClient().endpointIdentificationAlgorithm("HTTPS");
        try {
            settings.caCertificates().ifPresent(file -> builder.trustManager(file.toFile()));
            return builder.build();
        } catch (SSLException | IllegalArgumentException e) {
            throw new ConfigException("ca_certificates", "cannot be used: " + e.getMessage(), e);
        }
    }

    /** Begins to connect, and to reconnect whenever a connection is lost. */
    void start() {
        all().forEach(LmConnection::connect);
    }

    private Stream<LmConnection> all() {
        return Stream.concat(values.stream(), Stream.of(lookups));
    }

    /** Whether anything can be sent. */
    boolean isUsable() {
        return all().anyMatch(LmConnection::isUsable);
    }

    /** Connections that are up. */
    int usable() {
        return (int) all().filter(LmConnection::isUsable).count();
    }

    Ticker ticker() {
        return ticker;
    }

    StoreCounters counters() {
        return counters;
    }

    Duration connectTimeout() {
        return settings.connectTimeout();
    }

    /** Starts an operation, unless it is rejected. */
    StoreTask run(LmOperation operation, int keys) {
        Optional<Failure> why = admit(operation, keys);
        if (why.isPresent()) {
            counters.failed(why.get(), keys);
            return StoreTask.rejected(keys, operation.task.deadline());
        }
        operation.start();
        return operation.task;
    }

    private Optional<Failure> admit(LmOperation operation, int keys) {
        if (keys == 0 || operation.task.deadline().isOver()) {
            return Optional.of(Failure.TIMEOUT);
        }
        if (!isUsable()) {
            return Optional.of(Failure.UNAVAILABLE);
        }
        synchronized (this) {
            if (closed) {
                return Optional.of(Failure.CLOSED);
            }
            if (bytesInFlight > 0 && bytesInFlight + operation.bytes() > settings.maxBytesInFlight()) {
                return Optional.of(Failure.QUEUE_FULL);
            }
            bytesInFlight += operation.bytes();
            operations.add(operation);
            return Optional.empty();
        }
    }

    /** An operation uses no memory any more. */
    synchronized void ended(LmOperation operation) {
        if (operations.remove(operation)) {
            bytesInFlight -= operation.bytes();
            notifyAll();
        }
    }

    /** Has all connections end what they do for an operation. */
    void abandon(LmOperation operation) {
        all().forEach(connection -> connection.abandon(operation));
    }

    /** Sends look-ups. */
    void lookUp(List<? extends LmRequest> requests) {
        if (lookups.isUsable()) {
            lookups.submit(requests);
        } else {
            transfer(requests);
        }
    }

    /** Sends requests with values, over several connections if they are large. */
    void transfer(List<? extends LmRequest> requests) {
        List<LmConnection> usable = new ArrayList<>(values);
        usable.removeIf(connection -> !connection.isUsable());
        if (usable.isEmpty()) {
            lookups.submit(requests);
            return;
        }
        long bytes = 0;
        for (LmRequest request : requests) {
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
            all().forEach(LmConnection::suspect);
            note("does not answer");
        }
    }

    /** Connects; tells, on the connection's loop, a channel over which requests can be sent, or that there is none. */
    void connect(LmConnection connection, Consumer<Optional<Channel>> end) {
        AtomicBoolean told = new AtomicBoolean();
        Consumer<Optional<Channel>> once = made -> {
            if (told.compareAndSet(false, true)) {
                end.accept(made);
            } else {
                made.ifPresent(LmConnections::end);
            }
        };
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
                        tls.ifPresent(context -> {
                            SslHandler handler = context.newHandler(channel.alloc(), settings.host(), settings.port());
                            handler.setHandshakeTimeoutMillis(connectTimeout().toMillis());
                            channel.pipeline().addLast(handler);
                        });
                        channel.pipeline().addLast(new Opening(once));
                    }
                });
        var _ = bootstrap.connect(settings.host(), settings.port()).addListener(result -> {
            if (!result.isSuccess()) {
                failedToConnect(Failure.UNAVAILABLE, result.cause());
                connection.loop().execute(() -> once.accept(Optional.empty()));
            }
        });
    }

    private static void end(Channel channel) {
        var _ = channel.close();
    }

    private void failedToConnect(Failure failure, Throwable cause) {
        counters.connectFailed(failure);
        note("cannot be connected to: " + cause);
    }

    /** What a connection does before requests can be sent. */
    private final class Opening extends ChannelInboundHandlerAdapter {
        private final Consumer<Optional<Channel>> end;

        private Opening(Consumer<Optional<Channel>> end) {
            this.end = end;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            after((EventLoop) context.executor(), connectTimeout(), () -> {
                if (context.pipeline().get(Opening.class) != null) {
                    var _ = context.close();
                }
            });
            if (tls.isEmpty()) {
                secured(context);
            }
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof SslHandshakeCompletionEvent handshake && handshake.isSuccess()) {
                secured(context);
            }
        }

        private void secured(ChannelHandlerContext context) {
            if (token.isEmpty()) {
                opened(context);
                return;
            }
            LmGreeting greeting = new LmGreeting(token.get(), _ -> opened(context));
            context.pipeline().addBefore(context.name(), "greeting", greeting);
            greeting.begin(context.pipeline().context(greeting));
        }

        private void opened(ChannelHandlerContext context) {
            context.pipeline().remove(this);
            end.accept(Optional.of(context.channel()));
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            counters.connectFailed(token.isPresent() ? Failure.AUTHENTICATION : Failure.UNAVAILABLE);
            note(
                    token.isPresent()
                            ? "has closed a connection before both sides had shown that they have the token"
                            : "has closed a connection at once");
            end.accept(Optional.empty());
        }

        @Override
        @SuppressWarnings("deprecation") // the handler's own method is not
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            note("is not what the settings say: " + cause);
            var _ = context.close();
        }
    }

    /** Runs something later, on an event loop. Not at all once this is closed. */
    void after(EventLoop loop, Duration time, Runnable action) {
        try {
            var _ = loop.schedule(action, time.toNanos(), TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException _) {
            // It is closed.
        }
    }

    /** Whether values are copied out of the memory of the server at the other end. */
    boolean mapsMemoryOf(Channel channel) {
        return settings.sharedMemory()
                && !settings.tls()
                && ServerMemory.isOfThisHost(channel.localAddress(), channel.remoteAddress());
    }

    /** Said once, as it stays so. */
    void notMapped(Exception cause) {
        if (notMappedSaid.compareAndSet(false, true)) {
            log.info(
                    "{}: its memory cannot be mapped, so values come over connections: {}",
                    settings.url(),
                    cause.toString());
        }
    }

    DeadlineAlarm alarm() {
        return alarm;
    }

    void connected() {
        if (!problem.getAndSet("").isEmpty()) {
            log.info("{} is connected", settings.url());
        }
    }

    /** A connection has ended. */
    void lost(boolean wasReady) {
        if (!wasReady) {
            counters.connectFailed(Failure.UNAVAILABLE);
        }
        note(
                wasReady
                        ? "has closed a connection"
                        : "has closed a connection at its first request; does it ask for a token?");
    }

    /** Logs what is wrong with the server, once in a row. */
    void note(String text) {
        if (!text.equals(problem.getAndSet(text))) {
            log.warn("{} {}; its values are misses until it is back", settings.url(), text);
        }
    }

    /** Ends all operations, connections and threads, with a deadline. */
    @Override
    public void close() {
        List<LmOperation> last;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            last = List.copyOf(operations);
        }
        last.forEach(operation -> operation.task.cancel());
        all().forEach(LmConnection::close);
        Deadline deadline = Deadline.after(ticker, CLOSED_WITHIN);
        try {
            synchronized (this) {
                while (!operations.isEmpty() && deadline.awaitNotify(this)) {
                    // Looks again.
                }
            }
            var ending = loops.shutdownGracefully(0, deadline.remainingMillis(), TimeUnit.MILLISECONDS);
            if (!ending.await(deadline.remainingMillis())) {
                log.warn("the connections to {} have not ended within {}", settings.url(), deadline);
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        }
    }
}
