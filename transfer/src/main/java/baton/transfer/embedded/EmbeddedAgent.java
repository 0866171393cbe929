package baton.transfer.embedded;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.GeneratedBuilder;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.memory.CopyKernel;
import baton.memory.MappableMemory;
import baton.memory.ParallelCopier;
import baton.memory.RunDigests;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import baton.messages.PeerSecret;
import baton.transfer.Inbox;
import baton.transfer.Range;
import baton.transfer.RefusedTransfer;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * No process writes into another's memory, and a process that fails, fails alone:
 *
 *   A READ is done by the reader: it copies from its mapping of the peer's memory, or asks for the bytes over TCP and receives them
 *   in place. A WRITE is a command to the peer, which copies from its mapping of the writer's memory, or receives the bytes over TCP. So
 *   each process can stop whatever changes its memory, at once and surely. Each transfer is a gate (InFlightTransfer); everything that
 *   touches its memory does so piece by piece inside the gate and never waits there. A write may name a grant of the agent that is
 *   written to (TransferAgent.Permit): closing the grant aborts the writes under way that name it and rejects later ones, whatever the
 *   writer still sends.
 *
 *   An agent starts transfers over the connection that it opened (Initiator) and serves those that it accepted (Responder). The end of
 *   a connection counts as the peer's death, on one host as well, and ends every transfer over it. A silent peer counts as dead too.
 *
 *   The notification of a transfer is sent by the agent that started it, once it is done. So it never arrives for one that failed.
 *
 *   Threads: two for each connection, one that accepts, one that ends late transfers, and those that copy. No monitor is held while
 *   waiting for a peer, but for that of step 1 below.
 *
 *   Lock order. A thread that holds a monitor takes only monitors of later steps, and at most one of a step:
 *     1. one of EmbeddedAgent.connecting, while a connection to a peer of that hash is opened, for the caller's timeout
 *     2. MemoryRegistry; EmbeddedAgent
 *     3. Connection; PeerMemory
 *     4. Gate (of a transfer), Inbox
 */

/**
 * The transfer agent that needs nothing but the JDK. Peers of the same host that can map each other's registered memory move bytes
 * with one copy, other peers over TCP. Memory of a device reaches peers of the same device only, within it.
 *
 * <p>A region can be mapped by peers if it is {@link MappableMemory}. A process that has an agent's metadata may read its registered
 * memory, and write to memory without permits. Where instances have a secret, handshakes are sealed with it, and whole connections where
 * {@code kv_encryption} requires it.
 */
public final class EmbeddedAgent implements TransferAgent {
    private static final Duration BETWEEN_COMPLAINTS = Duration.ofSeconds(10);
    private static final Logger LOG = LoggerFactory.getLogger(EmbeddedAgent.class);
    private static final Pattern FILE = Pattern.compile("/proc/(\\d+)/fd/(\\d{1,9})");
    private static final Duration HANDSHAKE = Duration.ofSeconds(5);
    private static final Duration TICK = Duration.ofMillis(20);

    private final Settings settings;
    private final String name;
    private final byte[] secret = new byte[Metadata.SECRET_BYTES];
    private final String system = Metadata.thisSystem();
    private final ServerSocketChannel server;
    private final ParallelCopier copier;
    private final DeviceCopies deviceCopies;
    private final Ticker ticker;
    /** Limits the log lines about connections, as a peer may break off many. */
    private final Bursts complaints;

    private final MemoryRegistry registry = new MemoryRegistry(this::sendRegions);
    private final CountDownLatch stopped = new CountDownLatch(1);
    private final Thread acceptor;
    /** One permit for each connection that may still be accepted. */
    private final Semaphore accepted;

    private final Inbox inbox;
    private final AtomicLong mappedBytes = new AtomicLong();
    private volatile Runnable progress = () -> {};

    @GuardedBy("this")
    private final Set<Connection> connections = new HashSet<>();

    @GuardedBy("this")
    private boolean closed;

