package baton.pipe.c10d;

import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketException;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.bytedeco.javacpp.Loader;
import org.bytedeco.javacpp.chrono.Milliseconds;
import org.bytedeco.pytorch.ByteVector;
import org.bytedeco.pytorch.GlooDeviceVector;
import org.bytedeco.pytorch.ProcessGroupGloo;
import org.bytedeco.pytorch.StringVector;
import org.bytedeco.pytorch.TCPStore;
import org.bytedeco.pytorch.TCPStoreOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.gloo.Device;

/**
 * Wires over Gloo, as {@code torch.distributed} makes them: both ranks meet at a TCPStore, which rank 0 serves, and connect to each
 * other there, once each has found the other's key, which begins with a token: the secret of an offer's id.
 *
 * <p>Gloo trusts its peer and the network: the store is open on every address of its machine, the peer says to which address to
 * connect, and one that speaks Gloo's protocol with ill intent can end this process. It is for networks where only instances are.
 * That a peer has died it does not always notice, so a second connection beside it ({@link LivenessSocket}) does.
 */
public final class GlooTransport implements WireTransport {
    private static final String MEETING = "baton-wire";
    private static final long BETWEEN_LOOKS = Duration.ofMillis(5).toNanos();
    /** What the ranks, both there, have to connect. */
    private static final Duration CONNECTING = Duration.ofSeconds(30);

    private static final Duration LONGEST = Duration.ofDays(3650);

    /** Wires in the making at a time. */
    private static final int MOST_AT_ONCE = 64;

    private final Set<Meeting> offered = ConcurrentHashMap.newKeySet();
    private final NativeCalls calls = new NativeCalls("gloo-connect", MOST_AT_ONCE);
    private volatile boolean closed;

    private GlooTransport() {}

    /**
     * Loads LibTorch, unless the process has done so.
     *
     * @throws PipeException if it cannot be loaded here
     */
    public static GlooTransport load() throws PipeException {
        // As wherever LibTorch is used here: memory is freed by scope, and nothing looks for garbage instead.
        setUnlessSet("org.bytedeco.javacpp.nopointergc", "true");
        setUnlessSet("org.bytedeco.javacpp.maxbytes", "0");
        setUnlessSet("org.bytedeco.javacpp.maxphysicalbytes", "0");
        try {
            Loader.load(torch.class);
            // Not every LibTorch comes with Gloo, which shows when it is first called.
            try (Milliseconds timeout = milliseconds(CONNECTING);
                    ProcessGroupGloo.Options _ = ProcessGroupGloo.Options.create(timeout)) {
                return new GlooTransport();
            }
        } catch (LinkageError e) {
            throw new PipeException(
                    "LibTorch's Gloo cannot be loaded: it needs Linux on x86_64 with glibc 2.35, its jar for linux-x86_64 on the class"
                            + " path, and room for 450 MB in ~/.javacpp/cache or -Dorg.bytedeco.javacpp.cachedir: "
                            + e.getMessage(),
                    e);
        }
    }

    private static void setUnlessSet(String property, String value) {
        if (System.getProperty(property) == null) {
            System.setProperty(property, value);
        }
    }

    @Override
    public String name() {
        return "gloo";
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        if (rank != 0 && rank != 1) {
            throw new IllegalArgumentException("rank=" + rank + " must be 0 or 1");
        }
        Wait wait = new Wait(timeout);
        InetAddress address = WireId.resolve(host).getFirst();
        String own = rank == 0 ? address.getHostAddress() : facing(new InetSocketAddress(address, port));
        return waiting(() -> {
            try (Meeting meeting = Meeting.at(address.getHostAddress(), port, rank, wait)) {
                return meeting.connect(MEETING, own, wait);
            }
        });
    }

    /** Interrupts do not end it, its deadline does. */
    private <T> T waiting(NativeCalls.Call<T> call) throws PipeException {
        return calls.make(call, () -> {});
    }

