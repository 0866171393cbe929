package baton.pipe.c10d;

import baton.kv.Deadline;
import baton.messages.Closing;
import baton.pipe.PipeException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A connection beside Gloo's that carries no bytes: its end is the end of the other rank's process or wire, which Gloo does not
 * always notice. Rank 0 listens, and publishes its address and a token in the store.
 */
final class LivenessSocket implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(LivenessSocket.class);
    private static final int TOKEN_BYTES = 16;
    private static final long PAUSE = Duration.ofMillis(50).toNanos();

    /** The limit for a connected peer to send the token. */
    private static final Duration GREETING = Duration.ofSeconds(5);

    private final SocketChannel channel;
    private volatile boolean closed;

    private LivenessSocket(SocketChannel channel) {
        this.channel = channel;
    }

    /** The listening socket of rank 0. */
    static final class Post implements AutoCloseable {
        private final ServerSocketChannel server;
        private final byte[] token = new byte[TOKEN_BYTES];
        private final CompletableFuture<SocketChannel> accepted = new CompletableFuture<>();
        private boolean given;

        Post(String host) throws PipeException {
            new SecureRandom().nextBytes(token);
            try {
                server = ServerSocketChannel.open();
                server.bind(new InetSocketAddress(host, 0));
            } catch (IOException e) {
                throw new PipeException("cannot listen on " + host + ": " + e.getMessage(), e);
            }
            Thread.ofVirtual().name("gloo-liveness-accept").start(this::acceptAll);
        }

        /** The data with which rank 1 connects: port, token and address, which can differ from the store's. */
        byte[] where() throws PipeException {
            try {
                InetSocketAddress local = (InetSocketAddress) server.getLocalAddress();
                byte[] address = local.getAddress().getHostAddress().getBytes(StandardCharsets.US_ASCII);
                return ByteBuffer.allocate(Short.BYTES + TOKEN_BYTES + address.length)
                        .putShort((short) local.getPort())
                        .put(token)
                        .put(address)
                        .array();
            } catch (IOException e) {
                throw new PipeException("not listening", e);
            }
        }

        private void acceptAll() {
            while (server.isOpen()) {
                try {
                    // Without a timeout: close() ends it.
                    SocketChannel peer = server.accept();
                    Thread.ofVirtual().name("gloo-liveness-greeting").start(() -> greet(peer));
                } catch (IOException e) {
                    if (server.isOpen()) {
                        // Most likely there are no free file descriptors; closing other connections frees some.
                        log.warn("waiting for rank 1: cannot accept: {}", e.getMessage());
                        LockSupport.parkNanos(PAUSE);
                    }
                }
            }
        }

        private void greet(SocketChannel peer) {
            ByteBuffer shown = ByteBuffer.allocate(TOKEN_BYTES);
            boolean taken = false;
            CompletableFuture<Void> greeted = new CompletableFuture<>();
            CompletableFuture<?> unusedAlarm = greeted.copy()
                    .orTimeout(GREETING.toMillis(), TimeUnit.MILLISECONDS)
                    .handle((_, late) -> {
                        if (late instanceof TimeoutException) {
                            Closing.quietly(peer);
                        }
                        return shown;
                    });
            try {
                while (shown.hasRemaining() && peer.read(shown) >= 0) {
                    // Until the token is complete.
                }
                taken = MessageDigest.isEqual(token, shown.array()) && accepted.complete(peer);
            } catch (IOException e) {
                // Not rank 1.
            } finally {
                greeted.complete(null);
                if (!taken) {
                    Closing.quietly(peer);
                }
            }
        }

        LivenessSocket accept(Deadline deadline) throws PipeException {
            try {
                LivenessSocket socket = new LivenessSocket(deadline.get(accepted));
                given = true;
                return socket;
            } catch (TimeoutException | ExecutionException e) {
                throw new PipeException("rank 1 has not come within " + deadline, e);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new PipeException("interrupted", e);
            }
        }

        @Override
        public void close() {
            Closing.quietly(server);
            // A connection that was accepted and not taken over is closed.
            boolean noneCame = accepted.completeExceptionally(new IOException("the wait for a peer has ended"));
            if (!noneCame && !given && !accepted.isCompletedExceptionally()) {
                Closing.quietly(accepted.join());
            }
        }
    }

    /** Connects to rank 0. */
    static LivenessSocket to(byte[] where, Deadline deadline) throws PipeException {
        int head = Short.BYTES + TOKEN_BYTES;
        if (where.length <= head) {
            throw new PipeException("rank 0 says in " + where.length + " bytes where it is");
        }
        int port = Short.toUnsignedInt(ByteBuffer.wrap(where).getShort());
        String host = new String(where, head, where.length - head, StandardCharsets.US_ASCII);
        SocketChannel channel = null;
        try {
            channel = SocketChannel.open();
            channel.socket()
                    .connect(new InetSocketAddress(InetAddress.ofLiteral(host), port), deadline.remainingMillis());
            ByteBuffer token = ByteBuffer.wrap(Arrays.copyOfRange(where, Short.BYTES, head));
            while (token.hasRemaining()) {
                channel.write(token);
            }
            return new LivenessSocket(channel);
        } catch (IOException | IllegalArgumentException e) {
            Closing.quietly(channel);
            throw new PipeException("rank 0 is not at " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }

    /** Runs an action when the peer's end of the connection ends; not when this end is closed. */
    void watch(Runnable whenEnded) {
        Thread.ofVirtual().name("gloo-liveness").start(() -> {
            try {
                ByteBuffer nothing = ByteBuffer.allocate(1);
                while (channel.read(nothing) >= 0) {
                    nothing.clear();
                }
            } catch (IOException e) {
                // The end as well.
            }
            Closing.quietly(channel);
            if (!closed) {
                whenEnded.run();
            }
        });
    }

    @Override
    public void close() {
        closed = true;
        Closing.quietly(channel);
    }
}