    /** A thread that connects to a peer holds one of these, chosen by the peer's name, so that two threads get the same connection. */
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
     * Bounds of peers' requests.
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
     * @param access hosts and secrets of the agents that it connects to and admits; empty: all that have its {@linkplain
     *     EmbeddedAgent#metadata metadata}
     */
    @GeneratedBuilder
    public record Settings(
            String host,
            int port,
            int threads,
            Transport transport,
            Duration silence,
            Limits limits,
            Optional<PeerAccess> access)
            implements EmbeddedAgentSettingsBuilder.With {
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
    }

    /**
     * An agent that listens.
     *
     * @param prefix of its name, for people to recognise
     * @throws TransferException if it cannot listen there
     * @throws IllegalArgumentException if {@value CopyKernel#PROPERTY} has a value that it cannot have
     */
    public static EmbeddedAgent open(String prefix, Settings settings) throws TransferException {
        return open(prefix, settings, Ticker.system());
    }

    /** @param ticker the clock of timeouts */
    public static EmbeddedAgent open(String prefix, Settings settings, Ticker ticker) throws TransferException {
        Optional<CopyKernel> kernel = CopyKernel.ofThisMachine();
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
        return new EmbeddedAgent(prefix, settings, ticker, server, kernel);
    }

    private EmbeddedAgent(
            String prefix, Settings settings, Ticker ticker, ServerSocketChannel server, Optional<CopyKernel> kernel) {
        this.settings = settings;
        this.ticker = ticker;
        this.complaints = new Bursts(1, BETWEEN_COMPLAINTS, ticker);
        this.server = server;
        SecureRandom random = new SecureRandom();
        random.nextBytes(secret);
        byte[] unique = new byte[8];
        random.nextBytes(unique);
        this.name = prefix + "-" + HexFormat.of().formatHex(unique);
        this.copier = new ParallelCopier("transfer-copier-" + prefix, settings.threads, kernel);
        this.deviceCopies = new DeviceCopies("transfer-device-" + prefix);
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
        if (region.where() instanceof KvMemory.Host host && !host.host().isAccessibleBy(acceptor)) {
            throw new TransferException("memory at %d of %d bytes is confined to one thread, must be of a shared arena"
                    .formatted(region.address(), region.bytes()));
        }
        requireOpen();
        Registration registered = registry.register(region, exposed(region));
        sendRegions();
        return registered;
    }

    /** Memory of a device that peers open: only those of the same device reach it. */
    @Override
    public boolean reaches(KvMemory.Device memory) {
        return memory.copier().peers().isPresent();
    }

    private static Metadata.Exposed exposed(Region region) throws TransferException {
        long address = region.address();
        long bytes = region.bytes();
        if (region.where() instanceof KvMemory.Device device
                && device.copier().peers().isPresent()) {
            return Metadata.Exposed.ofDevice(
                    address, bytes, device.copier().peers().get());
        }
        Optional<Path> file = region.requireHost("the embedded agent").file();
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
        // Peers that know the instances' secret need no other.
        return described(peerSecret().isPresent() ? new byte[Metadata.SECRET_BYTES] : secret)
                .bytes();
    }

    Optional<PeerSecret> peerSecret() {
        return settings.access.flatMap(PeerAccess::secret);
    }

    private Metadata described(byte[] shown) {
        Metadata.Update regions = registry.exposed();
        return new Metadata(
                name,
                system,
                ProcessHandle.current().pid(),
                settings.host,
                listening().getPort(),
                shown,
                regions.revision(),
                regions.regions());
    }

    /** Where peers connect to. */
    public InetSocketAddress listening() {
        return new InetSocketAddress(settings.host, server.socket().getLocalPort());
    }

    /** Sends every peer the regions as they are now. */
    private void sendRegions() {
        Frame.Regions frame = new Frame.Regions(registry.exposed());
        openConnections().forEach(connection -> connection.send(frame));
    }

    private synchronized List<Connection> openConnections() {
        return List.copyOf(connections);
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
                known.connection().updateMemory(new Metadata.Update(peer.revision(), peer.regions()));
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
        Deadline deadline = Deadline.after(ticker, timeout);
        SocketChannel channel = null;
        try {
            channel = SocketChannel.open();
            InetSocketAddress address = new InetSocketAddress(peer.host(), peer.port());
            if (address.isUnresolved()) {
                throw new IOException("no such host");
            }
            channel.socket().connect(address, deadline.remainingMillis());
            Connection connection = new Connection(this, channel, true);
            new Handshake(connection, deadline)
                    .connect(
                            peer,
                            new Frame.Hello(
                                    peer.secret(),
                                    peer.name(),
                                    described(new byte[Metadata.SECRET_BYTES]).bytes()));
            connection.updateMemory(new Metadata.Update(peer.revision(), peer.regions()));
            enlist(connection);
            connection.start();
            // Regions registered since the hello was made are in no message yet.
            connection.send(new Frame.Regions(registry.exposed()));
            return connection;
        } catch (IOException | RuntimeException | TransferException e) {
            Closing.quietly(channel);
            throw new TransferException(
                    "cannot connect to transfer agent %s at host=%s port=%d: %s"
                            .formatted(peer.name(), peer.host(), peer.port(), e.getMessage()),
                    e);
        }
    }

    private void enlist(Connection connection) throws IOException, TransferException {
        try {
            synchronized (this) {
                requireOpen();
                connections.add(connection);
            }
        } catch (TransferException e) {
            connection.abandon();
            throw e;
        }
    }

    private void accept() {
        while (server.isOpen()) {
            try {
                // Both waits are for peers that may never come, and are ended by close.
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
                    // A resource that ran out, such as file descriptors, may become free in a while.
                    LockSupport.parkNanos(TICK.toNanos());
                }
            }
        }
    }

