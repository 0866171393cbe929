package baton.transfer.mooncake;

import baton.kv.Bursts;
import baton.kv.Ticker;
import baton.messages.Closing;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Serves peers that read and write registered memory. Peers keep their connections, so idle ones stay while there is room. */
final class DataServer implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DataServer.class);
    private static final Duration PAUSE = Duration.ofMillis(20);
    private static final Duration BETWEEN_COMPLAINTS = Duration.ofSeconds(10);

    private final ServerSocketChannel server;
    private final LocalBuffers buffers;
    private final MooncakeAgentSettings settings;
    private final Predicate<InetAddress> admits;
    private final Ticker ticker;
    private final Bursts complaints;

    @GuardedBy("this")
    private final Set<DataConnection> connections = new HashSet<>();

    private DataServer(
            ServerSocketChannel server,
            LocalBuffers buffers,
            MooncakeAgentSettings settings,
            Predicate<InetAddress> admits,
            Ticker ticker) {
        this.server = server;
        this.buffers = buffers;
        this.settings = settings;
        this.admits = admits;
        this.ticker = ticker;
        this.complaints = new Bursts(1, BETWEEN_COMPLAINTS, ticker);
    }

    /** @param admits whether connections from an address are served */
    static DataServer open(
            InetSocketAddress at,
            LocalBuffers buffers,
            MooncakeAgentSettings settings,
            Predicate<InetAddress> admits,
            Ticker ticker)
            throws IOException {
        ServerSocketChannel server = ServerSocketChannel.open();
        try {
            server.setOption(StandardSocketOptions.SO_REUSEADDR, true);
            server.bind(at);
        } catch (IOException | RuntimeException e) {
            server.close();
            throw e;
        }
        return new DataServer(server, buffers, settings, admits, ticker);
    }

    int port() {
        return server.socket().getLocalPort();
    }

    LocalBuffers buffers() {
        return buffers;
    }

    Ticker ticker() {
        return ticker;
    }

    Duration stall() {
        return settings.stall();
    }

    void start() {
        Thread.ofVirtual().name("mooncake-accept-" + port()).start(this::accept);
    }

    private void accept() {
        while (server.isOpen()) {
            try {
                SocketChannel channel = server.accept();
                DataConnection connection = new DataConnection(this, channel);
                if (channel.getRemoteAddress() instanceof InetSocketAddress from
                        && admits.test(from.getAddress())
                        && enlist(connection)) {
                    Thread.ofPlatform()
                            .daemon()
                            .name("mooncake-serve-" + from.getPort())
                            .start(connection::run);
                } else {
                    connection.close();
                }
            } catch (IOException | OutOfMemoryError e) {
                if (server.isOpen()) {
                    LOG.warn("the data port {} could not accept: {}", port(), e.toString());
                    pause();
                }
            }
        }
    }

    /** Waits a while: a resource that ran out, such as file descriptors, may become free. */
    static void pause() {
        LockSupport.parkNanos(PAUSE.toNanos());
    }

    /** @return false if there is no room and no connection is idle */
    private boolean enlist(DataConnection connection) {
        Optional<DataConnection> idle = Optional.empty();
        synchronized (this) {
            if (!server.isOpen()) {
                return false;
            }
            if (connections.size() >= settings.limits().connections()) {
                idle = connections.stream()
                        .filter(DataConnection::isIdle)
                        .min(Comparator.comparingLong(each -> each.since() - ticker.nanos()));
                if (idle.isEmpty()) {
                    return false;
                }
                connections.remove(idle.get());
            }
            connections.add(connection);
        }
        idle.ifPresent(DataConnection::close);
        return true;
    }

    void rejected(SocketAddress from, DataProtocol.Request request) {
        complaints.event(more -> LOG.warn(
                "a {} by {} is refused: {} bytes at {} are not within one registered region{}",
                request.operation(),
                from,
                Long.toUnsignedString(request.bytes()),
                Long.toUnsignedString(request.address()),
                more));
    }

    void ended(DataConnection connection) {
        synchronized (this) {
            connections.remove(connection);
        }
    }

    /** Closes connections of peers that have begun a message and do not go on. */
    void endStalled() {
        open().stream().filter(DataConnection::isStalled).forEach(DataConnection::close);
    }

    /** Connections in the middle of a request. */
    long busy() {
        return open().stream().filter(each -> !each.isIdle()).count();
    }

    private synchronized List<DataConnection> open() {
        return List.copyOf(connections);
    }

    @Override
    public void close() {
        Closing.quietly(server);
        open().forEach(DataConnection::close);
    }
}
