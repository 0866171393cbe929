package baton.pipe.c10d;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import com.google.errorprone.annotations.concurrent.GuardedBy;
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
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Wires over Gloo, as {@code torch.distributed} makes them: both ranks connect to a TCPStore, which rank 0 serves, and then to
 * each other, once each has found the other's key in it. Keys begin with a token: for an offer the random token of its id.
 *
 * <p>Gloo trusts its peer and the network: the store listens on every address of its machine, the peer chooses the address to
 * connect to, and a malicious peer can crash this process. Use it only on networks without other hosts. Gloo does not always
 * notice a peer's death, so a second connection ({@link LivenessSocket}) does.
 */
public final class GlooTransport implements WireTransport {
    private static final Logger LOG = LoggerFactory.getLogger(GlooTransport.class);
    private static final String MEETING = "baton-wire";
    private static final long BETWEEN_LOOKS = Duration.ofMillis(5).toNanos();
    /** The limit for the connection of the ranks once both are there. */
    private static final Duration CONNECTING = Duration.ofSeconds(30);

    /** Longer timeouts could overflow when Gloo adds them to its clock. */
    private static final Duration LONGEST = Duration.ofDays(3650);

    /** Wires in the making at a time. */
    private static final int MOST_AT_ONCE = 64;

    private final Set<Meeting> offered = ConcurrentHashMap.newKeySet();
    private final NativeCalls calls = new NativeCalls("gloo-connect", MOST_AT_ONCE);
    private final Ticker ticker;
    private volatile boolean closed;

    private GlooTransport(Ticker ticker) {
        this.ticker = ticker;
    }

