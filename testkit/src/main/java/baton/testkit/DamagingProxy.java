package baton.testkit;

import baton.messages.Closing;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;

/**
 * Relays TCP connections to a server, on the loopback interface, and applies {@link Damages} to their bytes: a network that corrupts. Where
 * a protocol sends addresses of further connections, a {@link Rewriting} leads these through proxies too.
 */
public final class DamagingProxy implements AutoCloseable {
    private static final int CONNECT_MILLIS = 5000;
    private static final int CHUNK = 64 << 10;
    private static final int KEPT_CONNECTIONS = 32;
    private static final int KEPT_BYTES = 256 << 10;

    private final String name;
    private final InetSocketAddress server;
    private final Damages damages;
    private final Rewriting rewriting;
    private final ServerSocket door;
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private final Queue<DamagingProxy> further = new ConcurrentLinkedQueue<>();
    private final Queue<Conversation> conversations = new ConcurrentLinkedQueue<>();

    /**
     * The first bytes that a client has sent over one connection.
     *
     * @param port of the server
     * @param pieces as they arrived
     */
    public record Conversation(int port, List<byte[]> pieces) {}

    /** Changes bytes before they may be damaged. */
    @FunctionalInterface
    public interface Rewriting {
        Rewriting NONE = (_, _) -> {};

        /**
         * Changes bytes in place. A message may be in several pieces, if rarely.
         *
         * @param proxy that the bytes pass
         */
        void rewrite(DamagingProxy proxy, byte[] bytes) throws IOException;
    }

    /**
     * @param name first part of the names of its {@link #lanes}
     * @param port to listen on; 0 for a free one
     */
    public DamagingProxy(String name, int port, InetSocketAddress server, Damages damages, Rewriting rewriting)
            throws IOException {
        this.name = name;
        this.server = server;
        this.damages = damages;
        this.rewriting = rewriting;
        this.door = new ServerSocket(port, 1024, InetAddress.getLoopbackAddress());
        Thread.ofVirtual().name("damaging-proxy").start(this::accept);
    }

    public int port() {
        return door.getLocalPort();
    }

    /** The lanes of a proxy of that name: to its server, and back. */
    public static List<String> lanes(String name) {
        return List.of(name + " to the server", name + " from the server");
    }

    /** Opens a proxy for further connections to the same host, which closes with this one. Returns its port. */
    public int through(String laneName, int serverPort) throws IOException {
        DamagingProxy proxy = new DamagingProxy(
                laneName, 0, new InetSocketAddress(server.getAddress(), serverPort), damages, Rewriting.NONE);
        further.add(proxy);
        return proxy.port();
    }

    /** The bytes of the first connections that had any, those of further proxies included. */
    public List<Conversation> conversations() {
        List<Conversation> all = new ArrayList<>();
        conversations.forEach(each -> all.add(new Conversation(each.port, List.copyOf(each.pieces))));
        further.forEach(each -> all.addAll(each.conversations()));
        return all;
    }

    private void keep(Conversation conversation, byte[] piece) {
        if (conversation.pieces.isEmpty() && conversations.size() < KEPT_CONNECTIONS) {
            conversations.add(conversation);
        }
        if (conversation.pieces.stream().mapToInt(each -> each.length).sum() < KEPT_BYTES) {
            conversation.pieces.add(piece);
        }
    }

    private void accept() {
        while (!door.isClosed()) {
            try {
                Socket client = door.accept();
                sockets.add(client);
                Thread.ofVirtual().name("damaging-proxy").start(() -> relay(client));
            } catch (IOException _) {
                // Closed, or the client is gone already.
            }
        }
    }

    private void relay(Socket client) {
        Socket upstream = new Socket();
        sockets.add(upstream);
        try {
            client.setTcpNoDelay(true);
            upstream.setTcpNoDelay(true);
            upstream.connect(server, CONNECT_MILLIS);
            Thread.ofVirtual()
                    .name("damaging-proxy")
                    .start(() -> copy(upstream, client, lanes(name).getLast(), _ -> {}));
            Conversation conversation = new Conversation(server.getPort(), new CopyOnWriteArrayList<>());
            copy(client, upstream, lanes(name).getFirst(), piece -> keep(conversation, piece));
        } catch (IOException _) {
            end(upstream);
            end(client);
        }
    }

    private void copy(Socket from, Socket to, String lane, Consumer<byte[]> kept) {
        byte[] buffer = new byte[CHUNK];
        try {
            int read = from.getInputStream().read(buffer);
            boolean goesOn = true;
            while (read >= 0 && goesOn) {
                byte[] bytes = Arrays.copyOf(buffer, read);
                rewriting.rewrite(this, bytes);
                kept.accept(bytes);
                Damages.Passed passed = damages.pass(lane, bytes);
                to.getOutputStream().write(passed.bytes());
                goesOn = !passed.ends();
                read = goesOn ? from.getInputStream().read(buffer) : -1;
            }
        } catch (IOException _) {
            // One side has ended, and so does the other.
        }
        end(from);
        end(to);
    }

    private void end(Socket socket) {
        sockets.remove(socket);
        Closing.quietly(socket);
    }

    @Override
    public void close() throws IOException {
        door.close();
        sockets.forEach(this::end);
        for (DamagingProxy each : further) {
            each.close();
        }
    }
}