    @Override
    public Offer offer(String host) throws PipeException {
        InetAddress address = local(host);
        Meeting meeting = waiting(() -> Meeting.at(address.getHostAddress(), 0, 0, new Wait(CONNECTING)));
        WireId id = WireId.fresh(WireId.Kind.GLOO, new InetSocketAddress(address, meeting.port()));
        Offered offer = new Offered(meeting, id, address.getHostAddress());
        offered.add(meeting);
        if (closed) {
            offer.close();
            throw new PipeException("the transport is closed");
        }
        return offer;
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        Wait wait = new Wait(timeout);
        WireId offer = WireId.decode(id, WireId.Kind.GLOO);
        InetSocketAddress at = offer.at(host);
        return waiting(() -> {
            try (Meeting meeting = Meeting.at(at.getAddress().getHostAddress(), at.getPort(), 1, wait)) {
                return meeting.connect(prefix(offer), facing(at), wait);
            }
        });
    }

    @Override
    public void close() {
        closed = true;
        offered.forEach(Meeting::close);
        calls.close();
    }

    private static String prefix(WireId id) {
        return HexFormat.of().formatHex(id.token());
    }

    private static InetAddress local(String host) throws PipeException {
        try {
            InetAddress address = InetAddress.getByName(host);
            if (address.isAnyLocalAddress()) {
                throw new PipeException("Gloo needs one address of this machine, host=" + host + " stands for all");
            }
            return address;
        } catch (UnknownHostException e) {
            throw new PipeException("host '" + host + "' has no address", e);
        }
    }

    /** This machine's address on the way to another. */
    private static String facing(InetSocketAddress other) throws PipeException {
        try (DatagramSocket socket = new DatagramSocket()) {
            socket.connect(other);
            return socket.getLocalAddress().getHostAddress();
        } catch (SocketException e) {
            throw new PipeException("no way to " + other, e);
        }
    }

    /** What Gloo says is wrong, without where in its sources and the stack. */
    static String reason(RuntimeException e) {
        String message = String.valueOf(e.getMessage()).lines().findFirst().orElse("");
        return message.startsWith("[")
                ? message.substring(message.indexOf(']') + 1).strip()
                : message;
    }

    static Duration bounded(Duration timeout) {
        return timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout;
    }

    static Milliseconds milliseconds(Duration timeout) {
        // Zero is forever.
        return new Milliseconds(Math.max(1, bounded(timeout).toMillis()));
    }

    /** Until when. */
    private static final class Wait {
        private final Duration timeout;
        private final long end;

        Wait(Duration timeout) {
            this.timeout = bounded(timeout);
            this.end = System.nanoTime() + this.timeout.toNanos();
        }

        Duration left() {
            return Duration.ofNanos(Math.max(0, end - System.nanoTime()));
        }
    }

    private final class Offered implements Offer {
        private final Meeting meeting;
        private final WireId id;
        private final String own;

        Offered(Meeting meeting, WireId id, String own) {
            this.meeting = meeting;
            this.id = id;
            this.own = own;
        }

        @Override
        public byte[] id() {
            return id.encode();
        }

        @Override
        public Wire accept(Duration timeout) throws PipeException {
            Wait wait = new Wait(timeout);
            return waiting(() -> meeting.connect(prefix(id), own, wait));
        }

        @Override
        public void close() {
            offered.remove(meeting);
            meeting.close();
        }
    }

    /** A rank's access to the store where both meet. It goes when it is closed and nobody is inside. */
    private static final class Meeting implements AutoCloseable {
        private final TCPStore store;
        private final int rank;
        private boolean closed;
        private boolean inside;
        /** The store is the wire's, which frees it after the group: nothing native counts that the group uses it. */
        private boolean given;

        private Meeting(TCPStore store, int rank) {
            this.store = store;
            this.rank = rank;
        }

