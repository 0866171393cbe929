package baton.pipe.tcp;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import baton.messages.SealedChannel;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import java.io.EOFException;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A connection. Its channel is in blocking mode, so that bytes are copied directly from and to native memory, also on virtual
 * threads; a timer closes it at a deadline, which ends the blocking call.
 */
final class TcpWire implements Wire {
    /** Sent by the connecting side, before its token. */
    static final byte[] HELLO = "baton-wire/1 ".getBytes(StandardCharsets.US_ASCII);

    /** The answer to a valid token. */
    static final byte[] WELCOME = "baton-wire/1 ok\n".getBytes(StandardCharsets.US_ASCII);

    /** Bytes of one system call. */
    private static final long PIECE = 1 << 20;

    private final SocketChannel channel;
    private final Ticker ticker;
    private final String peer;
    private ByteChannel bytes;

    private TcpWire(SocketChannel channel, Ticker ticker, String peer) {
        this.channel = channel;
        this.bytes = channel;
        this.ticker = ticker;
        this.peer = peer;
    }

    SocketChannel channel() {
        return channel;
    }

    /** A wire over an established connection. */
    static TcpWire over(SocketChannel channel, Ticker ticker) throws IOException {
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
        return new TcpWire(channel, ticker, String.valueOf(channel.getRemoteAddress()));
    }

    /** Connects, sends the token and waits for its acceptance. */
    static TcpWire connect(InetSocketAddress address, byte[] token, PeerAccess access, Ticker ticker, Deadline deadline)
            throws PipeException {
        try {
            SocketChannel channel = SocketChannel.open();
            try {
                channel.socket().connect(address, deadline.remainingMillis());
                TcpWire wire = over(channel, ticker);
                wire.seal(access, true, deadline);
                wire.sendToken(token, deadline);
                return wire;
            } catch (IOException e) {
                Closing.quietly(channel);
                throw e;
            }
        } catch (SocketTimeoutException e) {
            throw new PipeException("%s does not answer within %s".formatted(address, deadline), e);
        } catch (IOException e) {
            throw new PipeException("no peer accepted the connection at " + address + ": " + reason(e), e);
        }
    }

    /** Seals it from here on if {@code access} requires that; both ends do, before the token. */
    void seal(PeerAccess access, boolean caller, Deadline deadline) throws IOException {
        if (access.sealing().isPresent()) {
            byDeadline(deadline, () -> bytes = SealedChannel.open(access, "wire", caller, peer, channel, channel));
        }
    }

    private void sendToken(byte[] token, Deadline deadline) throws IOException {
        if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
            // A connection to a free ephemeral port of this host can get that port as its own, and so reach itself.
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
    public void send(TensorBytes bytes, Duration timeout) throws PipeException {
        moveAll(bytes.host(), timeout, "send", this::write);
    }

    @Override
    public void receive(TensorBytes into, Duration timeout) throws PipeException {
        moveAll(into.host(), timeout, "receive", this::read);
    }

    private interface Move {
        void move(ByteBuffer bytes) throws IOException;
    }

    private void moveAll(MemorySegment bytes, Duration timeout, String what, Move move) throws PipeException {
        Deadline deadline = Deadline.after(ticker, timeout);
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

    private void write(ByteBuffer from) throws IOException {
        while (from.hasRemaining()) {
            bytes.write(from);
        }
    }

    private void read(ByteBuffer into) throws IOException {
        while (into.hasRemaining()) {
            if (bytes.read(into) < 0) {
                throw new EOFException("the peer has closed the connection");
            }
        }
    }

    private interface Blocking {
        void run() throws IOException;
    }

    private void byDeadline(Deadline deadline, Blocking action) throws IOException {
        AtomicBoolean late = new AtomicBoolean();
        CompletableFuture<Void> timer = new CompletableFuture<>();
        CompletableFuture<?> _ = timer.thenRun(() -> {
            late.set(true);
            close();
        });
        CompletableFuture<?> _ = timer.completeOnTimeout(null, deadline.remainingNanos(), TimeUnit.NANOSECONDS);
        try {
            action.run();
        } catch (ClosedChannelException e) {
            if (late.get()) {
                throw new SocketTimeoutException("late");
            }
            throw e;
        } finally {
            timer.cancel(false);
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
        Closing.quietly(channel);
    }

    @Override
    public String toString() {
        return "tcp wire to " + peer;
    }
}