    /**
     * Loads LibTorch, unless it is loaded already.
     *
     * @throws PipeException if it cannot be loaded here
     */
    public static GlooTransport load(Ticker ticker) throws PipeException {
        // As everywhere in Baton, native memory is freed by scopes and not by JavaCPP's garbage collection.
        setUnlessSet("org.bytedeco.javacpp.nopointergc", "true");
        setUnlessSet("org.bytedeco.javacpp.maxbytes", "0");
        setUnlessSet("org.bytedeco.javacpp.maxphysicalbytes", "0");
        try {
            boolean isFirst = !Loader.getLoadedLibraries().containsKey("jnitorch");
            Loader.load(torch.class);
            if (isFirst) {
                LOG.info("LibTorch is loaded: wires go through its Gloo");
            }
            // Not every LibTorch has Gloo; a first call fails if it is missing.
            try (Milliseconds timeout = milliseconds(CONNECTING);
                    ProcessGroupGloo.Options _ = ProcessGroupGloo.Options.create(timeout)) {
                return new GlooTransport(ticker);
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
        Deadline deadline = Deadline.after(ticker, timeout);
        InetAddress address = WireId.resolve(host).getFirst();
        String own = rank == 0 ? address.getHostAddress() : facing(new InetSocketAddress(address, port));
        return waiting(() -> {
            try (Meeting meeting = Meeting.at(address.getHostAddress(), port, rank, ticker, deadline)) {
                return meeting.connect(MEETING, own, deadline);
            }
        });
    }

    /** Ignores interrupts: the call ends by its deadline. */
    private <T> T waiting(NativeCalls.Call<T> call) throws PipeException {
        return calls.make(call, () -> {});
    }

    @Override
    public Offer offer(String host) throws PipeException {
        InetAddress address = local(host);
        Meeting meeting =
                waiting(() -> Meeting.at(address.getHostAddress(), 0, 0, ticker, Deadline.after(ticker, CONNECTING)));
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
        Deadline deadline = Deadline.after(ticker, timeout);
        WireId offer = WireId.decode(id, WireId.Kind.GLOO);
        InetSocketAddress at = offer.at(host);
        return waiting(() -> {
            try (Meeting meeting = Meeting.at(at.getAddress().getHostAddress(), at.getPort(), 1, ticker, deadline)) {
                return meeting.connect(prefix(offer), facing(at), deadline);
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

    /** The local address from which another one is reached. */
    private static String facing(InetSocketAddress other) throws PipeException {
        try (DatagramSocket socket = new DatagramSocket()) {
            socket.connect(other);
            return socket.getLocalAddress().getHostAddress();
        } catch (SocketException e) {
            throw new PipeException("no way to " + other, e);
        }
    }

    /** Gloo's error message without the position in its sources and the stack. */
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
            Deadline deadline = Deadline.after(ticker, timeout);
            return waiting(() -> meeting.connect(prefix(id), own, deadline));
        }

        @Override
        public void close() {
            offered.remove(meeting);
            meeting.close();
        }
    }

    /** A rank's access to the common store. Its store is freed when it is closed and no call is inside. */
    private static final class Meeting implements AutoCloseable {
        private final TCPStore store;
        private final int rank;
        private final Ticker ticker;

        @GuardedBy("this")
        private boolean closed;

        @GuardedBy("this")
        private boolean inside;
        /** The wire owns the store and frees it after the group, which uses it without counting references. */
        @GuardedBy("this")
        private boolean given;

        private Meeting(TCPStore store, int rank, Ticker ticker) {
            this.store = store;
            this.rank = rank;
            this.ticker = ticker;
        }

        /** Serves the store as rank 0, or waits for rank 0's. */
        static Meeting at(String host, int port, int rank, Ticker ticker, Deadline deadline) throws PipeException {
            try (TCPStoreOptions options = new TCPStoreOptions();
                    Milliseconds timeout = milliseconds(deadline.remaining())) {
                options.port((short) port)
                        .isServer(rank == 0)
                        .waitWorkers(false)
                        .timeout(timeout);
                return new Meeting(new TCPStore(host, options), rank, ticker);
            } catch (RuntimeException e) {
                throw new PipeException(
                        "no store at %s:%d within %s: %s".formatted(host, port, deadline, reason(e)), e);
            }
        }

        int port() {
            return Short.toUnsignedInt(store.getPort());
        }

        /** Waits for the other rank before it connects, because connecting cannot be cancelled. */
        Wire connect(String prefix, String own, Deadline deadline) throws PipeException {
            enter();
            LivenessSocket liveness = null;
            try {
                liveness = rank == 0 ? awaitRank1(prefix, own, deadline) : connectToRank0(prefix, deadline);
                GlooWire wire = new GlooWire(group(own, deadline), store, 1 - rank, liveness, ticker);
                liveness = null;
                synchronized (this) {
                    given = true;
                }
                return wire;
            } catch (RuntimeException e) {
                throw new PipeException("Gloo does not connect: " + reason(e), e);
            } finally {
                if (liveness != null) {
                    liveness.close();
                }
                exit();
            }
        }

        private LivenessSocket awaitRank1(String prefix, String own, Deadline deadline) throws PipeException {
            try (LivenessSocket.Post post = new LivenessSocket.Post(own)) {
                say(prefix + " tether", post.where());
                say(prefix + " rank 0", new byte[] {1});
                await(prefix + " rank 1", deadline);
                return post.accept(deadline);
            }
        }

        private LivenessSocket connectToRank0(String prefix, Deadline deadline) throws PipeException {
            say(prefix + " rank 1", new byte[] {1});
            await(prefix + " rank 0", deadline);
            try (ByteVector where = store.get(prefix + " tether")) {
                return LivenessSocket.to(where.get(), deadline);
            }
        }

        /** Objects are freed one by one: a scope would free some twice, because setters return new pointers to the same object. */
        private ProcessGroupGloo group(String own, Deadline deadline) {
            Duration connecting = deadline.remaining(CONNECTING);
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

        private void await(String key, Deadline deadline) throws PipeException {
            while (!there(key)) {
                if (isClosed()) {
                    throw new PipeException("withdrawn while waiting for rank " + (1 - rank));
                }
                if (deadline.isOver() || Thread.currentThread().isInterrupted()) {
                    throw new PipeException("rank %d has not come within %s".formatted(1 - rank, deadline));
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
