package baton.transfer.embedded;

import baton.kv.ConfigException;
import baton.messages.PeerAccess;
import baton.messages.PeerSecret;
import baton.transfer.Digests;
import baton.transfer.MappableMemory;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * No process writes into another's memory, and who fails, fails alone:
 *
 *   A READ is done by the reader: it copies from its mapping of the peer's memory, or asks for the bytes over TCP and receives them
 *   where they belong. A WRITE is a command to the peer, which copies from its mapping of our memory, or receives the bytes over TCP. So
 *   each process can end whatever changes its memory, at once and surely. Each transfer is a gate (Moving); everything that touches its
 *   memory does so piece by piece inside the gate and never waits there. A write may name a permit of the agent that is written to: it is
 *   then one of the things that the transfer touches, and its end is the transfer's, whatever the writer believes or still sends.
 *
 *   An agent asks over the connection that it opened and serves those that it accepted (Link). A connection's end is the peer's
 *   death, on one host as well, and ends every transfer over it. A silent peer is taken for dead too.
 *
 *   The notification of a transfer is sent by the agent that started it, once it is done. So it never arrives for one that failed.
 *
 *   Threads: two for each connection, one that accepts, one that looks at the clock, and those that copy. What they share is
 *   behind monitors that nobody holds while waiting for a peer.
 */

/**
 * The transfer agent that needs nothing but the JDK. Peers of the same host that can map each other's registered memory move bytes
 * with one copy, all others over TCP.
 *
 * <p>A region can be mapped by peers if it is {@link MappableMemory}. Who has an agent's metadata may read its registered memory, and
 * write to what needs no permit; connections are not encrypted.
 */
public final class EmbeddedAgent implements TransferAgent {
    private static final Logger LOG = LoggerFactory.getLogger(EmbeddedAgent.class);
    private static final Pattern FILE = Pattern.compile("/proc/(\\d+)/fd/(\\d{1,9})");
    private static final Duration HANDSHAKE = Duration.ofSeconds(5);
    private static final Duration TICK = Duration.ofMillis(20);

    private final Settings settings;
    private final String name;
    private final byte[] secret = new byte[Metadata.SECRET_BYTES];
    private final String system = Metadata.thisSystem();
    private final ServerSocketChannel server;
    private final Copier copier;
    private final CountDownLatch stopped = new CountDownLatch(1);
    private final Thread acceptor;
    private final Semaphore accepted;
    private final Inbox inbox;
    private volatile Runnable progress = () -> {};

    /** Guards what follows. */
    private final Object registry = new Object();

    private final NavigableMap<Long, Registered> regions = new TreeMap<>();
    private final Set<Moving> movings = new HashSet<>();
    private final Set<Connection> links = new HashSet<>();
    private final Permits permits = new Permits(this);
    private final AtomicLong mappedBytes = new AtomicLong();

    private long revision;
    private boolean closed;

    /** Who connects to a peer holds one of these, chosen by its name, so that two that connect to one peer get the same. */
    private final List<Object> connecting =
            Stream.generate(Object::new).limit(64).toList();

    private final Map<String, EmbeddedPeer> peers = new ConcurrentHashMap<>();

    /** How bytes may go. */
    public enum Transport {
        /** One copy where the peer's memory can be mapped, else TCP. */
        AUTO,
        TCP
    }

    /**
     * Bounds of what peers can ask for.
     *
     * @param peers connections
     * @param transfers under way with one peer
     * @param ranges of one transfer
     * @param messageBytes of one notification
     * @param waitingBytes of notifications not yet sent to a peer, and of those not yet taken
     */
    public record Limits(int peers, int transfers, int ranges, int messageBytes, long waitingBytes) {
        public static final Limits DEFAULT = new Limits(1024, 1024, 1 << 18, 1 << 20, 64L << 20);
        private static final int MOST_RANGES = 1 << 24;

        /** @throws ConfigException if a value makes no sense */
        public Limits {
            if (peers <= 0 || transfers <= 0 || messageBytes <= 0 || waitingBytes <= 0) {
                throw new ConfigException(
                        "limits",
                        "has peers=%d transfers=%d messageBytes=%d waitingBytes=%d, must be positive"
                                .formatted(peers, transfers, messageBytes, waitingBytes));
            }
            if (ranges <= 0 || ranges > MOST_RANGES) {
                throw new ConfigException("ranges", "is %d, must be from 1 to %d".formatted(ranges, MOST_RANGES));
            }
        }
    }

