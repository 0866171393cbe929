package baton.cli;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** Ports for those who must know them before they listen, or have them again after a restart. */
final class Ports {
    /** Below those that Linux gives to whoever connects or asks for any. */
    private static final int FIRST = 20_000;

    private static final int COUNT = 12_000;
    private static final int MOST_TRIES = 200;

    private Ports() {}

    /** The first of so many in a row that nobody has. */
    static int free(int count) throws IOException {
        Random random = new Random();
        for (int tries = 0; tries < MOST_TRIES; tries++) {
            int first = FIRST + random.nextInt(COUNT);
            List<ServerSocket> sockets = new ArrayList<>();
            try {
                for (int i = 0; i < count; i++) {
                    sockets.add(new ServerSocket(first + i, 1, InetAddress.getLoopbackAddress()));
                }
                return first;
            } catch (IOException e) {
                // Somebody has one of them.
            } finally {
                for (ServerSocket socket : sockets) {
                    socket.close();
                }
            }
        }
        throw new IOException("no " + count + " free ports in a row");
    }
}
