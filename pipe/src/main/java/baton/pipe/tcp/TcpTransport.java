package baton.pipe.tcp;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * Wires over TCP. The connecting side sends a token first, and is accepted or disconnected: for an offer the random token of its
 * id, at a meeting point a constant or, with a secret, an HMAC with it.
 */
public final class TcpTransport implements WireTransport {
    static final byte[] MEETING = new byte[WireId.TOKEN_BYTES];

    private static final long BETWEEN_TRIES = Duration.ofMillis(20).toNanos();

    private static final Duration ONE_TRY = Duration.ofSeconds(5);

    private final Set<TokenListener> listeners = ConcurrentHashMap.newKeySet();
    private final WireId.Kind kind;
    /** The access of peers that connect to a meeting point. */
    private final PeerAccess access;

    private final Ticker ticker;
    /** The token of a meeting point. */
    private final byte[] meeting;

    private volatile boolean closed;

    /** A transport that admits every peer, by the system's clock. */
    public TcpTransport() {
        this(WireId.Kind.TCP, PeerAccess.everyone(), Ticker.system());
    }

    /**
     * @param kind of the wires that are built on this transport's: the same at the offering and the joining end
     * @param access of peers at meeting points; offers are open to the peers that have their ids. Both are sealed where it
     *     requires that
     */
    public TcpTransport(WireId.Kind kind, PeerAccess access, Ticker ticker) {
        this.kind = kind;
        this.access = access;
        this.ticker = ticker;
        this.meeting = access.secret()
                .map(secret -> Arrays.copyOf(secret.mac("meeting"), WireId.TOKEN_BYTES))
                .orElse(MEETING);
    }

    @Override
    public String name() {
        return "tcp";
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        Deadline deadline = Deadline.after(ticker, timeout);
        return switch (rank) {
            case 0 -> {
                try (TokenListener listener = open(host, port, "rank 1 at " + host + ":" + port, meeting)) {
                    yield listener.accept(deadline);
                }
            }
            case 1 -> connectToRank0(host, port, deadline);
            default -> throw new IllegalArgumentException("rank=" + rank + " must be 0 or 1");
        };
    }

    /** Retries until rank 0 listens. */
    private Wire connectToRank0(String host, int port, Deadline deadline) throws PipeException {
        List<InetAddress> addresses = WireId.resolve(host);
        while (true) {
            String failure = "";
            for (InetAddress address : addresses) {
                try {
                    return TcpWire.connect(
                            new InetSocketAddress(address, port), meeting, access, ticker, deadline.atMost(ONE_TRY));
                } catch (PipeException e) {
                    failure = String.valueOf(e.getMessage());
                }
            }
            if (deadline.isOver() || Thread.currentThread().isInterrupted()) {
                throw new PipeException(
                        "rank 0 has not come to %s:%d within %s: %s".formatted(host, port, deadline, failure));
            }
            LockSupport.parkNanos(Math.min(BETWEEN_TRIES, deadline.remainingNanos()));
        }
    }

    @Override
    public Offer offer(String host) throws PipeException {
        TokenListener listener = open(host, 0, "the other end of a wire offered at " + host, null);
        return new Offer() {
            @Override
            public byte[] id() {
                return listener.id().encode();
            }

            @Override
            public Wire accept(Duration timeout) throws PipeException {
                return listener.accept(Deadline.after(ticker, timeout));
            }

            @Override
            public void close() {
                listener.close();
            }
        };
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        WireId offered = WireId.decode(id, kind);
        return TcpWire.connect(offered.at(host), offered.token(), access, ticker, Deadline.after(ticker, timeout));
    }

    /** @param token that of the listener's id if null */
    private TokenListener open(String host, int port, String awaited, byte @Nullable [] token) throws PipeException {
        ServerSocketChannel server = listen(host, port);
        TokenListener listener = new TokenListener(server, kind, token, awaited, access, ticker, listeners::remove);
        listeners.add(listener);
        if (closed) {
            listener.close();
            throw new PipeException("the transport is closed");
        }
        listener.start();
        return listener;
    }

    private static ServerSocketChannel listen(String host, int port) throws PipeException {
        ServerSocketChannel server = null;
        try {
            server = ServerSocketChannel.open();
            server.bind(new InetSocketAddress(InetAddress.getByName(host), port), TokenListener.MOST_AT_ONCE);
            return server;
        } catch (UnknownHostException e) {
            Closing.quietly(server);
            throw new PipeException("host '" + host + "' has no address", e);
        } catch (IOException | IllegalArgumentException e) {
            Closing.quietly(server);
            throw new PipeException("cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }

    @Override
    public void close() {
        closed = true;
        listeners.forEach(TokenListener::close);
    }
}
