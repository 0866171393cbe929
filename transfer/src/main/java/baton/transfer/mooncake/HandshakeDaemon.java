package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Answers handshake messages of peers, which nothing authenticates: some connections at a time, each for a short time. */
final class HandshakeDaemon implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(HandshakeDaemon.class);

    /** The limit of one exchange, as in Mooncake's daemon. */
    private static final Duration EXCHANGE = Duration.ofSeconds(5);

    private final ServerSocket server;
    private final Handler handler;
    private final MooncakeAgentSettings.Limits limits;
    private final Duration patience;
    private final Ticker ticker;

    @GuardedBy("this")
    private final Map<Socket, Deadline> open = new HashMap<>();

    /** The agent's handling of messages. */
    interface Handler {
        /** Whether connections from the address are answered. */
        boolean admits(InetAddress from);

        /**
         * The answer's JSON.
         *
         * @throws IOException if there is none; the connection is closed
         */
        byte[] answer(HandshakeMessage message) throws IOException;
    }

    private HandshakeDaemon(ServerSocket server, Handler handler, MooncakeAgentSettings settings, Ticker ticker) {
        this.server = server;
        this.handler = handler;
        this.limits = settings.limits();
        this.patience = settings.stall().compareTo(EXCHANGE) < 0 ? settings.stall() : EXCHANGE;
        this.ticker = ticker;
    }

    static HandshakeDaemon open(InetSocketAddress at, Handler handler, MooncakeAgentSettings settings, Ticker ticker)
            throws IOException {
        ServerSocket server = new ServerSocket();
        try {
            server.setReuseAddress(true);
            server.bind(at);
        } catch (IOException | RuntimeException e) {
            server.close();
            throw e;
        }
        return new HandshakeDaemon(server, handler, settings, ticker);
    }

    int port() {
        return server.getLocalPort();
    }

    void start() {
        Thread.ofVirtual().name("mooncake-handshake-" + port()).start(this::accept);
    }

    private void accept() {
        while (!server.isClosed()) {
            try {
                Socket socket = server.accept();
                Deadline deadline = Deadline.after(ticker, patience.multipliedBy(2));
                if (handler.admits(socket.getInetAddress()) && enlist(socket, deadline)) {
                    Thread.ofVirtual().name("mooncake-handshake").start(() -> serve(socket, deadline));
                } else {
                    Closing.quietly(socket);
                }
            } catch (IOException | InterruptedException e) {
                if (!server.isClosed()) {
                    LOG.warn("the handshake daemon at port {} could not accept: {}", port(), e.toString());
                    DataServer.pause();
                }
            }
        }
    }

    /** @return false if there are too many for too long */
    private synchronized boolean enlist(Socket socket, Deadline deadline) throws InterruptedException {
        Deadline room = Deadline.after(ticker, patience);
        while (!server.isClosed() && open.size() >= limits.handshakes()) {
            if (!room.awaitNotify(this)) {
                return false;
            }
        }
        return !server.isClosed() && open.put(socket, deadline) == null;
    }

    /** Closes connections at the end of their time, also where a peer does not take its answer. */
    void endLate() {
        List<Socket> late;
        synchronized (this) {
            late = open.entrySet().stream()
                    .filter(each -> each.getValue().isOver())
                    .map(Map.Entry::getKey)
                    .toList();
        }
        late.forEach(Closing::quietly);
    }

    private void serve(Socket socket, Deadline deadline) {
        try (socket) {
            socket.setTcpNoDelay(true);
            HandshakeMessage request = HandshakeMessage.read(socket, limits.handshakeBytes(), deadline);
            new HandshakeMessage(request.type(), handler.answer(request)).write(socket);
            socket.shutdownOutput();
            // The one that asked closes first, and keeps the closed connection's state.
            socket.setSoTimeout(deadline.remainingMillis());
            if (socket.getInputStream().read() >= 0) {
                LOG.debug("bytes follow a handshake message of {}", socket.getRemoteSocketAddress());
            }
        } catch (IOException e) {
            LOG.debug("a handshake ended: {}", e.toString());
        } finally {
            synchronized (this) {
                open.remove(socket);
                notifyAll();
            }
        }
    }

    @Override
    public void close() {
        Closing.quietly(server);
        List<Socket> ending;
        synchronized (this) {
            ending = List.copyOf(open.keySet());
            notifyAll();
        }
        ending.forEach(Closing::quietly);
    }
}
