package baton.kv;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;

/** Finds free ports of this host, for configurations that must name a port before it is listened on. */
public final class FreePorts {
    private static final int ATTEMPTS = 20;

    private FreePorts() {}

    /**
     * The first of {@code count} consecutive ports that were free a moment ago.
     *
     * @throws IOException if there are none
     */
    public static int inARow(int count) throws IOException {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            List<ServerSocket> taken = new ArrayList<>();
            try {
                taken.add(new ServerSocket(0, 1, InetAddress.getLoopbackAddress()));
                int first = taken.getFirst().getLocalPort();
                for (int port = first + 1; port < first + count; port++) {
                    taken.add(new ServerSocket(port, 1, InetAddress.getLoopbackAddress()));
                }
                return first;
            } catch (IOException | IllegalArgumentException e) {
                // The next one is not free, or no port.
            } finally {
                for (ServerSocket socket : taken) {
                    socket.close();
                }
            }
        }
        throw new IOException("no %d free ports in a row were found".formatted(count));
    }
}
