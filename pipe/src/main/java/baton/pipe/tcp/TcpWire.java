package baton.pipe.tcp;

import baton.pipe.PipeException;
import baton.pipe.Wire;
import java.io.EOFException;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A connection. Its channel blocks, so that bytes go to and from memory without anything between, also on virtual threads; a
 * deadline that passes closes it, which ends whoever blocks on it.
 */
final class TcpWire implements Wire {
    /** What who connects sends before its token. */
    static final byte[] HELLO = "baton-wire/1 ".getBytes(StandardCharsets.US_ASCII);

    /** What who is let in is answered. */
    static final byte[] WELCOME = "baton-wire/1 ok\n".getBytes(StandardCharsets.US_ASCII);

    /** What is handed to the system at once. */
    private static final long PIECE = 1 << 20;

    private final SocketChannel channel;
    private final String peer;

    private TcpWire(SocketChannel channel, String peer) {
        this.channel = channel;
        this.peer = peer;
    }

    SocketChannel channel() {
        return channel;
    }

    /** A wire from an accepted connection, whose greeting is done. */
    static TcpWire over(SocketChannel channel) throws IOException {
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
        return new TcpWire(channel, String.valueOf(channel.getRemoteAddress()));
    }

    /** Connects, shows the token and waits to be let in. */
    static TcpWire connect(InetSocketAddress address, byte[] token, Deadline deadline) throws PipeException {
        try {
            SocketChannel channel = SocketChannel.open();
            try {
                long millis = Math.clamp(deadline.left().toMillis(), 1, Integer.MAX_VALUE);
                channel.socket().connect(address, Math.toIntExact(millis));
                TcpWire wire = over(channel);
                wire.introduce(token, deadline);
                return wire;
            } catch (IOException e) {
                TcpTransport.quietly(channel);
                throw e;
            }
        } catch (SocketTimeoutException e) {
            throw new PipeException("%s does not answer within %s".formatted(address, deadline), e);
        } catch (IOException e) {
            throw new PipeException("nobody lets us in at " + address + ": " + reason(e), e);
        }
    }

    private void introduce(byte[] token, Deadline deadline) throws IOException {
        if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
            // Where nobody listens on a port that the system gives to whoever connects, it can give it to us.
            throw new IOException("connected to itself");
        }
        byte[] hello = ByteBuffer.allocate(HELLO.length + token.length)
                .put(HELLO)
                .put(token)
                .array();
        write(ByteBuffer.wrap(hello), deadline);
        byte[] answer = new byte[WELCOME.length];
        read(ByteBuffer.wrap(answer), deadline);
        if (!Arrays.equals(answer, WELCOME)) {
            throw new IOException("it answers something else");
        }
    }

    @Override
    public void send(MemorySegment bytes, Duration timeout) throws PipeException {
        moveAll(bytes, timeout, "send", this::write);
    }

    @Override
    public void receive(MemorySegment into, Duration timeout) throws PipeException {
        moveAll(into, timeout, "receive", this::read);
    }

    private interface Move {
        void move(ByteBuffer bytes) throws IOException;
    }

    private void moveAll(MemorySegment bytes, Duration timeout, String what, Move move) throws PipeException {
        Deadline deadline = Deadline.in(timeout);
        AtomicLong at = new AtomicLong();
        try {
            byDeadline(deadline, () -> {
                while (at.get() < bytes.byteSize()) {
                    long length = Math.min(PIECE, bytes.byteSize() - at.get());
                    move.move(bytes.asSlice(at.get(), length).asByteBuffer());
                    at.addAndGet(length);
                }
            });
        } catch (SocketTimeoutException e) {
            throw new PipeException(
                    "%s of %d bytes: %s has not kept up within %s, after %d bytes"
                            .formatted(what, bytes.byteSize(), peer, deadline, at.get()),
                    e);
        } catch (IOException e) {
            close();
            throw new PipeException(
                    "%s of %d bytes, after %d: %s: %s".formatted(what, bytes.byteSize(), at.get(), peer, reason(e)), e);
        }
    }

    void write(ByteBuffer bytes, Deadline deadline) throws IOException {
        byDeadline(deadline, () -> write(bytes));
    }

    void read(ByteBuffer bytes, Deadline deadline) throws IOException {
        byDeadline(deadline, () -> read(bytes));
    }

    private void write(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }

    private void read(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            if (channel.read(bytes) < 0) {
                throw new EOFException("the peer has closed the connection");
            }
        }
    }

    private interface Blocking {
        void run() throws IOException;
    }

    private void byDeadline(Deadline deadline, Blocking action) throws IOException {
        AtomicBoolean late = new AtomicBoolean();
        CompletableFuture<?> alarm = deadline.then(() -> {
            late.set(true);
            close();
        });
        try {
            action.run();
        } catch (ClosedChannelException e) {
            if (late.get()) {
                throw new SocketTimeoutException("late");
            }
            throw e;
        } finally {
            alarm.cancel(false);
        }
    }

    private static String reason(IOException e) {
        return switch (e) {
            case ClosedByInterruptException _ -> "the waiting thread was interrupted";
            case ClosedChannelException _ -> "the wire is closed";
            default -> e.getMessage() == null ? e.toString() : e.getMessage();
        };
    }

    @Override
    public void close() {
        TcpTransport.quietly(channel);
    }

    @Override
    public String toString() {
        return "tcp wire to " + peer;
    }
}