        /** Serves the store, or waits for who does. */
        static Meeting at(String host, int port, int rank, Wait wait) throws PipeException {
            try (TCPStoreOptions options = new TCPStoreOptions();
                    Milliseconds timeout = milliseconds(wait.left())) {
                options.port((short) port)
                        .isServer(rank == 0)
                        .waitWorkers(false)
                        .timeout(timeout);
                return new Meeting(new TCPStore(host, options), rank);
            } catch (RuntimeException e) {
                throw new PipeException(
                        "no store at %s:%d within %d ms: %s".formatted(host, port, wait.timeout.toMillis(), reason(e)),
                        e);
            }
        }

        int port() {
            return Short.toUnsignedInt(store.getPort());
        }

        /** Waits for the other rank before it connects, which is nothing that can be cancelled. */
        Wire connect(String prefix, String own, Wait wait) throws PipeException {
            enter();
            LivenessSocket tether = null;
            try {
                tether = rank == 0 ? awaited(prefix, own, wait) : come(prefix, wait);
                GlooWire wire = new GlooWire(group(own, wait), store, 1 - rank, tether);
                tether = null;
                given = true;
                return wire;
            } catch (RuntimeException e) {
                throw new PipeException("Gloo does not connect: " + reason(e), e);
            } finally {
                if (tether != null) {
                    tether.close();
                }
                exit();
            }
        }

        private LivenessSocket awaited(String prefix, String own, Wait wait) throws PipeException {
            try (LivenessSocket.Post post = new LivenessSocket.Post(own)) {
                say(prefix + " tether", post.where());
                say(prefix + " rank 0", new byte[] {1});
                await(prefix + " rank 1", wait);
                return post.accept(wait.left());
            }
        }

        private LivenessSocket come(String prefix, Wait wait) throws PipeException {
            say(prefix + " rank 1", new byte[] {1});
            await(prefix + " rank 0", wait);
            try (ByteVector where = store.get(prefix + " tether")) {
                return LivenessSocket.to(where.get(), wait.left());
            }
        }

        /** Freed one by one: in a scope, what setters return would be freed as well, which is the same once more. */
        private ProcessGroupGloo group(String own, Wait wait) {
            Duration connecting = wait.left().compareTo(CONNECTING) > 0 ? CONNECTING : wait.left();
            try (Milliseconds timeout = milliseconds(connecting);
                    ProcessGroupGloo.Options options = ProcessGroupGloo.Options.create(timeout);
                    Device device = ProcessGroupGloo.createDeviceForHostname(own);
                    GlooDeviceVector devices = new GlooDeviceVector(device)) {
                options.devices(devices);
                return new ProcessGroupGloo(store, rank, 2, options);
            }
        }

        private void say(String key, byte[] bytes) {
            try (ByteVector value = new ByteVector(bytes)) {
                store.set(key, value);
            }
        }

        private void await(String key, Wait wait) throws PipeException {
            while (!there(key)) {
                if (isClosed()) {
                    throw new PipeException("withdrawn while waiting for rank " + (1 - rank));
                }
                if (wait.left().isZero() || Thread.currentThread().isInterrupted()) {
                    throw new PipeException(
                            "rank %d has not come within %d ms".formatted(1 - rank, wait.timeout.toMillis()));
                }
                LockSupport.parkNanos(BETWEEN_LOOKS);
            }
        }

        private boolean there(String key) {
            try (StringVector keys = new StringVector(key)) {
                return store.check(keys);
            }
        }

        private synchronized boolean isClosed() {
            return closed;
        }

        private synchronized void enter() throws PipeException {
            if (closed || inside || given) {
                throw new PipeException(closed ? "withdrawn" : "rank " + (1 - rank) + " is waited for, or has come");
            }
            inside = true;
        }

        private synchronized void exit() {
            inside = false;
            if (closed && !given) {
                store.close();
            }
        }

        @Override
        public synchronized void close() {
            if (!closed && !inside && !given) {
                store.close();
            }
            closed = true;
        }
    }
}
