package baton.transfer.mooncake;

import static baton.transfer.mooncake.DataProtocol.HEADER_BYTES;
import static baton.transfer.mooncake.DataProtocol.PIECE;
import static baton.transfer.mooncake.DataProtocol.STATUS_BYTES;

import baton.messages.Closing;
import baton.transfer.Transfer;
import baton.transfer.mooncake.DataProtocol.Request;
import baton.transfer.mooncake.LocalBuffers.Held;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A peer's connection to the data port. One thread serves its requests in order; bytes go between the socket and registered memory without
 * a copy. Other threads only look at its times and close it.
 */
final class DataConnection implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DataConnection.class);

    /** The limit of writes that one message acknowledges, where the peer has sent the next request already. */
    private static final int MOST_PENDING = 64;

    /** The limits of the peer's sending after a rejection: a peer may read the status only after it has sent everything. */
    private static final Duration DRAIN = Duration.ofSeconds(2);

    private static final long DRAIN_BYTES = 1L << 30;
    private static final int DRAIN_PIECE = 1 << 16;

    private final DataServer server;
    private final SocketChannel channel;

    /** The limit of a wait for the peer, counted from {@link #since}; none while idle. */
    private volatile Optional<Duration> patience = Optional.empty();

    private volatile long since;

    DataConnection(DataServer server, SocketChannel channel) {
        this.server = server;
        this.channel = channel;
        this.since = server.ticker().nanos();
    }

    /** Whether it is between requests. */
    boolean isIdle() {
        return patience.isEmpty();
    }

    /** When it last moved a byte, on the agent's clock. */
    long since() {
        return since;
    }

    boolean isStalled() {
        return patience.filter(most -> server.ticker().nanos() - since > most.toNanos())
                .isPresent();
    }

    private void progressed() {
        since = server.ticker().nanos();
    }

    void run() {
        try (channel;
                Arena arena = Arena.ofConfined()) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
            new Requests(arena).serve();
        } catch (IOException e) {
            LOG.debug("a data connection ended: {}", e.toString());
        } finally {
            server.ended(this);
        }
    }

    @Override
    public void close() {
        Closing.quietly(channel);
    }

    /** A request that is being served. */
    private final class Serving extends MemoryUse<Transfer.Cause> {
        @Override
        void abort(Transfer.Cause cause, String message) {
            end(cause);
            close();
        }

        @Override
        protected void over(Transfer.Cause cause) {
            // The connection is closed, which the peer sees.
        }
    }

    /** The state of the connection's thread. */
    private final class Requests {
        private final ByteBuffer header;
        private final ByteBuffer statuses;
        private final MemorySegment drained;
        private int pending;

        Requests(Arena arena) {
            header = DataProtocol.view(arena.allocate(HEADER_BYTES, Long.BYTES), 0, HEADER_BYTES);
            statuses = DataProtocol.view(
                    arena.allocate((long) (MOST_PENDING + 1) * STATUS_BYTES, Long.BYTES),
                    0,
                    (long) (MOST_PENDING + 1) * STATUS_BYTES);
            drained = arena.allocate(DRAIN_PIECE);
        }

        void serve() throws IOException {
            while (nextHeader()) {
                Request request = DataProtocol.request(header);
                header.clear();
                Serving serving = new Serving();
                Optional<Held> held = server.buffers().hold(request.address(), request.bytes(), serving);
                if (held.isEmpty()) {
                    reject(request);
                    return;
                }
                try {
                    if (!serving.enter()) {
                        return;
                    }
                    try {
                        move(request, held.get().memory());
                    } finally {
                        serving.exit();
                    }
                } finally {
                    held.get().buffer().release(serving);
                }
            }
        }

        /** @return false if the peer has closed the connection between two requests */
        private boolean nextHeader() throws IOException {
            while (header.hasRemaining()) {
                flush();
                // A part of a header is a message that was begun.
                patience = header.position() == 0 ? Optional.empty() : Optional.of(server.stall());
                if (channel.read(header) < 0) {
                    return false;
                }
                progressed();
            }
            patience = Optional.of(server.stall());
            return true;
        }

        private void move(Request request, MemorySegment memory) throws IOException {
            switch (request.operation()) {
                case WRITE -> {
                    receive(memory);
                    if (request.acknowledged()) {
                        status(DataProtocol.OK);
                    }
                }
                case READ -> {
                    if (request.acknowledged()) {
                        statuses.putLong(DataProtocol.OK);
                    }
                    send(memory);
                }
            }
        }

        /** Fills the memory, and as much of the next request's header as is there. */
        private void receive(MemorySegment memory) throws IOException {
            for (long at = 0; at < memory.byteSize(); ) {
                ByteBuffer piece = DataProtocol.view(memory, at, Math.min(PIECE, memory.byteSize() - at));
                boolean last = at + piece.remaining() == memory.byteSize();
                long count = last ? channel.read(new ByteBuffer[] {piece, header}) : channel.read(piece);
                if (count < 0) {
                    throw new IOException(
                            "the peer closed the connection after %d of %d bytes".formatted(at, memory.byteSize()));
                }
                at += piece.position();
                progressed();
            }
        }

        private void send(MemorySegment memory) throws IOException {
            for (long at = 0; at < memory.byteSize(); ) {
                ByteBuffer piece = DataProtocol.view(memory, at, Math.min(PIECE, memory.byteSize() - at));
                at += piece.remaining();
                DataProtocol.write(channel, statuses.flip(), piece);
                statuses.clear();
                progressed();
            }
            pending = 0;
        }

        /** Sends a status, at the latest before the connection waits for the peer. */
        private void status(long status) throws IOException {
            statuses.putLong(status);
            pending++;
            if (pending == MOST_PENDING) {
                flush();
            }
        }

        private void flush() throws IOException {
            if (statuses.position() > 0) {
                DataProtocol.write(channel, statuses.flip());
                statuses.clear();
                pending = 0;
                progressed();
            }
        }

        /** Sends the status, then reads until the peer's end: closing with unread bytes would be a reset, which can overtake the status. */
        private void reject(Request request) throws IOException {
            server.rejected(channel.getRemoteAddress(), request);
            if (request.acknowledged()) {
                statuses.putLong(DataProtocol.REJECTED);
            }
            flush();
            channel.shutdownOutput();
            patience = Optional.of(DRAIN);
            long left = DRAIN_BYTES;
            while (left > 0) {
                int count = channel.read(drained.asByteBuffer());
                if (count < 0) {
                    return;
                }
                left -= count;
            }
        }
    }
}
