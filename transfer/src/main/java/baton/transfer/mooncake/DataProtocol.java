package baton.transfer.mooncake;

import baton.transfer.TransferAgent.Operation;
import java.io.EOFException;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;

/**
 * Mooncake's TCP data protocol ({@code tcp_transport_session_impl.h}). A request is a header of {@value #HEADER_BYTES} bytes, all little
 * endian: uint64 length; uint64 address in the process that serves; uint8 operation, 0 for READ and 1 for WRITE, with bit
 * {@value #ACKNOWLEDGED} in version 2; 7 bytes of padding. After it a WRITE has its bytes. Version 2 answers a WRITE with a status when
 * all bytes are in memory, and a READ with a status and, if that is {@link #OK}, the bytes; version 1 has no statuses. A server closes the
 * connection after it has rejected a request. Requests on a connection are served in order.
 */
final class DataProtocol {
    static final int HEADER_BYTES = 24;
    static final int STATUS_BYTES = Long.BYTES;

    /** The flag in the operation's byte that asks for a status of each write. */
    static final int ACKNOWLEDGED = 0x80;

    static final long OK = 0x4D435456L << 32;

    /** The range is not within one registered buffer. */
    static final long REJECTED = OK | 1;

    /** Bytes that one system call moves at most, so that progress is seen. */
    static final int PIECE = 4 << 20;

    private static final int ADDRESS_AT = 8;
    private static final int OPERATION_AT = 16;

    private DataProtocol() {}

    /** A request as it is sent. */
    static void putHeader(ByteBuffer to, Operation operation, boolean acknowledged, long address, long bytes) {
        int flag = acknowledged ? ACKNOWLEDGED : 0;
        int code = operation == Operation.WRITE ? 1 : 0;
        to.putLong(bytes).putLong(address).put((byte) (code | flag)).put(new byte[HEADER_BYTES - OPERATION_AT - 1]);
    }

    /** @param header {@value #HEADER_BYTES} bytes from position 0, little endian */
    static Request request(ByteBuffer header) {
        int code = header.get(OPERATION_AT);
        return new Request(
                (code & ~ACKNOWLEDGED & 0xff) == 1 ? Operation.WRITE : Operation.READ,
                (code & ACKNOWLEDGED) != 0,
                header.getLong(ADDRESS_AT),
                header.getLong(0));
    }

    /**
     * A request as it came: nothing is checked.
     *
     * @param address in this process
     * @param acknowledged whether it is of version 2
     */
    record Request(Operation operation, boolean acknowledged, long address, long bytes) {}

    /** A view of a part of memory, little endian. */
    static ByteBuffer view(MemorySegment memory, long offset, long bytes) {
        return memory.asSlice(offset, bytes).asByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Sends all of them. */
    static void write(SocketChannel channel, ByteBuffer... buffers) throws IOException {
        for (int first = 0; first < buffers.length; ) {
            if (!buffers[first].hasRemaining()) {
                first++;
            } else {
                long unusedCount = channel.write(buffers, first, buffers.length - first);
            }
        }
    }

    /** Fills all of them. */
    static void read(SocketChannel channel, ByteBuffer... buffers) throws IOException {
        for (int first = 0; first < buffers.length; ) {
            if (!buffers[first].hasRemaining()) {
                first++;
            } else if (channel.read(buffers, first, buffers.length - first) < 0) {
                throw new EOFException("the peer closed the connection");
            }
        }
    }
}