    /**
     * @param host to listen at, and under which peers find this agent
     * @param port to listen at; 0 for a free one
     * @param threads that copy
     * @param silence after which a peer is taken for dead
     * @param access which agents it talks to, besides their knowing what {@link EmbeddedAgent#metadata} tells; empty: all that know that
     */
    public record Settings(
            String host,
            int port,
            int threads,
            Transport transport,
            Duration silence,
            Limits limits,
            Optional<PeerAccess> access) {
        private static final int MOST_THREADS = 4;

        /** @throws ConfigException if a value makes no sense */
        public Settings {
            if (port < 0 || port > 0xffff) {
                throw new ConfigException("port", "is " + port + ", must be from 0 to 65535");
            }
            if (threads <= 0) {
                throw new ConfigException("threads", "is " + threads + ", must be positive");
            }
            if (silence.compareTo(Duration.ofSeconds(1)) < 0) {
                throw new ConfigException("silence", "is " + silence + ", must be at least a second");
            }
        }

        /** A free port, as many threads as copying gains from, shared memory where possible. */
        public static Settings at(String host) {
            int threads = Math.min(MOST_THREADS, Runtime.getRuntime().availableProcessors());
            return new Settings(
                    host, 0, threads, Transport.AUTO, Duration.ofSeconds(10), Limits.DEFAULT, Optional.empty());
        }

        public Settings withTransport(Transport value) {
            return new Settings(host, port, threads, value, silence, limits, access);
        }

        public Settings withThreads(int value) {
            return new Settings(host, port, value, transport, silence, limits, access);
        }

        public Settings withPort(int value) {
            return new Settings(host, value, threads, transport, silence, limits, access);
        }

        public Settings withSilence(Duration value) {
            return new Settings(host, port, threads, transport, value, limits, access);
        }

        public Settings withLimits(Limits value) {
            return new Settings(host, port, threads, transport, silence, value, access);
        }

        public Settings withAccess(PeerAccess value) {
            return new Settings(host, port, threads, transport, silence, limits, Optional.of(value));
        }
    }

    /**
     * An agent that listens.
     *
     * @param prefix of its name, for people to recognise
     * @throws TransferException if it cannot listen there
     */
    public static EmbeddedAgent open(String prefix, Settings settings) throws TransferException {
        ServerSocketChannel server;
        try {
            server = ServerSocketChannel.open();
            try {
                server.setOption(StandardSocketOptions.SO_REUSEADDR, true);
                InetSocketAddress address = new InetSocketAddress(settings.host, settings.port);
                if (address.isUnresolved()) {
                    throw new IOException("no such host");
                }
                server.bind(address);
            } catch (IOException | RuntimeException e) {
                server.close();
                throw e;
            }
        } catch (IOException e) {
            throw new TransferException(
                    "cannot listen at host=%s port=%d: %s".formatted(settings.host, settings.port, e.getMessage()), e);
        }
        return new EmbeddedAgent(prefix, settings, server);
    }

