package baton.messages.zeromq;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.SideChannel;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import java.util.function.Predicate;
import jdk.net.ExtendedSocketOptions;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A bound address with its connections, each with a virtual thread of its own. To its peers it is a ZeroMQ socket of some type. */
final class BoundSocket implements SideChannel.Listener {
    private static final Logger log = LoggerFactory.getLogger(BoundSocket.class);
    private static final Duration SWEEP = Duration.ofMillis(200);
    private static final Duration JOIN = Duration.ofSeconds(2);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);
    private static final int BACKLOG = 128;
    private static final int KEEP_ALIVE_SECONDS = 30;

    private final ZeroMqSideChannel.Limits limits;
    private final ServerSocket socket;
    private final Kind kind;
    private final Peers peers;
    private final Function<Caller, Guest> reception;
    private final Ticker ticker;
    private final Bursts busy;
    private final Bursts unanswered;
    private final Set<Caller> callers = ConcurrentHashMap.newKeySet();
    private final Thread thread = Thread.ofVirtual().name("zeromq-accept").unstarted(this::accept);

    /**
     * The socket's behaviour towards peers.
     *
     * @param name for errors and the log
     * @param socketType ZeroMQ's name of this socket
     * @param peerTypes sockets that may connect
     * @param handlersKeepTime whether handling a message may take any time; else it counts as part of the exchange
     * @param endsIdle whether an idle connection is closed when another one arrives and all are taken, and after its time
     */
    record Kind(String name, String socketType, Set<String> peerTypes, boolean handlersKeepTime, boolean endsIdle) {
        static Kind router(String name, boolean handlersKeepTime) {
            return new Kind(name, "ROUTER", Set.of("REQ", "DEALER", "ROUTER"), handlersKeepTime, true);
        }
    }

    /**
     * Which connections are served, and how.
     *
     * @param access whether they are sealed
     * @param admitted whether one from an address is served at all; must not wait
     */
    record Peers(PeerAccess access, Predicate<InetAddress> admitted) {}

    /** The receiver of a connection's messages, one after the other, on the connection's thread. */
    interface Guest {
        /** Returns false to end the connection, as an exception does. */
        boolean received(List<byte[]> frames) throws IOException;

        /** Whether the peer is admitted. Until then it counts against the limits of connections in their handshake. */
        boolean isGreeted();

        /** Whether the connection is to be closed now; asked a few times a second. */
        default boolean isOver() {
            return false;
        }

        /** The connection has ended. */
        void left();
    }

    /**
     * Binds the address.
     *
     * @param reception makes the handler of a connection once its handshake is done; throws to refuse it
     */
    BoundSocket(
            Ticker ticker,
            ZeroMqSideChannel.Limits limits,
            String host,
            int port,
            Kind kind,
            Peers peers,
            Function<Caller, Guest> reception)
            throws MessageException {
        this.ticker = ticker;
        this.busy = new Bursts(1, BETWEEN_LINES, ticker);
        this.unanswered = new Bursts(1, BETWEEN_LINES, ticker);
        this.limits = limits;
        this.kind = kind;
        this.peers = peers;
        this.reception = reception;
        this.socket = bind(kind.name(), host, port);
    }

    private static ServerSocket bind(String name, String host, int port) throws MessageException {
        ServerSocket socket = null;
        try {
            socket = new ServerSocket();
            socket.setReuseAddress(true);
            socket.setSoTimeout((int) SWEEP.toMillis());
            socket.bind(new InetSocketAddress(InetAddress.getByName(host), port), BACKLOG);
            return socket;
        } catch (IOException | IllegalArgumentException e) {
            Closing.quietly(socket);
            throw new MessageException(name + " cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }

    /** Lets the system find out within about two minutes that the host of an idle peer is gone. */
    static void detectLoss(Socket peer) throws IOException {
        peer.setKeepAlive(true);
        if (peer.supportedOptions().contains(ExtendedSocketOptions.TCP_KEEPIDLE)) {
            peer.setOption(ExtendedSocketOptions.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS);
            peer.setOption(ExtendedSocketOptions.TCP_KEEPINTERVAL, KEEP_ALIVE_SECONDS);
            peer.setOption(ExtendedSocketOptions.TCP_KEEPCOUNT, 3);
        }
    }

    void start() {
        thread.start();
    }

    @Override
    public int port() {
        return socket.getLocalPort();
    }

    boolean isClosed() {
        return socket.isClosed();
    }

    private void accept() {
        while (!socket.isClosed()) {
            try {
                admit(socket.accept());
            } catch (SocketTimeoutException e) {
                // No connection has arrived; the existing ones are checked below.
            } catch (IOException e) {
                if (!socket.isClosed()) {
                    // Most likely there are no free file descriptors; closing other connections frees some.
                    log.warn("{} on port {} cannot accept: {}", kind.name(), port(), e.getMessage());
                    LockSupport.parkNanos(SWEEP.toNanos());
                }
            }
            sweep();
        }
    }

    /**
     * Admits a connection to the handshake. The limit of handshakes is that of established connections: one more closes the longest-running
     * handshake.
     */
    private void admit(Socket peer) {
        if (!peers.admitted.test(peer.getInetAddress())) {
            Closing.quietly(peer);
            return;
        }
        Caller caller = new Caller(peer);
        synchronized (callers) {
            if (count(State.GREETING) >= limits.connections()) {
                longest(State.GREETING).ifPresent(this::drop);
            }
            callers.add(caller);
        }
        caller.thread.start();
    }

    /**
     * Makes a connection established after its peer was authenticated; if there are too many, closes the one that is idle longest.
     */
    private void establish(Caller caller) throws IOException {
        synchronized (callers) {
            if (!callers.contains(caller)) {
                throw new IOException("others came while it was greeting");
            }
            if (callers.size() - count(State.GREETING) >= limits.connections()) {
                Optional<Caller> idle = kind.endsIdle() ? longest(State.IDLE) : Optional.empty();
                if (idle.isEmpty()) {
                    busy.event(more -> log.warn(
                            "{} on port {} refuses a connection: all {} are busy{}",
                            kind.name(),
                            port(),
                            limits.connections(),
                            more));
                    throw new IOException("all connections are busy");
                }
                drop(idle.get());
            }
            caller.enter(State.EXCHANGING);
        }
    }

    private long count(State state) {
        return callers.stream().filter(caller -> caller.state == state).count();
    }

    private Optional<Caller> longest(State state) {
        return callers.stream()
                .filter(caller -> caller.state == state)
                .min(Comparator.comparingLong(caller -> caller.since));
    }

    private void drop(Caller caller) {
        caller.end();
        callers.remove(caller);
    }

    private void sweep() {
        long now = ticker.nanos();
        for (Caller caller : callers) {
            boolean over = switch (caller.state) {
                case IDLE ->
                    kind.endsIdle() && now - caller.since > limits.idle().toNanos();
                case GREETING, EXCHANGING ->
                    now - caller.since > limits.exchange().toNanos();
                case HANDLING -> false;
            };
            if (over || caller.guest.filter(Guest::isOver).isPresent()) {
                log.debug("{} on port {}: the time of {} is up", kind.name(), port(), caller.peer);
                caller.end();
            }
        }
    }

    @Override
    public void close() {
        Closing.quietly(socket);
        Deadline deadline = Deadline.after(ticker, JOIN);
        join(thread, deadline);
        callers.forEach(Caller::end);
        callers.forEach(caller -> join(caller.thread, deadline));
    }

    private void join(Thread waited, Deadline deadline) {
        try {
            if (!waited.join(deadline.remaining())) {
                log.warn("{} on port {}: {} has not ended in time", kind.name(), port(), waited.getName());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private enum State {
        /** Waiting for a message, not in the middle of one. */
        IDLE,
        /** The connection is in its handshake, or not yet authenticated. */
        GREETING,
        /** The connection is in the middle of a message in either direction. */
        EXCHANGING,
        /** The handler works on a message; no limit of time. */
        HANDLING
    }

    /** An accepted connection. */
    final class Caller {
        private final Socket peer;
        private final Thread thread = Thread.ofVirtual().name("zeromq-peer").unstarted(this::run);
        private volatile State state = State.GREETING;

        /** When the state began. */
        private volatile long since = ticker.nanos();

        private volatile Optional<Guest> guest = Optional.empty();
        private Optional<Zmtp> connection = Optional.empty();
        private String identity = "";

        private Caller(Socket peer) {
            this.peer = peer;
        }

        /** The peer's ZeroMQ identity, one character for each byte; empty if it has none. */
        String identity() {
            return identity;
        }

        InetAddress address() {
            return peer.getInetAddress();
        }

        /** Sends from the connection's own thread, while a message is handled. */
        void send(List<byte[]> frames) throws IOException {
            State before = state;
            if (before == State.HANDLING) {
                enter(State.EXCHANGING);
            }
            connection.orElseThrow().send(frames);
            if (before == State.HANDLING) {
                enter(State.HANDLING);
            }
        }

        /** Sends from any thread; only {@link Guest#isOver} limits its time. */
        void push(List<byte[]> frames) throws IOException {
            connection.orElseThrow().send(frames);
        }

        void end() {
            Closing.quietly(peer);
        }

        private void run() {
            try (peer) {
                peer.setTcpNoDelay(true);
                if (!kind.endsIdle()) {
                    detectLoss(peer);
                }
                Zmtp zmtp = Zmtp.over(peer, peers.access, false, limits.frames(), limits.questionBytes());
                connection = Optional.of(zmtp);
                identity = zmtp.handshake(kind.socketType(), "", kind.peerTypes());
                Guest received = reception.apply(this);
                guest = Optional.of(received);
                serve(zmtp, received);
            } catch (IOException e) {
                log.debug("{} on port {}: {} ended: {}", kind.name(), port(), peer, e.getMessage());
            } catch (RuntimeException e) {
                unanswered.event(more -> log.warn(
                        "{} on port {}: a question of {} could not be answered{}", kind.name(), port(), peer, more, e));
            } finally {
                callers.remove(this);
            }
        }

        private void serve(Zmtp zmtp, Guest guest) throws IOException {
            try {
                boolean more = true;
                while (more && !guest.isGreeted()) {
                    more = zmtp.awaitMessage() && guest.received(zmtp.receive());
                }
                if (more) {
                    establish(this);
                }
                while (more) {
                    enter(State.IDLE);
                    more = kind.endsIdle() ? zmtp.awaitMessage() : zmtp.awaitMessageAfterCommands();
                    enter(State.EXCHANGING);
                    if (more) {
                        List<byte[]> message = zmtp.receive();
                        if (kind.handlersKeepTime()) {
                            enter(State.HANDLING);
                        }
                        more = guest.received(message);
                    }
                }
            } finally {
                // Closed first, so that the handler finds the connection closed.
                end();
                guest.left();
            }
        }

        private void enter(State next) {
            since = ticker.nanos();
            state = next;
        }
    }
}
