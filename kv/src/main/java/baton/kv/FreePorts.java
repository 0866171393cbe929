package baton.kv;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Finds free ports of this host, for configurations that must name a port before it is listened on, or after a restart once more.
 *
 * <p>They lie below the ports that Linux gives to outgoing connections and to listeners on port 0 (from 32,768), so that none of those
 * takes a port in between.
 */
public final class FreePorts {
    private static final int FIRST = 20_000;
    private static final int PORTS = 12_000;
    private static final int ATTEMPTS = 200;

    private FreePorts() {}

    /**
     * The first of {@code count} consecutive ports that were free a moment ago.
     *
     * @throws IOException if there are none
     */
    public static int inARow(int count) throws IOException {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            int first = FIRST + ThreadLocalRandom.current().nextInt(PORTS);
            List<ServerSocket> taken = new ArrayList<>();
            try {
                for (int port = first; port < first + count; port++) {
                    taken.add(new ServerSocket(port, 1, InetAddress.getLoopbackAddress()));
                }
                return first;
            } catch (IOException e) {
                // A port of them is in use.
            } finally {
                for (ServerSocket socket : taken) {
                    socket.close();
                }
            }
        }
        throw new IOException("no %d free ports in a row were found".formatted(count));
    }
}