    private EmbeddedAgent(String prefix, Settings settings, ServerSocketChannel server) {
        this.settings = settings;
        this.server = server;
        SecureRandom random = new SecureRandom();
        random.nextBytes(secret);
        byte[] unique = new byte[8];
        random.nextBytes(unique);
        this.name = prefix + "-" + HexFormat.of().formatHex(unique);
        this.copier = new Copier(prefix, settings.threads, CopyKernel.ofThisMachine());
        this.accepted = new Semaphore(settings.limits.peers);
        this.inbox = new Inbox(settings.limits.waitingBytes);
        settings.access.ifPresent(PeerAccess::expectPeers);
        this.acceptor =
                Thread.ofPlatform().daemon().name("transfer-accept-" + prefix).start(this::accept);
        Thread.ofPlatform().daemon().name("transfer-clock-" + prefix).start(this::endLate);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Registration register(Region region) throws TransferException {
        MemorySegment memory = region.memory();
        if (!memory.isAccessibleBy(acceptor)) {
            throw new TransferException("memory at %d of %d bytes is confined to one thread, must be of a shared arena"
                    .formatted(memory.address(), memory.byteSize()));
        }
        Registered registered = new Registered(memory, exposed(region), region.needsPermit());
        synchronized (registry) {
            requireOpen();
            if (regions.size() == Metadata.MOST_REGIONS) {
                throw new TransferException("%d regions are registered, no more are allowed".formatted(regions.size()));
            }
            Map.Entry<Long, Registered> before = regions.floorEntry(memory.address() + memory.byteSize() - 1);
            if (before != null && before.getKey() + before.getValue().memory.byteSize() > memory.address()) {
                throw new TransferException("memory at %d of %d bytes is registered already, in part at least"
                        .formatted(memory.address(), memory.byteSize()));
            }
            regions.put(memory.address(), registered);
            revision++;
        }
        tellRegions();
        return registered;
    }

    private static Metadata.Exposed exposed(Region region) throws TransferException {
        long address = region.memory().address();
        long bytes = region.memory().byteSize();
        Optional<Path> file = region.file();
        Matcher matcher = FILE.matcher(file.map(Path::toString).orElse(""));
        if (!matcher.matches()
                || !matcher.group(1)
                        .equals(String.valueOf(ProcessHandle.current().pid()))) {
            return Metadata.Exposed.withoutFile(address, bytes);
        }
        try {
            long size = Files.size(file.orElseThrow());
            if (size != bytes) {
                throw new TransferException(
                        "file=%s has %d bytes, the region %d".formatted(file.orElseThrow(), size, bytes));
            }
            return new Metadata.Exposed(
                    address, bytes, Integer.parseInt(matcher.group(2)), MappableMemory.inode(file.orElseThrow()));
        } catch (IOException e) {
            throw new TransferException(
                    "file=%s of a region cannot be looked at: %s".formatted(file.orElseThrow(), e), e);
        }
    }

    @Override
    public byte[] metadata() {
        // Peers that know the instances' secret need not be told another.
        return described(peerSecret().isPresent() ? new byte[Metadata.SECRET_BYTES] : secret)
                .bytes();
    }

    Optional<PeerSecret> peerSecret() {
        return settings.access.flatMap(PeerAccess::secret);
    }

    private Metadata described(byte[] shown) {
        InetSocketAddress address = listening();
        synchronized (registry) {
            return new Metadata(
                    name,
                    system,
                    ProcessHandle.current().pid(),
                    settings.host,
                    address.getPort(),
                    shown,
                    revision,
                    exposed());
        }
    }

    /** Where peers connect to. */
    public InetSocketAddress listening() {
        return new InetSocketAddress(settings.host, server.socket().getLocalPort());
    }

    private List<Metadata.Exposed> exposed() {
        List<Metadata.Exposed> all = new ArrayList<>();
        regions.values().forEach(each -> all.add(each.exposed));
        return all;
    }

    /** Tells every peer what regions there are now. */
    private void tellRegions() {
        List<Connection> now;
        Frame.Regions frame;
        synchronized (registry) {
            now = List.copyOf(links);
            frame = new Frame.Regions(new Metadata.Update(revision, exposed()));
        }
        now.forEach(link -> link.send(frame));
    }

    @Override
    public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        Metadata peer = Metadata.parse(metadata);
        if (peer.name().equals(name)) {
            throw new TransferException("an agent cannot connect to itself, name=" + name);
        }
        if (settings.access.filter(rule -> !rule.mayConnect(peer.host())).isPresent()) {
            throw new TransferException("transfer agent %s is at host=%s, which is %s"
                    .formatted(peer.name(), peer.host(), settings.access.get().notAllowed()));
        }
        synchronized (connecting.get(Math.floorMod(peer.name().hashCode(), connecting.size()))) {
            EmbeddedPeer known = peers.get(peer.name());
            if (known != null && known.alive()) {
                known.link.updateMemory(new Metadata.Update(peer.revision(), peer.regions()));
                return known;
            }
            EmbeddedPeer made = new EmbeddedPeer(dial(peer, timeout));
            peers.put(peer.name(), made);
            if (!made.alive()) {
                peers.remove(peer.name(), made);
            }
            return made;
        }
    }

