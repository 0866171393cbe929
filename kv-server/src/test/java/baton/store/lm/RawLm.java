package baton.store.lm;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A plain socket that speaks the protocol by hand, and breaks it where a test wants that. */
final class RawLm implements AutoCloseable {
    private static final int PATIENCE_MILLIS = 120_000;

    private final Socket socket = new Socket();
    private final DataInputStream in;

    RawLm(int port, int... receiveBuffer) throws IOException {
        for (int bytes : receiveBuffer) {
            socket.setReceiveBufferSize(bytes);
        }
        socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), PATIENCE_MILLIS);
        socket.setSoTimeout(PATIENCE_MILLIS);
        socket.setTcpNoDelay(true);
        in = new DataInputStream(socket.getInputStream());
    }

    static byte[] request(int command, String key, int length, int format, int dtype, int... shape) {
        ByteBuffer bytes = ByteBuffer.allocate(LmWire.REQUEST_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        bytes.putInt(command).putInt(length).putInt(format).putInt(dtype).putInt(0);
        for (int i = 0; i < 4; i++) {
            bytes.putInt(i < shape.length ? shape[i] : 0);
        }
        bytes.put(key.getBytes(StandardCharsets.UTF_8));
        while (bytes.hasRemaining()) {
            bytes.put((byte) ' ');
        }
        return bytes.array();
    }

    static byte[] request(int command, String key) {
        return request(command, key, 0, 1, 2);
    }

    void send(byte[]... parts) throws IOException {
        int bytes = Arrays.stream(parts).mapToInt(part -> part.length).sum();
        ByteBuffer all = ByteBuffer.allocate(bytes);
        for (byte[] part : parts) {
            all.put(part);
        }
        socket.getOutputStream().write(all.array());
    }

    void put(String key, byte[] value) throws IOException {
        send(request(LmWire.PUT, key, value.length, 5, 6, value.length), value);
    }

    /** A reply's nine numbers. */
    int[] reply() throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(bytes(LmWire.REPLY_BYTES)).order(ByteOrder.LITTLE_ENDIAN);
        int[] numbers = new int[9];
        bytes.asIntBuffer().get(numbers);
        return numbers;
    }

    byte[] bytes(int count) throws IOException {
        byte[] bytes = new byte[count];
        in.readFully(bytes);
        return bytes;
    }

    boolean exists(String key) throws IOException {
        send(request(LmWire.EXIST, key));
        return reply()[0] == LmWire.SUCCESS;
    }

    /** A value; none for a miss. */
    byte[] get(String key) throws IOException {
        send(request(LmWire.GET, key));
        int[] reply = reply();
        return bytes(reply[1]);
    }

    /** Whether the server has ended the connection; waits for it. */
    boolean isEnded() {
        try {
            return in.read() < 0;
        } catch (java.net.SocketTimeoutException e) {
            return false;
        } catch (IOException e) {
            return true;
        }
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
