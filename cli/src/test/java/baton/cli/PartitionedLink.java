package baton.cli;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;

/**
 * A TCP relay in front of a server, which plays a network that fails: while it is partitioned, connections are open and no byte
 * arrives on either side.
 */
final class PartitionedLink implements AutoCloseable {
    private static final int CONNECT_MILLIS = 2000;

    private final ServerSocket door;
    private final URI target;
    private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private final Object gate = new Object();

    private boolean partitioned;

    PartitionedLink(URI target) throws IOException {
        this.target = target;
        door = new ServerSocket(0, 1024, InetAddress.getLoopbackAddress());
        threads.execute(this::accept);
    }

    /** The server's URL through this relay. */
    URI url() {
        return URI.create("http://127.0.0.1:" + door.getLocalPort());
    }

    void partition() {
        synchronized (gate) {
            partitioned = true;
        }
    }

    /** Bytes arrive again, on new connections: the ones that were open are reset. */
    void heal() {
        reset();
        synchronized (gate) {
            partitioned = false;
            gate.notifyAll();
        }
    }

    /** Ends all connections. */
    void reset() {
        sockets.forEach(this::end);
    }

    private void end(Socket socket) {
        sockets.remove(socket);
        try {
            socket.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void accept() {
        while (!door.isClosed()) {
            try {
                Socket client = door.accept();
                sockets.add(client);
                threads.execute(() -> relay(client));
            } catch (IOException | RejectedExecutionException _) {
                // Closed, or the client is gone already.
            }
        }
    }

    private void relay(Socket client) {
        Socket server = new Socket();
        sockets.add(server);
        try {
            awaitOpen();
            server.connect(new InetSocketAddress(target.getHost(), target.getPort()), CONNECT_MILLIS);
            threads.execute(() -> copy(server, client));
            copy(client, server);
        } catch (IOException | InterruptedException | RejectedExecutionException _) {
            end(server);
            end(client);
        }
    }

    private void copy(Socket from, Socket to) {
        byte[] bytes = new byte[16384];
        try {
            int read = from.getInputStream().read(bytes);
            while (read >= 0) {
                awaitOpen();
                to.getOutputStream().write(bytes, 0, read);
                read = from.getInputStream().read(bytes);
            }
        } catch (IOException | InterruptedException _) {
            // Ends both, below.
        }
        end(from);
        end(to);
    }

    private void awaitOpen() throws InterruptedException {
        synchronized (gate) {
            while (partitioned) {
                gate.wait(CONNECT_MILLIS);
            }
        }
    }

    @Override
    public void close() throws IOException {
        door.close();
        heal();
        threads.shutdownNow();
        // Of connections that came meanwhile.
        reset();
    }
}
