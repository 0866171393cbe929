package baton.store.redis;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.MaintNotificationsConfig;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.SslOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.metrics.CommandLatencyRecorder;
import io.lettuce.core.protocol.DecodeBufferPolicy;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.DefaultClientResources;
import io.lettuce.core.resource.NettyCustomizer;
import io.netty.bootstrap.Bootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.channel.AdaptiveRecvByteBufAllocator;
import io.netty.channel.ChannelOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The connections to a server, and the threads that serve them: some for values, one for look-ups, which so do not wait behind values.
 * Thread-safe.
 */
final class Connections implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(Connections.class);

    /** Threads that read and write, and threads for timers and reconnecting: the fewest that the library has. */
    private static final int THREADS = 2;

    private static final long LEAST_WINDOW = 8L << 20;

    /** A connection is worth it for so many bytes. */
    private static final long LEAST_SHARE = 256L << 10;

    private static final int MOST_READ_AT_ONCE = 256 << 10;
    private static final Duration LEAST_SILENCE = Duration.ofMillis(10);
    private static final Duration CLOSED_WITHIN = Duration.ofSeconds(5);

    private final RedisSettings settings;
    private final StoreCounters counters;
    private final DefaultClientResources resources;
    private final RedisClient client;
    private final RedisURI uri;
    private final List<PipelinedConnection> values = new ArrayList<>();
    private final PipelinedConnection lookups;
    private final AtomicInteger next = new AtomicInteger();

    /** What was logged last of the server; empty while it is well. */
    private final AtomicReference<String> problem = new AtomicReference<>("not connected yet");

    /** @param valueBytes of a stored value */
    Connections(RedisSettings settings, long valueBytes, StoreCounters counters, Ticker ticker) {
        this.settings = settings;
        this.counters = counters;
        uri = uri(settings);
        resources = DefaultClientResources.builder()
                .ioThreadPoolSize(THREADS)
                .computationThreadPoolSize(THREADS)
                .commandLatencyRecorder(CommandLatencyRecorder.disabled())
                .nettyCustomizer(new NettyCustomizer() {
                    @Override
                    public void afterBootstrapInitialized(Bootstrap bootstrap) {
                        bootstrap.option(
                                ChannelOption.RECVBUF_ALLOCATOR,
                                new AdaptiveRecvByteBufAllocator(4096, 64 << 10, MOST_READ_AT_ONCE));
                    }
                })
                .build();
        client = RedisClient.create(resources);
        client.setOptions(options(settings));
        long window = Math.max(LEAST_WINDOW, 2 * valueBytes);
        for (int i = 0; i < settings.connections(); i++) {
            values.add(new PipelinedConnection(this, ticker, window));
        }
        lookups = new PipelinedConnection(this, ticker, window);
    }

    private static RedisURI uri(RedisSettings settings) {
        RedisURI uri;
        try {
            uri = RedisURI.create(settings.clientUrl());
        } catch (IllegalArgumentException _) {
            // Its message may contain the password.
            throw new ConfigException("url", "cannot be used; must be redis://host:port or rediss://host:port");
        }
        uri.setTimeout(settings.connectTimeout());
        uri.setClientName("baton");
        return uri;
    }

    private static ClientOptions options(RedisSettings settings) {
        SslOptions.Builder ssl = SslOptions.builder();
        settings.caCertificates().ifPresent(file -> {
            var _ = ssl.trustManager(file.toFile());
        });
        return ClientOptions.builder()
                // A lost connection's commands are not sent again: their operations have failed.
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                // Old servers and proxies know it, and it has all that is needed.
                .protocolVersion(ProtocolVersion.RESP2)
                .maintNotificationsConfig(MaintNotificationsConfig.disabled())
                .socketOptions(SocketOptions.builder()
                        .connectTimeout(settings.connectTimeout())
                        .keepAlive(true)
                        .build())
                .sslOptions(ssl.build())
                .decodeBufferPolicy(new DiscardWhenCheap())
                .build();
    }

    /** Reuses the room of replies that have been read, when what is behind them is less: so a byte is moved at most once on average. */
    private static final class DiscardWhenCheap implements DecodeBufferPolicy {
        @Override
        public void afterPartialDecode(ByteBuf buffer) {
            discard(buffer);
        }

        @Override
        public void afterDecoding(ByteBuf buffer) {
            discard(buffer);
        }

        private static void discard(ByteBuf buffer) {
            if (buffer.readerIndex() >= buffer.readableBytes()) {
                buffer.discardReadBytes();
            }
        }
    }

    /** Begins to connect, and to reconnect whenever a connection is lost. */
    void start() {
        all().forEach(PipelinedConnection::connect);
    }

    private Stream<PipelinedConnection> all() {
        return Stream.concat(values.stream(), Stream.of(lookups));
    }

    /** Whether anything can be sent. */
    boolean isUsable() {
        return all().anyMatch(PipelinedConnection::isUsable);
    }

    /** Connections that are up. */
    int usable() {
        return (int) all().filter(PipelinedConnection::isUsable).count();
    }

    /** Sends look-ups. */
    void lookUp(List<? extends Request> requests) {
        if (lookups.isUsable()) {
            lookups.submit(requests);
        } else {
            transfer(requests);
        }
    }

    /** Sends requests with values, over several connections if they are large. */
    void transfer(List<? extends Request> requests) {
        List<PipelinedConnection> usable = new ArrayList<>(values);
        usable.removeIf(connection -> !connection.isUsable());
        if (usable.isEmpty()) {
            lookups.submit(requests);
            return;
        }
        long bytes = 0;
        for (Request request : requests) {
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
    void timedOut(Duration time) {
        Duration silence = time.dividedBy(2);
        if (silence.compareTo(LEAST_SILENCE) >= 0 && all().anyMatch(connection -> connection.isStalled(silence))) {
            all().forEach(PipelinedConnection::suspect);
            note("does not answer");
        }
    }

    CompletableFuture<StatefulRedisConnection<byte[], byte[]>> connect() {
        return client.connectAsync(ByteArrayCodec.INSTANCE, uri).toCompletableFuture();
    }

    Duration connectTimeout() {
        return settings.connectTimeout();
    }

    /** Runs something later. Not at all once this is closed. */
    void after(Duration time, Runnable action) {
        try {
            var _ = resources.eventExecutorGroup().schedule(action, time.toNanos(), TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException _) {
            // It is closed.
        }
    }

    void connected() {
        if (!problem.getAndSet("").isEmpty()) {
            log.info("{} is connected", settings.server());
        }
    }

    void notConnected(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null
                && !(cause instanceof RedisCommandExecutionException)
                && (cause instanceof CompletionException || cause.getCause() instanceof Exception)) {
            cause = cause.getCause();
        }
        String text = String.valueOf(cause.getMessage());
        if (cause instanceof RedisCommandExecutionException) {
            Failure failure = Request.failureOf(text);
            counters.connectFailed(failure);
            note(
                    failure == Failure.AUTHENTICATION
                            ? "refuses the user or password of the setting url: " + text
                            : "refuses a connection: " + text);
        } else {
            counters.connectFailed(Failure.UNAVAILABLE);
            note("cannot be connected to: %s: %s".formatted(cause.getClass().getSimpleName(), text));
        }
    }

    void lost() {
        note("has closed a connection");
    }

    /** Logs what is wrong with the server, once in a row. */
    void note(String text) {
        if (!text.equals(problem.getAndSet(text))) {
            log.warn("{} {}; its values are misses until it is back", settings.server(), text);
        }
    }

    /** Ends all connections and threads, with a deadline. */
    @Override
    public void close() {
        all().forEach(PipelinedConnection::close);
        Deadline deadline = Deadline.after(Ticker.system(), CLOSED_WITHIN);
        try {
            var _ = deadline.get(client.shutdownAsync(0, deadline.remainingMillis(), TimeUnit.MILLISECONDS));
            boolean ended = deadline.get(resources.shutdown(0, deadline.remainingMillis(), TimeUnit.MILLISECONDS));
            if (!ended) {
                log.warn("some threads of the connections to {} have not ended", settings.server());
            }
        } catch (ExecutionException | TimeoutException e) {
            log.warn("the connections to {} have not ended within {}", settings.server(), deadline, e);
            // Its threads end by themselves.
            var _ = resources.shutdown(0, 0, TimeUnit.MILLISECONDS);
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
            var _ = resources.shutdown(0, 0, TimeUnit.MILLISECONDS);
        }
    }
}
