package baton.store.remote;

import baton.kv.Deadline;
import baton.kv.Ticker;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/** Forwards connections to a server, and a limited number of bytes from it: further bytes wait, while all connections stay open. */
public final class StallingProxy implements AutoCloseable {
    private static final int BUFFER = 64 << 10;

    private final InetSocketAddress server;
    private final ServerSocket listener;
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final AtomicLong left = new AtomicLong(Long.MAX_VALUE);
    private volatile boolean closed;

    public StallingProxy(InetSocketAddress server) throws IOException {
        this.server = server;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Thread.ofVirtual().start(this::accept);
    }

    public int port() {
        return listener.getLocalPort();
    }

    /** Forwards so many bytes from the server still. */
    public void stallAfter(long bytes) {
        left.set(bytes);
    }

    public void resume() {
        left.set(Long.MAX_VALUE);
    }

    /** Whether all that may be forwarded has been. */
    public boolean isStalled() {
        return left.get() == 0;
    }

    private void accept() {
        try {
            while (true) {
                Socket client = listener.accept();
                Socket upstream = new Socket(server.getAddress(), server.getPort());
                sockets.addAll(List.of(client, upstream));
                Thread.ofVirtual().start(() -> forward(client, upstream, false));
                Thread.ofVirtual().start(() -> forward(upstream, client, true));
            }
        } catch (IOException _) {
            // Closed.
        }
    }

    private void forward(Socket from, Socket to, boolean limited) {
        byte[] buffer = new byte[BUFFER];
        try (from;
                to) {
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            int read = in.read(buffer);
            while (read > 0) {
                int sent = 0;
                while (sent < read) {
                    int most = limited ? allowed(read - sent) : read - sent;
                    out.write(buffer, sent, most);
                    sent += most;
                }
                read = in.read(buffer);
            }
        } catch (IOException _) {
            // One side has ended, and so does the other.
        }
    }

    /** Waits until some bytes may be forwarded. */
    private int allowed(int wanted) throws IOException {
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(1));
        while (!closed && !deadline.isOver()) {
            long before = left.get();
            long taken = Math.min(before, wanted);
            if (taken > 0 && left.compareAndSet(before, before == Long.MAX_VALUE ? before : before - taken)) {
                return (int) taken;
            }
            LockSupport.parkNanos(1_000_000);
        }
        throw new IOException("closed");
    }

    @Override
    public void close() throws IOException {
        closed = true;
        listener.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }
}
