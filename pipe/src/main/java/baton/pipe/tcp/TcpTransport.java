package baton.pipe.tcp;

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
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * Wires over TCP. Who connects shows a token at once and is answered, or sent away: of an offer it is the secret in its id, at an
 * address that both know it is the same for all, or made from the secret that both know.
 */
public final class TcpTransport implements WireTransport {
    static final byte[] MEETING = new byte[WireId.TOKEN_BYTES];

    private static final long BETWEEN_TRIES = Duration.ofMillis(20).toNanos();

    private static final Duration ONE_TRY = Duration.ofSeconds(5);

    private final Set<TokenListener> doors = ConcurrentHashMap.newKeySet();
    private final WireId.Kind kind;
    /** Of those that come to a meeting; empty if all may. */
    private final Optional<PeerAccess> access;
    /** What opens the door of a meeting. */
    private final byte[] meeting;

    private volatile boolean closed;

    public TcpTransport() {
        this(WireId.Kind.TCP, Optional.empty());
    }

    /**
     * @param kind of the wires that are made over what this one makes: the same at the offering and the joining end
     * @param access which peers may come to a meeting; to an offer those that have its id
     */
    public TcpTransport(WireId.Kind kind, Optional<PeerAccess> access) {
        this.kind = kind;
        this.access = access;
        this.meeting = access.flatMap(PeerAccess::secret)
                .map(secret -> Arrays.copyOf(secret.mac("meeting"), WireId.TOKEN_BYTES))
                .orElse(MEETING);
    }

    @Override
    public String name() {
        return "tcp";
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        Deadline deadline = Deadline.in(timeout);
        return switch (rank) {
            case 0 -> {
                try (TokenListener door = open(host, port, "rank 1 at " + host + ":" + port, meeting)) {
                    yield door.accept(timeout);
                }
            }
            case 1 -> comeTo(host, port, deadline);
            default -> throw new IllegalArgumentException("rank=" + rank + " must be 0 or 1");
        };
    }

    /** Tries until rank 0 is there. */
    private Wire comeTo(String host, int port, Deadline deadline) throws PipeException {
        List<InetAddress> addresses = WireId.resolve(host);
        while (true) {
            String failure = "";
            for (InetAddress address : addresses) {
                try {
                    return TcpWire.connect(new InetSocketAddress(address, port), meeting, deadline.butAtMost(ONE_TRY));
                } catch (PipeException e) {
                    failure = String.valueOf(e.getMessage());
                }
            }
            if (deadline.passed() || Thread.currentThread().isInterrupted()) {
                throw new PipeException(
                        "rank 0 has not come to %s:%d within %s: %s".formatted(host, port, deadline, failure));
            }
            LockSupport.parkNanos(Math.min(BETWEEN_TRIES, deadline.left().toNanos()));
        }
    }

    @Override
    public Offer offer(String host) throws PipeException {
        TokenListener door = open(host, 0, "the other end of a wire offered at " + host, null);
        return new Offer() {
            @Override
            public byte[] id() {
                return door.id().encode();
            }

            @Override
            public Wire accept(Duration timeout) throws PipeException {
                return door.accept(timeout);
            }

            @Override
            public void close() {
                door.close();
            }
        };
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        WireId offered = WireId.decode(id, kind);
        return TcpWire.connect(offered.at(host), offered.token(), Deadline.in(timeout));
    }

    private TokenListener open(String host, int port, String awaited, byte @Nullable [] token) throws PipeException {
        ServerSocketChannel server = listen(host, port);
        TokenListener door = new TokenListener(
                server, kind, token, awaited, token == null ? Optional.empty() : access, doors::remove);
        doors.add(door);
        if (closed) {
            door.close();
            throw new PipeException("the transport is closed");
        }
        door.start();
        return door;
    }

    private static ServerSocketChannel listen(String host, int port) throws PipeException {
        ServerSocketChannel server = null;
        try {
            server = ServerSocketChannel.open();
            server.bind(new InetSocketAddress(InetAddress.getByName(host), port), TokenListener.MOST_AT_ONCE);
            return server;
        } catch (UnknownHostException e) {
            quietly(server);
            throw new PipeException("host '" + host + "' has no address", e);
        } catch (IOException | IllegalArgumentException e) {
            quietly(server);
            throw new PipeException("cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }

    @Override
    public void close() {
        closed = true;
        doors.forEach(TokenListener::close);
    }

    private static void quietly(@Nullable ServerSocketChannel channel) {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException _) {
            // It is given up.
        }
    }

    static void quietly(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException _) {
            // It is given up.
        }
    }
}