    private Connection dial(Metadata peer, Duration timeout) throws TransferException {
        long deadline = System.nanoTime() + timeout.toNanos();
        SocketChannel channel = null;
        try {
            channel = SocketChannel.open();
            InetSocketAddress address = new InetSocketAddress(peer.host(), peer.port());
            if (address.isUnresolved()) {
                throw new IOException("no such host");
            }
            channel.socket().connect(address, Math.clamp(timeout.toMillis(), 1, Integer.MAX_VALUE));
            Connection link = new Connection(this, channel, true);
            link.greet(
                    peer,
                    new Frame.Hello(
                            peerSecret().isPresent() ? PeerSecret.nonce() : peer.secret(),
                            peer.name(),
                            described(new byte[Metadata.SECRET_BYTES]).bytes()),
                    deadline);
            link.updateMemory(new Metadata.Update(peer.revision(), peer.regions()));
            enlist(link);
            link.start();
            // What was registered meanwhile is in nobody's message.
            link.send(regionsNow());
            return link;
        } catch (IOException | RuntimeException | TransferException e) {
            closeQuietly(channel);
            throw new TransferException(
                    "cannot connect to transfer agent %s at host=%s port=%d: %s"
                            .formatted(peer.name(), peer.host(), peer.port(), e.getMessage()),
                    e);
        }
    }

    private Frame.Regions regionsNow() {
        synchronized (registry) {
            return new Frame.Regions(new Metadata.Update(revision, exposed()));
        }
    }

    private static void closeQuietly(@Nullable SocketChannel channel) {
        if (channel != null) {
            try {
                channel.close();
            } catch (IOException _) {
                // Nothing was sent that has to arrive.
            }
        }
    }

    private void enlist(Connection link) throws IOException, TransferException {
        try {
            synchronized (registry) {
                requireOpen();
                links.add(link);
            }
        } catch (TransferException e) {
            link.abandon();
            throw e;
        }
    }

    private void accept() {
        while (server.isOpen()) {
            try {
                accepted.acquire();
                boolean handed = false;
                try {
                    SocketChannel channel = server.accept();
                    Thread.ofPlatform().daemon().name("transfer-read-" + name).start(() -> serve(channel));
                    handed = true;
                } finally {
                    if (!handed) {
                        accepted.release();
                    }
                }
            } catch (IOException | InterruptedException e) {
                if (server.isOpen()) {
                    LOG.warn("transfer agent {} could not accept a connection: {}", name, e.toString());
                    // What it lacks, file descriptors say, it may have again in a while.
                    LockSupport.parkNanos(TICK.toNanos());
                }
            }
        }
    }

    private void serve(SocketChannel channel) {
        try (channel) {
            requireAllowed(channel);
            Connection link = new Connection(this, channel, false);
            link.receiveGreeting(System.nanoTime() + HANDSHAKE.toNanos());
            enlist(link);
            link.send(regionsNow());
            link.serve();
        } catch (IOException | TransferException | RuntimeException e) {
            LOG.debug("transfer agent {} ended a connection: {}", name, e.toString());
        } finally {
            accepted.release();
        }
    }

    private void requireAllowed(SocketChannel channel) throws IOException, TransferException {
        if (channel.getRemoteAddress() instanceof InetSocketAddress from
                && settings.access
                        .filter(rule -> !rule.admits(from.getAddress()))
                        .isPresent()) {
            String why = "it is " + settings.access.get().notAllowed();
            refuse(from.toString(), why);
            throw new TransferException(why);
        }
    }

    /** Counts an agent that was turned away. */
    void refuse(String agent, String why) {
        settings.access.ifPresent(rule -> rule.refuse("transfer agent: " + agent, why));
    }

    /**
     * Where instances have a secret, the agent that says hello shows afterwards that it knows it.
     *
     * @throws TransferException if the peer may not come in
     */
    void admit(Frame.Hello hello) throws TransferException {
        if (peerSecret().isEmpty() && !MessageDigest.isEqual(hello.secret(), secret)) {
            throw new TransferException("the secret is not that of the agent here");
        }
        if (!hello.name().equals(name)) {
            throw new TransferException("the agent here is %s, not %s".formatted(name, hello.name()));
        }
    }

