package baton.pipe.c10d;

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
 * A connection beside Gloo's that carries nothing: its end is the end of the other rank's process, or of its wire, which Gloo does not
 * always notice. Rank 0 listens, and says in the store where and what to show.
 */
final class LivenessSocket implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(LivenessSocket.class);
    private static final int TOKEN_BYTES = 16;
    private static final long PAUSE = Duration.ofMillis(50).toNanos();

    /** For who has connected to show the token. */
    private static final Duration GREETING = Duration.ofSeconds(5);

    private final SocketChannel channel;
    private volatile boolean closed;

    private LivenessSocket(SocketChannel channel) {
        this.channel = channel;
    }

    /** Where rank 0 waits for rank 1. */
    static final class Post implements AutoCloseable {
        private final ServerSocketChannel server;
        private final byte[] token = new byte[TOKEN_BYTES];
        private final CompletableFuture<SocketChannel> came = new CompletableFuture<>();
        private boolean given;

        Post(String host) throws PipeException {
            new SecureRandom().nextBytes(token);
            try {
                server = ServerSocketChannel.open();
                server.bind(new InetSocketAddress(host, 0));
            } catch (IOException e) {
                throw new PipeException("cannot listen on " + host + ": " + e.getMessage(), e);
            }
            Thread.ofVirtual().name("gloo-tether-post").start(this::acceptAll);
        }

        /** What rank 1 needs to know: port, token and address, which need not be that of the store. */
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
                    SocketChannel stranger = server.accept();
                    Thread.ofVirtual().name("gloo-tether-greeting").start(() -> greet(stranger));
                } catch (IOException e) {
                    if (server.isOpen()) {
                        // Most likely out of file descriptors, which others may give back.
                        log.warn("waiting for rank 1: cannot accept: {}", e.getMessage());
                        LockSupport.parkNanos(PAUSE);
                    }
                }
            }
        }

        private void greet(SocketChannel stranger) {
            ByteBuffer shown = ByteBuffer.allocate(TOKEN_BYTES);
            boolean letIn = false;
            CompletableFuture<Void> greeted = new CompletableFuture<>();
            CompletableFuture<?> unusedAlarm = greeted.copy()
                    .orTimeout(GREETING.toMillis(), TimeUnit.MILLISECONDS)
                    .handle((_, late) -> {
                        if (late instanceof TimeoutException) {
                            quietly(stranger);
                        }
                        return shown;
                    });
            try {
                while (shown.hasRemaining() && stranger.read(shown) >= 0) {
                    // Until all is there.
                }
                letIn = MessageDigest.isEqual(token, shown.array()) && came.complete(stranger);
            } catch (IOException e) {
                // Not the one that is waited for.
            } finally {
                greeted.complete(null);
                if (!letIn) {
                    quietly(stranger);
                }
            }
        }

        LivenessSocket accept(Duration timeout) throws PipeException {
            try {
                LivenessSocket tether = new LivenessSocket(came.get(timeout.toNanos(), TimeUnit.NANOSECONDS));
                given = true;
                return tether;
            } catch (TimeoutException | ExecutionException e) {
                throw new PipeException("rank 1 has not come within " + timeout.toMillis() + " ms", e);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new PipeException("interrupted", e);
            }
        }

        @Override
        public void close() {
            try {
                server.close();
            } catch (IOException e) {
                // It is given up.
            }
            // Who greets too late is turned away, or has just been let in for nobody.
            boolean nobodyCame = came.completeExceptionally(new IOException("nobody waits any more"));
            if (!nobodyCame && !given && !came.isCompletedExceptionally()) {
                quietly(came.join());
            }
        }
    }

    /** Comes to rank 0. */
    static LivenessSocket to(byte[] where, Duration timeout) throws PipeException {
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
                    .connect(
                            new InetSocketAddress(InetAddress.ofLiteral(host), port),
                            Math.toIntExact(Math.clamp(timeout.toMillis(), 1, Integer.MAX_VALUE)));
            ByteBuffer token = ByteBuffer.wrap(Arrays.copyOfRange(where, Short.BYTES, head));
            while (token.hasRemaining()) {
                channel.write(token);
            }
            return new LivenessSocket(channel);
        } catch (IOException | IllegalArgumentException e) {
            if (channel != null) {
                quietly(channel);
            }
            throw new PipeException("rank 0 is not at " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }

    /** Runs something once the other side has ended; not if this one has. */
    void watch(Runnable whenEnded) {
        Thread.ofVirtual().name("gloo-tether").start(() -> {
            try {
                ByteBuffer nothing = ByteBuffer.allocate(1);
                while (channel.read(nothing) >= 0) {
                    nothing.clear();
                }
            } catch (IOException e) {
                // An end too.
            }
            quietly(channel);
            if (!closed) {
                whenEnded.run();
            }
        });
    }

    @Override
    public void close() {
        closed = true;
        quietly(channel);
    }

    private static void quietly(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException e) {
            // It is given up.
        }
    }
}