    private void serve(SocketChannel channel) {
        try (channel) {
            requireAllowed(channel);
            Connection connection = new Connection(this, channel, false);
            new Handshake(connection, Deadline.after(ticker, HANDSHAKE)).accept();
            enlist(connection);
            connection.send(new Frame.Regions(registry.exposed()));
            connection.run();
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
     * Where instances have a secret, the hello was sealed with it.
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
            RunDigests digests) {
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
            Optional<RunDigests> digests) {
        if (!(peer instanceof EmbeddedPeer known) || !known.isOf(this)) {
            return new RefusedTransfer(Cause.REFUSED, "peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (ranges.size() > settings.limits.ranges) {
            return new RefusedTransfer(
                    Cause.REFUSED,
                    "%d ranges, at most %d are allowed".formatted(ranges.size(), settings.limits.ranges));
        }
        if (notification.isPresent() && notification.get().length > settings.limits.messageBytes) {
            return new RefusedTransfer(
                    Cause.REFUSED,
                    "a notification of %d bytes, at most %d are allowed"
                            .formatted(notification.get().length, settings.limits.messageBytes));
        }
        if (digests.isPresent()) {
            for (Range range : ranges) {
                if (range.bytes() != digests.get().bytes()) {
                    return new RefusedTransfer(
                            Cause.REFUSED,
                            "%s: must have the %d bytes that are to be digested"
                                    .formatted(range, digests.get().bytes()));
                }
            }
        }
        return known.connection()
                .initiator()
                .start(new OutboundTransfer.Request(
                        operation, permit, ranges, notification.map(byte[]::clone), timeout, digests));
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        if (!(peer instanceof EmbeddedPeer known) || !known.isOf(this)) {
            throw new TransferException("peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (message.length > settings.limits.messageBytes) {
            throw new TransferException("a notification of %d bytes, at most %d are allowed"
                    .formatted(message.length, settings.limits.messageBytes));
        }
        known.connection().sendMessage(message.clone());
    }

    @Override
    public List<Notification> takeNotifications() {
        return inbox.takeAll();
    }

    @Override
    public boolean isGone(String peer) {
        return openConnections().stream()
                .noneMatch(connection ->
                        connection.isOpen() && connection.peerName().equals(peer));
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
    public Optional<Permit> permit(List<Span> memory) {
        return Optional.of(registry.grant(memory));
    }

    @Override
    public void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        List<Connection> open = openConnections();
        try {
            server.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } finally {
            acceptor.interrupt();
            open.forEach(Connection::beginClosing);
            open.forEach(Connection::close);
            registry.endAll(_ -> true, Cause.CANCELLED, "the agent was closed");
            // Its threads are done soon, as every gate has ended.
            copier.close();
            deviceCopies.close();
            stopped.countDown();
        }
    }

    Settings settings() {
        return settings;
    }

    ParallelCopier copier() {
        return copier;
    }

    DeviceCopies deviceCopies() {
        return deviceCopies;
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

    /** Something may have happened that the user of the agent waits for. */
    void tellProgress() {
        progress.run();
    }

    Bursts complaints() {
        return complaints;
    }

    Ticker ticker() {
        return ticker;
    }

    MemoryRegistry registry() {
        return registry;
    }

    /** A connection has ended. */
    void ended(Connection connection) {
        synchronized (this) {
            connections.remove(connection);
        }
        peers.values().removeIf(each -> each.connection() == connection);
    }

    /** Ends late transfers, also those that are not asked for their state. */
    private void endLate() {
        try {
            while (!stopped.await(TICK.toMillis(), TimeUnit.MILLISECONDS)) {
                registry.endLate();
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("this thread is never interrupted", e);
        }
    }

    private synchronized void requireOpen() throws TransferException {
        if (closed) {
            throw new TransferException("transfer agent " + name + " is closed");
        }
    }
}
