package baton.transfer.mooncake;

import baton.kv.Deadline;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * A message of Mooncake's handshake daemon ({@code transfer_metadata_plugin.cpp}): uint64 length of the rest, little endian; uint8 type;
 * JSON. There is one request and one answer of the same type on each connection. Older engines send connection requests without a type:
 * these begin with the JSON.
 */
record HandshakeMessage(Type type, byte[] json) {
    enum Type {
        CONNECTION(0),
        METADATA(1),
        NOTIFY(2),
        PROBE(3),
        /** A connection request without a type. */
        UNTYPED(-1);

        private final int code;

        Type(int code) {
            this.code = code;
        }

        private static Type of(byte code) {
            return Arrays.stream(values())
                    .filter(each -> each.code == code && each != UNTYPED)
                    .findFirst()
                    .orElse(UNTYPED);
        }
    }

    /** There was no connection, so the peer has not got the message. */
    static final class UnreachableException extends IOException {
        UnreachableException(InetSocketAddress at, IOException cause) {
            super(
                    "%s:%d cannot be connected to: %s".formatted(at.getHostString(), at.getPort(), cause.getMessage()),
                    cause);
        }
    }

    /**
     * Sends, and receives the answer's JSON, on a connection of its own.
     *
     * @throws UnreachableException if it was not sent
     */
    static byte[] exchange(InetSocketAddress at, HandshakeMessage request, int longest, Deadline deadline)
            throws IOException {
        try (Socket socket = new Socket()) {
            try {
                if (at.isUnresolved()) {
                    throw new IOException("no such host");
                }
                socket.connect(at, deadline.remainingMillis());
            } catch (IOException e) {
                throw new UnreachableException(at, e);
            }
            socket.setTcpNoDelay(true);
            CountDownLatch done = new CountDownLatch(1);
            HandshakeMessage answer;
            try {
                // Ends a write to a peer that takes nothing.
                Thread.ofVirtual().start(() -> closeLate(socket, done, deadline));
                request.write(socket);
                answer = read(socket, longest, deadline);
            } finally {
                done.countDown();
            }
            if (answer.type != request.type) {
                throw new IOException(
                        "answered a message of type %s with one of type %s".formatted(request.type, answer.type));
            }
            return answer.json;
        }
    }

    private static void closeLate(Socket socket, CountDownLatch done, Deadline deadline) {
        try {
            if (!done.await(deadline.remainingNanos(), TimeUnit.NANOSECONDS)) {
                socket.close();
            }
        } catch (InterruptedException | IOException e) {
            throw new IllegalStateException("a socket of a handshake cannot be closed", e);
        }
    }

    void write(Socket socket) throws IOException {
        boolean typed = type != Type.UNTYPED;
        int length = json.length + (typed ? 1 : 0);
        ByteBuffer frame = ByteBuffer.allocate(Long.BYTES + length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(length);
        if (typed) {
            frame.put((byte) type.code);
        }
        socket.getOutputStream().write(frame.put(json).array());
    }

    /**
     * @param longest length that is accepted
     * @throws IOException if the message is not one, or not there in time
     */
    static HandshakeMessage read(Socket socket, int longest, Deadline deadline) throws IOException {
        byte[] header = bytes(socket, Long.BYTES, deadline);
        long length = ByteBuffer.wrap(header).order(ByteOrder.LITTLE_ENDIAN).getLong();
        if (length < 1 || length > longest) {
            throw new IOException("a handshake message of length=%s, must be 1 to %d"
                    .formatted(Long.toUnsignedString(length), longest));
        }
        byte[] body = bytes(socket, (int) length, deadline);
        Type type = Type.of(body[0]);
        return new HandshakeMessage(type, type == Type.UNTYPED ? body : Arrays.copyOfRange(body, 1, body.length));
    }

    /** Memory grows with the bytes that have arrived, not with the announced length. */
    private static byte[] bytes(Socket socket, int length, Deadline deadline) throws IOException {
        InputStream in = socket.getInputStream();
        byte[] bytes = new byte[Math.min(length, 1 << 12)];
        int count = 0;
        while (count < length) {
            if (deadline.isOver()) {
                throw new IOException("not done after " + deadline);
            }
            if (count == bytes.length) {
                bytes = Arrays.copyOf(bytes, Math.min(length, count * 2));
            }
            socket.setSoTimeout(deadline.remainingMillis());
            int got = in.read(bytes, count, bytes.length - count);
            if (got < 0) {
                throw new EOFException("the connection ended after %d of %d bytes".formatted(count, length));
            }
            count += got;
        }
        return bytes;
    }
}
