package baton.kvserver;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.FileOperations;
import baton.store.lm.LmWire;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.WriteBufferWaterMark;
import io.netty.channel.nio.AbstractNioChannel;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.util.concurrent.EventExecutor;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One cache for many instances: values by their keys in memory, and in files once memory is full, over LMCache's lm protocol
 * ({@link LmWire}). Unlike LMCache's own server it has bounded memory and evicts, drops a value if its connection breaks before it is
 * complete, answers LIST (the keys used last, at most 10,000, with line ends between them, as a value), compares keys as texts, and takes
 * every key without control characters.
 */
public final class KvServer implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(KvServer.class);

    static final byte[] PROBE = LmWire.PROBE.getBytes(StandardCharsets.US_ASCII);

    /** Event loops that serve connections. */
    private static final int MOST_THREADS = 4;

    private static final int BACKLOG = 4096;
    private static final int LOW_WATER = 512 << 10;
    private static final int HIGH_WATER = 2 << 20;
    private static final Duration MOST_BETWEEN_LOOKS = Duration.ofMillis(250);
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(5);

    private final KvServerSettings settings;
    private final Counters counters = new Counters();
    private final Optional<PeerSecret> token;
    private final Optional<SslContext> tls;
    private final Cache cache;
    private final Optional<Files> files;
    private final MultiThreadIoEventLoopGroup loops;
    private final Map<EventExecutor, Set<Session>> byLoop = new HashMap<>();
    private final Channel listener;
    private final Optional<MetricsPort> metricsPort;
    /** Open connections, of event loops or on their way to one. */
    private final Set<AbstractNioChannel> children = ConcurrentHashMap.newKeySet();

    @GuardedBy("this")
    private int connections;

    /** Connections that have not sent a whole request, the oldest first. */
    @GuardedBy("this")
    private final Set<Session> unproven = new LinkedHashSet<>();

    private KvServer(KvServerSettings settings) throws IOException {
        this.settings = settings;
        token = settings.access().tokenFile().map(file -> PeerSecret.read("token file", file));
        tls = tls(settings.access());
        files = settings.disk().map(disk -> new Files(disk, FileOperations.SYSTEM, counters));
        cache = new Cache(settings.memoryBytes(), files, counters);
        loops = new MultiThreadIoEventLoopGroup(
                Math.clamp(Runtime.getRuntime().availableProcessors(), 1, MOST_THREADS),
                Thread.ofPlatform().daemon().name("kv-server-", 0).factory(),
                NioIoHandler.newFactory());
        try {
            for (EventExecutor loop : loops) {
                Set<Session> sessions = new HashSet<>();
                byLoop.put(loop, sessions);
                long every = Math.min(
                        MOST_BETWEEN_LOOKS.toMillis(),
                        Math.max(1, settings.limits().timeout().toMillis() / 4));
                loop.scheduleAtFixedRate(() -> look(sessions), every, every, TimeUnit.MILLISECONDS)
                        .isDone();
            }
            listener = listen();
            metricsPort = settings.metricsPort().isPresent()
                    ? Optional.of(new MetricsPort(
                            loops, settings.host(), settings.metricsPort().getAsInt(), () -> MetricsText.text(this)))
                    : Optional.empty();
        } catch (IOException | RuntimeException e) {
            end();
            throw e;
        }
    }

    /**
     * Starts a server.
     *
     * @throws ConfigException if a setting cannot be used
     * @throws IOException if a port cannot be listened on
     */
    public static KvServer start(KvServerSettings settings) throws IOException {
        return new KvServer(settings);
    }

    private static Optional<SslContext> tls(KvServerSettings.Access access) {
        if (access.certificate().isEmpty()) {
            return Optional.empty();
        }
        try {
            return Optional.of(SslContextBuilder.forServer(
                            access.certificate().get().toFile(),
                            access.key().orElseThrow().toFile())
                    .build());
        } catch (SSLException | IllegalArgumentException e) {
            throw new ConfigException("tls certificate", "cannot be used with its key: " + e.getMessage(), e);
        }
    }

    private Channel listen() throws IOException {
        ServerBootstrap bootstrap = new ServerBootstrap()
                .group(loops)
                .channel(NioServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, BACKLOG)
                .option(ChannelOption.SO_REUSEADDR, true)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childOption(ChannelOption.SO_KEEPALIVE, true)
                .childOption(ChannelOption.WRITE_BUFFER_WATER_MARK, new WriteBufferWaterMark(LOW_WATER, HIGH_WATER))
                .handler(new ChannelInboundHandlerAdapter() {
                    @Override
                    public void channelRead(ChannelHandlerContext context, Object message) {
                        children.add((AbstractNioChannel) message);
                        context.fireChannelRead(message);
                    }
                })
                .childHandler(new ChannelInitializer<>() {
                    @Override
                    protected void initChannel(Channel channel) {
                        channel.closeFuture().addListener(_ -> children.remove(channel));
                        accepted(channel);
                    }
                });
        return bound(bootstrap.bind(settings.host(), settings.port()));
    }

    static Channel bound(ChannelFuture binding) throws IOException {
        try {
            if (!binding.await(CLOSED_WITHIN.toMillis())) {
                throw new IOException("the port was not bound within " + CLOSED_WITHIN);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
        if (!binding.isSuccess()) {
            throw new IOException("cannot listen: " + binding.cause().getMessage(), binding.cause());
        }
        return binding.channel();
    }

    private void accepted(Channel channel) {
        Session session = new Session(this, channel);
        if (!admit(session)) {
            counters.add(Counters.Kind.REFUSED);
            var _ = channel.close();
            return;
        }
        counters.add(Counters.Kind.ACCEPTED);
        tls.ifPresent(context -> {
            var handler = context.newHandler(channel.alloc());
            handler.setHandshakeTimeoutMillis(settings.limits().timeout().toMillis());
            channel.pipeline().addLast(handler);
        });
        channel.pipeline().addLast(session);
        Set<Session> sessions = byLoop.get(channel.eventLoop());
        if (sessions != null) {
            sessions.add(session);
            channel.closeFuture().addListener(_ -> sessions.remove(session));
        }
    }

    /** Above the limit, one goes that has not sent a request, or the new one. */
    private synchronized boolean admit(Session session) {
        if (connections >= settings.limits().connections()) {
            if (unproven.isEmpty()) {
                return false;
            }
            Session oldest = unproven.iterator().next();
            unproven.remove(oldest);
            oldest.evictForRoom();
        }
        connections++;
        unproven.add(session);
        return true;
    }

    /** A connection has sent a whole request. */
    synchronized void proven(Session session) {
        unproven.remove(session);
    }

    synchronized void ended(Session session) {
        unproven.remove(session);
        connections--;
    }

    /** Connections that are open. */
    synchronized int connections() {
        return connections;
    }

    void failed(Throwable cause) {
        if (cause instanceof IOException) {
            log.debug("a connection has ended: {}", cause.toString());
        } else {
            log.warn("a connection is closed", cause);
        }
    }

    private static void look(Set<Session> sessions) {
        long now = Ticker.system().nanos();
        List.copyOf(sessions).forEach(session -> session.look(now));
    }

    Cache cache() {
        return cache;
    }

    Counters counters() {
        return counters;
    }

    Optional<PeerSecret> token() {
        return token;
    }

    KvServerSettings settings() {
        return settings;
    }

    Optional<Files> files() {
        return files;
    }

    /** The port that it listens on. */
    public int port() {
        return ((InetSocketAddress) listener.localAddress()).getPort();
    }

    /** The port with {@code /metrics} and {@code /health}; empty if there is none. */
    public OptionalInt metricsPort() {
        return metricsPort.map(port -> OptionalInt.of(port.port())).orElse(OptionalInt.empty());
    }

    /** The text that {@code /metrics} has. */
    public String metrics() {
        return MetricsText.text(this);
    }

    /** Ends all connections and threads, with a deadline. Values that are not in files are gone. */
    @Override
    public void close() {
        var _ = listener.close();
        end();
    }

    private void end() {
        Deadline deadline = Deadline.after(Ticker.system(), CLOSED_WITHIN);
        boolean ended = false;
        try {
            var ending = loops.shutdownGracefully(0, deadline.remainingMillis(), TimeUnit.MILLISECONDS);
            ended = ending.await(deadline.remainingMillis());
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        }
        // An event loop that ends closes the channels that it has, but not one that it is given meanwhile.
        for (AbstractNioChannel channel : children) {
            try {
                channel.unsafe().ch().close();
            } catch (IOException e) {
                log.debug("a connection cannot be closed: {}", e.toString());
            }
        }
        if (ended) {
            cache.close();
        } else {
            log.warn("some connections have not ended within {}", deadline);
        }
    }
}