    @Override
    public Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        return start(operation, peer, 0, ranges, notification, timeout, Optional.empty());
    }

    @Override
    public Transfer start(
            Operation operation,
            Peer peer,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            Digests digests) {
        return start(operation, peer, 0, ranges, notification, timeout, Optional.of(digests));
    }

    @Override
    public Transfer write(Peer peer, long permit, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        return start(Operation.WRITE, peer, permit, ranges, notification, timeout, Optional.empty());
    }

    private Transfer start(
            Operation operation,
            Peer peer,
            long permit,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            Optional<Digests> digests) {
        if (!(peer instanceof EmbeddedPeer ours) || !ours.isOf(this)) {
            return new Refused(Cause.REFUSED, "peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (ranges.size() > settings.limits.ranges) {
            return new Refused(
                    Cause.REFUSED,
                    "%d ranges, at most %d are allowed".formatted(ranges.size(), settings.limits.ranges));
        }
        if (notification.isPresent() && notification.get().length > settings.limits.messageBytes) {
            return new Refused(
                    Cause.REFUSED,
                    "a notification of %d bytes, at most %d are allowed"
                            .formatted(notification.get().length, settings.limits.messageBytes));
        }
        if (digests.isPresent()) {
            for (Range range : ranges) {
                if (range.bytes() != digests.get().bytes()) {
                    return new Refused(
                            Cause.REFUSED,
                            "%s: must have the %d bytes that are to be digested"
                                    .formatted(range, digests.get().bytes()));
                }
            }
        }
        return ours.link.ask(operation, permit, ranges, notification.map(byte[]::clone), timeout, digests);
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        if (!(peer instanceof EmbeddedPeer ours) || !ours.isOf(this)) {
            throw new TransferException("peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (message.length > settings.limits.messageBytes) {
            throw new TransferException("a notification of %d bytes, at most %d are allowed"
                    .formatted(message.length, settings.limits.messageBytes));
        }
        ours.link.sendMessage(message.clone());
    }

    @Override
    public List<Notification> takeNotifications() {
        return inbox.takeAll();
    }

    @Override
    public boolean isGone(String peer) {
        synchronized (registry) {
            return links.stream()
                    .noneMatch(link -> link.isOpen() && link.peerName().equals(peer));
        }
    }

    @Override
    public long mappedPeerBytes() {
        return mappedBytes.get();
    }

    /** The part that maps a peer's memory counts it here. */
    AtomicLong mappedBytes() {
        return mappedBytes;
    }

    @Override
    public Optional<Permit> permit(List<MemorySegment> memory) {
        return Optional.of(permits.give(memory));
    }

    @Override
    public void close() {
        List<Connection> open;
        synchronized (registry) {
            if (closed) {
                return;
            }
            closed = true;
            open = List.copyOf(links);
        }
        try {
            server.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } finally {
            acceptor.interrupt();
            open.forEach(Connection::beginClosing);
            open.forEach(Connection::close);
            endAll(_ -> true, Cause.CANCELLED, "the agent was closed");
            copier.close();
            stopped.countDown();
        }
    }

    // What follows is for links.

    Settings settings() {
        return settings;
    }

    Copier copier() {
        return copier;
    }

    boolean sharesMemoryWith(Metadata peer) {
        return settings.transport == Transport.AUTO
                && MappableMemory.whyNone().isEmpty()
                && peer.system().equals(system);
    }

    Inbox inbox() {
        return inbox;
    }

    @Override
    public void onProgress(Runnable progress) {
        this.progress = progress;
    }

    /** Something that the agent's user waits for may have happened. */
    void tellProgress() {
        progress.run();
    }

    /** Bytes of a region, if all of them are in one. The registry's monitor is held. */
    Optional<MemorySegment> local(long address, long bytes, Set<Object> touched) {
        Map.Entry<Long, Registered> entry = regions.floorEntry(address);
        if (entry == null || !entry.getValue().exposed.holds(address, bytes)) {
            return Optional.empty();
        }
        touched.add(entry.getValue());
        return Optional.of(entry.getValue().memory.asSlice(address - entry.getKey(), bytes));
    }

    /** Of memory of a region. The registry's monitor is held. */
    boolean needsPermit(MemorySegment memory) {
        Map.Entry<Long, Registered> entry = regions.floorEntry(memory.address());
        return entry != null && entry.getValue().needsPermit;
    }

    /** The registry's monitor is held while they are asked. */
    Permits permits() {
        return permits;
    }

    /** Whether peers can map the memory at an address. */
    boolean mappable(Set<Object> touched) {
        return touched.stream().allMatch(each -> each instanceof Registered region && region.exposed.mappable());
    }

    /** What finds and adds movings does so under this monitor, so that none slips through a registration's end. */
    Object registry() {
        return registry;
    }

    /** Adds ranges on their way; the registry's monitor is held since their memory was found. */
    void add(Moving moving) {
        movings.add(moving);
    }

    void remove(Moving moving) {
        synchronized (registry) {
            movings.remove(moving);
        }
    }

    void ended(Connection link) {
        synchronized (registry) {
            links.remove(link);
        }
        peers.values().removeIf(each -> each.link == link);
    }

    boolean isClosed() {
        synchronized (registry) {
            return closed;
        }
    }

    /** Ends what is late, also if nobody looks at it. */
    private void endLate() {
        try {
            while (!stopped.await(TICK.toMillis(), TimeUnit.MILLISECONDS)) {
                List<Moving> all;
                synchronized (registry) {
                    all = List.copyOf(movings);
                }
                all.forEach(Moving::endIfLate);
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("nobody interrupts this thread", e);
        }
    }

    /** Ends what is under way, if it is of that kind, and returns when nothing of it touches memory any more. */
    void endAll(Predicate<Moving> which, Cause cause, String message) {
        List<Moving> ending = new ArrayList<>();
        synchronized (registry) {
            for (Moving moving : movings) {
                if (which.test(moving)) {
                    ending.add(moving);
                }
            }
        }
        ending.forEach(each -> each.fail(cause, message));
        ending.forEach(Moving::awaitOver);
    }

    private void requireOpen() throws TransferException {
        if (closed) {
            throw new TransferException("transfer agent " + name + " is closed");
        }
    }

    /** Registered memory of this process. */
    final class Registered implements Registration {
        private final MemorySegment memory;
        private final Metadata.Exposed exposed;
        private final boolean needsPermit;

        private Registered(MemorySegment memory, Metadata.Exposed exposed, boolean needsPermit) {
            this.memory = memory;
            this.exposed = exposed;
            this.needsPermit = needsPermit;
        }

        @Override
        public void close() {
            synchronized (registry) {
                if (!regions.remove(memory.address(), this)) {
                    return;
                }
                revision++;
            }
            endAll(moving -> moving.touches(this), Cause.REFUSED, "the memory's registration was closed");
            tellRegions();
        }
    }

    /** An agent that this one opened a connection to. */
    private static final class EmbeddedPeer implements Peer {
        private final Connection link;

        private EmbeddedPeer(Connection link) {
            this.link = link;
        }

        private boolean isOf(EmbeddedAgent agent) {
            return link.agent() == agent;
        }

        @Override
        public String name() {
            return link.peerName();
        }

        @Override
        public boolean alive() {
            return link.isOpen();
        }

        @Override
        public void close() {
            link.beginClosing();
            link.close();
        }

        @Override
        public String toString() {
            return link.toString();
        }
    }

    /** A transfer that was not even begun. */
    record Refused(Cause cause, String message) implements Transfer {
        @Override
        public State state() {
            return new State.Failed(cause, message);
        }

        @Override
        public void cancel() {
            // It is over.
        }
    }

    /** Messages that have arrived and were not taken yet. */
    static final class Inbox {
        /** A message costs more than its bytes. */
        private static final int OVERHEAD = 256;

        private final long most;
        private final Queue<Notification> messages = new ArrayDeque<>();
        private long bytes;

        private Inbox(long most) {
            this.most = most;
        }

        /** @return false if too much waits already */
        synchronized boolean add(Notification message) {
            long size = (long) message.message().length + OVERHEAD;
            if (bytes + size > most) {
                return false;
            }
            bytes += size;
            return messages.add(message);
        }

        private synchronized List<Notification> takeAll() {
            List<Notification> all = List.copyOf(messages);
            messages.clear();
            bytes = 0;
            return all;
        }
    }
}
