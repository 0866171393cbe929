package baton.transfer.mooncake;

import static baton.transfer.mooncake.DataProtocol.HEADER_BYTES;
import static baton.transfer.mooncake.DataProtocol.PIECE;
import static baton.transfer.mooncake.DataProtocol.STATUS_BYTES;

import baton.messages.Closing;
import baton.transfer.TransferAgent.Operation;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A connection to a peer's data port. One thread sends requests, without waiting for the answers of those before, and takes the answers in
 * order. Other threads only close it.
 */
final class Lane implements AutoCloseable {
    /** Requests that are sent together. */
    static final int BATCH = 128;

    private final SocketChannel channel;
    private final boolean acknowledged;
    private final ByteBuffer headers;
    private final ByteBuffer statuses;
    private boolean answered;

    /**
     * @param arena lives as long as the thread that uses the lane
     * @param version of the peer's data protocol
     */
    Lane(Arena arena, int version) throws IOException {
        this.acknowledged = version >= SegmentDescriptor.VERSION;
        this.headers = buffer(arena, (BATCH + 1) * HEADER_BYTES);
        this.statuses = buffer(arena, BATCH * STATUS_BYTES);
        this.channel = SocketChannel.open();
    }

    /** A range that is moved, or a part of one. */
    record Piece(MemorySegment local, long remote) {}

    /** The peer has answered that a range is not within one of its buffers. */
    static final class RejectedException extends IOException {
        RejectedException() {
            super("the peer has rejected a range: it is not within one registered buffer there");
        }
    }

    private static ByteBuffer buffer(Arena arena, int bytes) {
        return DataProtocol.view(arena.allocate(bytes, Long.BYTES), 0, bytes);
    }

    void connect(InetSocketAddress to, Duration timeout) throws IOException {
        channel.socket().connect(to, Math.toIntExact(Math.clamp(timeout.toMillis(), 1, Integer.MAX_VALUE)));
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
    }

    /** Whether the peer has answered on it since it was made, or since {@link #begin}. */
    boolean answered() {
        return answered;
    }

    void begin() {
        answered = false;
    }

    /** @param pieces at most {@link #BATCH} */
    void send(Operation operation, List<Piece> pieces) throws IOException {
        headers.clear();
        List<ByteBuffer> out = new ArrayList<>();
        for (Piece piece : pieces) {
            out.add(header(operation, piece.remote, piece.local.byteSize()));
            if (operation == Operation.WRITE) {
                for (long at = 0; at < piece.local.byteSize(); at += PIECE) {
                    out.add(DataProtocol.view(piece.local, at, Math.min(PIECE, piece.local.byteSize() - at)));
                }
            }
        }
        if (operation == Operation.WRITE && !acknowledged) {
            // Version 1 does not answer a write. But requests are served in order, and a rejected one ends the
            // connection.
            Piece last = pieces.getLast();
            out.add(header(Operation.READ, last.remote + last.local.byteSize() - 1, 1));
        }
        DataProtocol.write(channel, out.toArray(ByteBuffer[]::new));
    }

    private ByteBuffer header(Operation operation, long remote, long bytes) {
        int at = headers.position();
        DataProtocol.putHeader(headers, operation, acknowledged, remote, bytes);
        return headers.slice(at, HEADER_BYTES);
    }

    /** Receives the answers to all requests sent so far. */
    void receive(Operation operation, List<Piece> pieces) throws IOException {
        List<ByteBuffer> in = new ArrayList<>();
        List<ByteBuffer> answers = new ArrayList<>();
        for (Piece piece : pieces) {
            if (acknowledged) {
                answers.add(statuses.slice(answers.size() * STATUS_BYTES, STATUS_BYTES));
                in.add(answers.getLast());
            }
            if (operation == Operation.READ) {
                for (long at = 0; at < piece.local.byteSize(); at += PIECE) {
                    in.add(DataProtocol.view(piece.local, at, Math.min(PIECE, piece.local.byteSize() - at)));
                }
            }
        }
        if (operation == Operation.WRITE && !acknowledged) {
            in.add(statuses.slice(0, 1));
        }
        try {
            DataProtocol.read(channel, in.toArray(ByteBuffer[]::new));
        } catch (IOException e) {
            check(operation, answers);
            throw e;
        }
        check(operation, answers);
        answered = true;
    }

    /** The statuses that have come; before one that has not come in full there is no later one. */
    private void check(Operation operation, List<ByteBuffer> answers) throws IOException {
        for (int i = 0; i < answers.size() && !answers.get(i).hasRemaining(); i++) {
            long status = statuses.getLong(i * STATUS_BYTES);
            if (status == DataProtocol.REJECTED) {
                throw new RejectedException();
            }
            if (status != DataProtocol.OK) {
                throw new IOException("status=0x%016x of a %s must be 0x%016x: the peer does not speak version 2"
                        .formatted(status, operation, DataProtocol.OK));
            }
        }
    }

    @Override
    public void close() {
        Closing.quietly(channel);
    }
}
