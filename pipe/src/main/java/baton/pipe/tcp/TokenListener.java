package baton.pipe.tcp;

import baton.kv.Bursts;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
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
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A listening socket that lets one in: the first who shows the token. Others cost a connection each, for a short time and not more
 * than {@value #MOST_AT_ONCE} at once: when there are more, who has waited longest without a word goes.
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
    private final Optional<PeerAccess> access;
    private final Consumer<TokenListener> whenClosed;
    private final CompletableFuture<TcpWire> came = new CompletableFuture<>();
    private final Deque<SocketChannel> greeting = new ArrayDeque<>();
    private final AtomicBoolean taken = new AtomicBoolean();
    private final Bursts sentAway = new Bursts(1, BETWEEN_LINES, Ticker.system());

    /**
     * @param token what opens it; that of its id if there is none
     * @param access which peers may come at all; empty if all may
     */
    TokenListener(
            ServerSocketChannel server,
            WireId.Kind kind,
            byte @Nullable [] token,
            String awaited,
            Optional<PeerAccess> access,
            Consumer<TokenListener> whenClosed)
            throws PipeException {
        this.server = server;
        this.awaited = awaited;
        this.access = access;
        access.ifPresent(PeerAccess::expectPeers);
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
        Thread.ofVirtual().name("wire-door").start(this::acceptAll);
    }

    Wire accept(Duration timeout) throws PipeException {
        try {
            TcpWire wire = came.get(Deadline.in(timeout).left().toNanos(), TimeUnit.NANOSECONDS);
            if (!taken.compareAndSet(false, true)) {
                throw new PipeException(awaited + " has come before");
            }
            return wire;
        } catch (TimeoutException e) {
            throw new PipeException("%s has not come within %d ms".formatted(awaited, timeout.toMillis()), e);
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
                SocketChannel stranger = server.accept();
                admit(stranger);
                Thread.ofVirtual().name("wire-greeting").start(() -> greet(stranger));
            } catch (IOException e) {
                if (server.isOpen()) {
                    // Most likely out of file descriptors, which others may give back.
                    LOG.warn("waiting for {}: cannot accept: {}", awaited, e.getMessage());
                    LockSupport.parkNanos(PAUSE);
                }
            }
        }
    }

    private void admit(SocketChannel stranger) {
        synchronized (greeting) {
            greeting.add(stranger);
            if (greeting.size() > MOST_AT_ONCE) {
                TcpTransport.quietly(greeting.remove());
            }
        }
    }

    private void greet(SocketChannel stranger) {
        boolean letIn = false;
        try {
            if (!isAllowed(stranger)) {
                return;
            }
            TcpWire wire = TcpWire.over(stranger);
            Deadline deadline = Deadline.in(GREETING);
            byte[] hello = new byte[TcpWire.HELLO.length];
            wire.read(ByteBuffer.wrap(hello), deadline);
            if (!Arrays.equals(hello, TcpWire.HELLO)) {
                throw new IOException("it does not speak this protocol");
            }
            byte[] shown = new byte[WireId.TOKEN_BYTES];
            wire.read(ByteBuffer.wrap(shown), deadline);
            if (!MessageDigest.isEqual(token, shown)) {
                access.ifPresent(
                        rule -> rule.refuse("wire: " + stranger, "it does not know the secret, or there is none here"));
                throw new IOException("it shows another token");
            }
            letIn = claim(wire, deadline);
        } catch (IOException e) {
            sentAway.event(
                    more -> LOG.info("waiting for {}: sent {} away: {}{}", awaited, stranger, e.getMessage(), more));
        } finally {
            synchronized (greeting) {
                greeting.remove(stranger);
            }
            if (!letIn) {
                TcpTransport.quietly(stranger);
            }
        }
    }

    private boolean isAllowed(SocketChannel stranger) throws IOException {
        if (access.isEmpty() || !(stranger.getRemoteAddress() instanceof InetSocketAddress from)) {
            return true;
        }
        boolean admitted = access.get().admits(from.getAddress());
        if (!admitted) {
            access.get().refuse("wire: " + from, "it is " + access.get().notAllowed());
        }
        return admitted;
    }

    /** Lets it in if nobody was before. */
    private synchronized boolean claim(TcpWire wire, Deadline deadline) throws IOException {
        if (came.isDone()) {
            return false;
        }
        synchronized (greeting) {
            greeting.remove(wire.channel());
        }
        wire.write(ByteBuffer.wrap(TcpWire.WELCOME), deadline);
        if (!came.complete(wire)) {
            return false;
        }
        shut();
        return true;
    }

    /** Nobody else is let in. */
    private void shut() {
        whenClosed.accept(this);
        try {
            server.close();
        } catch (IOException _) {
            // Nobody is accepted either way.
        }
    }

    /** A wire that was taken lives on. */
    @Override
    public void close() {
        if (!came.completeExceptionally(new IOException("withdrawn"))
                && !came.isCompletedExceptionally()
                && taken.compareAndSet(false, true)) {
            came.join().close();
        }
        shut();
        synchronized (greeting) {
            greeting.forEach(TcpTransport::quietly);
            greeting.clear();
        }
        long more = sentAway.rest();
        if (more > 0) {
            LOG.info("waiting for {}: sent {} more away", awaited, more);
        }
    }
}
