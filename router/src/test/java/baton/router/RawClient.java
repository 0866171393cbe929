package baton.router;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** A client on a plain socket, which can disconnect, stall or break the protocol at any point. */
final class RawClient implements AutoCloseable {
    private final Socket socket = new Socket();
    private final InputStream in;

    RawClient(int port) throws IOException {
        socket.setReceiveBufferSize(32 << 10);
        socket.setSoTimeout((int) RouterFixture.SOON.toMillis());
        socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        in = new BufferedInputStream(socket.getInputStream());
    }

    RawClient post(String path, String body) throws IOException {
        int length = body.getBytes(StandardCharsets.UTF_8).length;
        return send(
                "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                        + length + "\r\n\r\n" + body);
    }

    RawClient send(String text) throws IOException {
        socket.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
        socket.getOutputStream().flush();
        return this;
    }

    /** Reads up to and including {@code text}, or to the end of the connection. */
    String readUntil(String text) throws IOException {
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        byte[] wanted = text.getBytes(StandardCharsets.UTF_8);
        int matched = 0;
        while (matched < wanted.length) {
            int b = in.read();
            if (b < 0) {
                break;
            }
            read.write(b);
            matched = b == wanted[matched] ? matched + 1 : b == wanted[0] ? 1 : 0;
        }
        return read.toString(StandardCharsets.UTF_8);
    }

    /** The bytes of one read of the socket; no other method may have left some. */
    String readOnce() throws IOException {
        byte[] buffer = new byte[1 << 16];
        int n = socket.getInputStream().read(buffer);
        return new String(buffer, 0, Math.max(n, 0), StandardCharsets.UTF_8);
    }

    /** Reads {@code length} bytes, or fewer if the connection ends first; returns how many. */
    long readUpTo(long length) throws IOException {
        byte[] buffer = new byte[1 << 16];
        long read = 0;
        while (read < length) {
            int n = in.read(buffer, 0, (int) Math.min(buffer.length, length - read));
            if (n < 0) {
                break;
            }
            read += n;
        }
        return read;
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
