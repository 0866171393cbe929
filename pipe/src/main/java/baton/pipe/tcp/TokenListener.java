package baton.pipe.tcp;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A listening socket that accepts one connection: the first on which the peer sends the token. Other connections are closed after a
 * short time, and at most {@value #MOST_AT_ONCE} are in their handshake: one more closes the oldest one.
 */
final class TokenListener implements AutoCloseable {
    static final int MOST_AT_ONCE = 16;

    private static final Logger LOG = LoggerFactory.getLogger(TokenListener.class);
    private static final Duration GREETING = Duration.ofSeconds(5);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);
    private static final long PAUSE = Duration.ofMillis(50).toNanos();

    private final ServerSocketChannel server;
    private final WireId id;
    private final byte[] token;
    private final String awaited;
    private final PeerAccess access;
    private final PeerAccess sealing;
    private final Ticker ticker;
    private final Consumer<TokenListener> whenClosed;
    private final CompletableFuture<TcpWire> accepted = new CompletableFuture<>();

    /** Connections in their handshake, oldest first; guards itself. */
    @GuardedBy("greeting")
    private final Deque<SocketChannel> greeting = new ArrayDeque<>();

    private final AtomicBoolean taken = new AtomicBoolean();
    private final Bursts disconnected;

    /**
     * @param token that peers have to send; that of its id if null
     * @param awaited the expected peer, for errors
     * @param access of peers that come without an id, and whether connections are sealed
     * @param whenClosed runs when no more connections are accepted
     */
    TokenListener(
            ServerSocketChannel server,
            WireId.Kind kind,
            byte @Nullable [] token,
            String awaited,
            PeerAccess access,
            Ticker ticker,
            Consumer<TokenListener> whenClosed)
            throws PipeException {
        this.server = server;
        this.awaited = awaited;
        // The token of an id is secret: no other restriction of peers.
        this.access = token == null ? PeerAccess.everyone() : access;
        this.sealing = access;
        this.ticker = ticker;
        this.disconnected = new Bursts(1, BETWEEN_LINES, ticker);
        this.access.expectPeers();
        this.whenClosed = whenClosed;
        try {
            this.id = WireId.fresh(kind, (InetSocketAddress) server.getLocalAddress());
        } catch (IOException e) {
            throw new PipeException("not listening", e);
        }
        this.token = token == null ? id.token() : token;
    }

    WireId id() {
        return id;
    }

    void start() {
        Thread.ofVirtual().name("wire-accept").start(this::acceptAll);
    }

    Wire accept(Deadline deadline) throws PipeException {
        try {
            TcpWire wire = deadline.get(accepted);
            if (!taken.compareAndSet(false, true)) {
                throw new PipeException(awaited + " has come before");
            }
            return wire;
        } catch (TimeoutException e) {
            throw new PipeException("%s has not come within %s".formatted(awaited, deadline), e);
        } catch (ExecutionException e) {
            throw new PipeException("waiting for " + awaited + ": " + e.getMessage(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("waiting for " + awaited + ": interrupted", e);
        }
    }

    private void acceptAll() {
        while (server.isOpen()) {
            try {
                // Without a timeout: close() ends it.
                SocketChannel peer = server.accept();
                limit(peer);
                Thread.ofVirtual().name("wire-greeting").start(() -> greet(peer));
            } catch (IOException e) {
                if (server.isOpen()) {
                    // Most likely there are no free file descriptors; closing other connections frees some.
                    LOG.warn("waiting for {}: cannot accept: {}", awaited, e.getMessage());
                    LockSupport.parkNanos(PAUSE);
                }
            }
        }
    }

    private void limit(SocketChannel peer) {
        synchronized (greeting) {
            greeting.add(peer);
            if (greeting.size() > MOST_AT_ONCE) {
                Closing.quietly(greeting.remove());
            }
        }
    }

    private void greet(SocketChannel peer) {
        boolean claimed = false;
        try {
            if (!isAllowed(peer)) {
                return;
            }
            TcpWire wire = TcpWire.over(peer, ticker);
            Deadline deadline = Deadline.after(ticker, GREETING);
            wire.seal(sealing, false, deadline);
            byte[] hello = new byte[TcpWire.HELLO.length];
            wire.read(ByteBuffer.wrap(hello), deadline);
            if (!Arrays.equals(hello, TcpWire.HELLO)) {
                throw new IOException("it does not speak this protocol");
            }
            byte[] shown = new byte[WireId.TOKEN_BYTES];
            wire.read(ByteBuffer.wrap(shown), deadline);
            if (!MessageDigest.isEqual(token, shown)) {
                access.refuse("wire: " + peer, "it does not know the secret, or there is none here");
                throw new IOException("it shows another token");
            }
            claimed = claim(wire, deadline);
        } catch (IOException e) {
            // A connection that this side ends is not logged.
            if (server.isOpen()) {
                disconnected.event(
                        more -> LOG.info("waiting for {}: sent {} away: {}{}", awaited, peer, e.getMessage(), more));
            }
        } finally {
            synchronized (greeting) {
                greeting.remove(peer);
            }
            if (!claimed) {
                Closing.quietly(peer);
            }
        }
    }

    private boolean isAllowed(SocketChannel peer) throws IOException {
        if (!(peer.getRemoteAddress() instanceof InetSocketAddress from)) {
            return true;
        }
        boolean admitted = access.admits(from.getAddress());
        if (!admitted) {
            access.refuse("wire: " + from, "it is " + access.notAllowed());
        }
        return admitted;
    }

    /** Accepts the connection if it is the first one. */
    private synchronized boolean claim(TcpWire wire, Deadline deadline) throws IOException {
        if (accepted.isDone()) {
            return false;
        }
        synchronized (greeting) {
            greeting.remove(wire.channel());
        }
        wire.write(ByteBuffer.wrap(TcpWire.WELCOME), deadline);
        if (!accepted.complete(wire)) {
            return false;
        }
        shut();
        return true;
    }

    /** No more connections are accepted. */
    private void shut() {
        whenClosed.accept(this);
        Closing.quietly(server);
    }

    /** A wire that {@link #accept} has returned stays open. */
    @Override
    public void close() {
        if (!accepted.completeExceptionally(new IOException("withdrawn"))
                && !accepted.isCompletedExceptionally()
                && taken.compareAndSet(false, true)) {
            accepted.join().close();
        }
        shut();
        synchronized (greeting) {
            greeting.forEach(Closing::quietly);
            greeting.clear();
        }
        long more = disconnected.rest();
        if (more > 0) {
            LOG.info("waiting for {}: sent {} more away", awaited, more);
        }
    }
}
