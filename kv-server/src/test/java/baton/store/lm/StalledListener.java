package baton.store.lm;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** A server that replies to the first request of a connection, and reads nothing after it. */
final class StalledListener implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();

    StalledListener() throws IOException {}

    int port() {
        return listener.getLocalPort();
    }

    void answerProbes() {
        Thread.ofVirtual().start(() -> {
            try {
                while (true) {
                    Socket socket = listener.accept();
                    sockets.add(socket);
                    socket.getInputStream().readNBytes(LmWire.REQUEST_BYTES);
                    ByteBuffer reply = ByteBuffer.allocate(LmWire.REPLY_BYTES).order(ByteOrder.LITTLE_ENDIAN);
                    reply.putInt(LmWire.FAIL).putInt(0).putInt(1).putInt(2);
                    socket.getOutputStream().write(reply.array());
                }
            } catch (IOException _) {
                // Closed.
            }
        });
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }
}
