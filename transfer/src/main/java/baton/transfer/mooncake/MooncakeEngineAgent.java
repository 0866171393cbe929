package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.ListenAddress;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.transfer.Inbox;
import baton.transfer.Range;
import baton.transfer.RefusedTransfer;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Buffer;
import baton.transfer.mooncake.LocalBuffers.Held;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.json.JsonMapper;

/**
 * Mooncake's transfer engine by its library, for RDMA. Peers are named as those of {@link MooncakeAgent} are, which with
 * {@code protocol: tcp} this one exchanges bytes with too.
 *
 * <p>The library moves the bytes, serves peers and receives notifications. It has no function to look at a descriptor, to ask whether a
 * peer lives, or to cancel: the first two are asked of the peer's handshake daemon in Java, and what is cancelled or late ends when
 * the library is done with it. Its ports listen on all addresses and admit everyone.
 */
public final class MooncakeEngineAgent implements TransferAgent {
    private static final Logger LOG = LoggerFactory.getLogger(MooncakeEngineAgent.class);
    private static final Duration FIND = Duration.ofSeconds(5);
    private static final Duration POLL = Duration.ofNanos(20_000);
    private static final Duration IDLE = Duration.ofMillis(5);

    private final EngineSettings settings;
    private final Ticker ticker;
    private final JsonMapper json = JsonMapper.builder().build();
    private final LocalBuffers buffers = new LocalBuffers();
    private final SegmentDirectory directory;
    private final EngineHandle engine;
    private final String name;
    private final PeerAddress rpc;
    private final Inbox inbox = new Inbox(limits().waitingBytes());
    private final AtomicBoolean closed = new AtomicBoolean();
    private final Map<String, EnginePeer> peers = new ConcurrentHashMap<>();
    private final ReentrantLock connecting = new ReentrantLock();
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();

    /** Started, and not yet looked at by the thread. */
    @GuardedBy("lock")
    private final List<EngineTransfer> started = new ArrayList<>();

    /** Those that the library has, and those before them; of the thread. */
    private final Set<EngineTransfer> underWay = new HashSet<>();

    private volatile Runnable progress = () -> {};

    /**
     * An agent that listens.
     *
     * @throws TransferException if the engine does not start
     * @throws ConfigException if its ports, which are open to every host, are not allowed to be
     */
    public static MooncakeEngineAgent open(MooncakeLibrary.Found library, EngineSettings settings)
            throws TransferException {
        return open(library, settings, Ticker.system());
    }

    /** @param ticker the clock of timeouts */
    public static MooncakeEngineAgent open(MooncakeLibrary.Found library, EngineSettings settings, Ticker ticker)
            throws TransferException {
        ListenAddress.requireOfOneHost("host", settings.host());
        settings.access().ifPresent(access -> access.requireSafeEverywhere("protocol", settings.protocol()));
        return new MooncakeEngineAgent(library, settings, ticker);
    }

    private MooncakeEngineAgent(MooncakeLibrary.Found library, EngineSettings settings, Ticker ticker)
            throws TransferException {
        this.settings = settings;
        this.ticker = ticker;
        String metadata;
        String asked;
        switch (settings.metadata()) {
            case MetadataSource.Handshake _ -> {
                directory = new PeerDirectory(json, this::mayConnect, limits().handshakeBytes());
                metadata = MetadataSource.P2P;
                asked = settings.host();
            }
            case MetadataSource.Http http -> {
                directory = new ServerDirectory(http, json, limits().handshakeBytes(), ticker);
                metadata = http.address().toString();
                asked = http.segment().orElseGet(() -> settings.host() + "-" + UUID.randomUUID());
            }
        }
        this.engine = new EngineHandle(library.api(), metadata, asked, settings);
        String listens = engine.localName();
        this.name = metadata.equals(MetadataSource.P2P) ? listens : asked;
        Optional<PeerAddress> address = PeerAddress.find(listens);
        if (address.isEmpty()) {
            engine.close();
            throw new TransferException("Mooncake's engine listens at '%s', which is no host:port".formatted(listens));
        }
        this.rpc = address.get();
        Thread.ofPlatform().daemon().name("mooncake-engine-" + rpc.port()).start(this::run);
    }

    /** The segment's name. */
    @Override
    public String name() {
        return name;
    }

    /** Where the engine's handshake daemon listens. */
    public PeerAddress rpc() {
        return rpc;
    }

    Ticker ticker() {
        return ticker;
    }

    MooncakeSettings.Limits limits() {
        return MooncakeSettings.Limits.DEFAULT;
    }

    @Override
    public byte[] metadata() {
        return name.getBytes(StandardCharsets.UTF_8);
    }

    private boolean mayConnect(String host) {
        return settings.access().map(access -> access.mayConnect(host)).orElse(true);
    }

    @Override
    public Registration register(Region region) throws TransferException {
        // Mooncake's engine gets addresses; nothing here reads or writes them.
        MemorySegment memory = MemorySegment.ofAddress(region.address()).reinterpret(region.bytes());
        Buffer buffer = buffers.add(memory);
        int code = engine.register(memory, region.device());
        if (code != 0) {
            boolean unusedRemoved = buffers.remove(buffer);
            throw new TransferException("Mooncake's engine does not register %d bytes at %d: error %d"
                    .formatted(region.bytes(), region.address(), code));
        }
        return () -> {
            if (buffers.remove(buffer)) {
                int result = engine.unregister(memory);
                if (result != 0) {
                    LOG.warn("Mooncake's engine keeps {} registered: error {}", memory, result);
                }
            }
        };
    }

    @Override
    public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        String segment = SegmentName.of(metadata);
        if (segment.equals(name)) {
            throw new TransferException("an agent cannot connect to itself, name=" + name);
        }
        Deadline deadline = Deadline.after(ticker, timeout);
        try {
            if (!deadline.tryLock(connecting)) {
                throw new TransferException("no connection to %s after %s".formatted(segment, deadline));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted while connecting to " + segment, e);
        }
        try {
            SegmentDirectory.Located found = find(segment, deadline);
            int number = engine.open(segment);
            if (number < 0) {
                throw new TransferException("Mooncake's engine does not open segment %s: error %d; its log says why"
                        .formatted(segment, number));
            }
            EnginePeer known = peers.get(segment);
            if (known != null) {
                if (known.alive() && known.update(found)) {
                    return known;
                }
                known.end(segment + " is another engine, at the same address");
            }
            EnginePeer peer = new EnginePeer(this, segment, number, found);
            peers.put(segment, peer);
            if (closed.get()) {
                peer.end("the agent was closed");
                throw new TransferException("transfer agent " + name + " is closed");
            }
            return peer;
        } finally {
            connecting.unlock();
        }
    }

    private SegmentDirectory.Located find(String segment, Deadline deadline) throws TransferException {
        SegmentDirectory.Located found = directory.find(segment, deadline);
        if (!mayConnect(found.rpc().host())
                || !found.descriptor().dataHost().map(this::mayConnect).orElse(true)) {
            throw new TransferException("segment %s is at a host that is not an allowed peer".formatted(segment));
        }
        return found;
    }

    @Override
    public Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        if (!(peer instanceof EnginePeer known) || known.agent() != this) {
            return new RefusedTransfer(Cause.REFUSED, "peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (ranges.isEmpty() || ranges.size() > limits().ranges()) {
            return new RefusedTransfer(
                    Cause.REFUSED, "%d ranges, 1 to %d are allowed".formatted(ranges.size(), limits().ranges()));
        }
        Optional<String> refused = notification.flatMap(message -> NotificationText.refused(message, limits()));
        if (refused.isPresent()) {
            return new RefusedTransfer(Cause.REFUSED, refused.get());
        }
        Set<Buffer> held = new HashSet<>();
        EngineTransfer transfer = new EngineTransfer(
                known, new EngineTransfer.Asked(operation, ranges, notification.map(byte[]::clone), timeout), held);
        for (Range range : ranges) {
            Optional<Held> local = buffers.hold(range.local(), range.bytes(), transfer);
            if (local.isEmpty()) {
                held.forEach(each -> each.release(transfer));
                return new RefusedTransfer(Cause.REFUSED, range + " is not within one registered region here");
            }
            held.add(local.get().buffer());
        }
        lock.lock();
        try {
            if (!closed.get()) {
                started.add(transfer);
                changed.signalAll();
                return transfer;
            }
        } finally {
            lock.unlock();
        }
        transfer.fail(Cause.CANCELLED, "the agent was closed");
        return transfer;
    }

    /** Submits transfers, looks at those that the library has, and takes notifications, until the agent is closed and nothing is left. */
    private void run() {
        while (!closed.get() || !underWay.isEmpty()) {
            List<EngineTransfer> fresh = next();
            for (EngineTransfer transfer : fresh) {
                submit(transfer);
            }
            underWay.removeIf(this::isOver);
            receive();
        }
    }

    private List<EngineTransfer> next() {
        lock.lock();
        try {
            if (started.isEmpty()) {
                boolean unusedTimeLeft =
                        Deadline.after(ticker, underWay.isEmpty() ? IDLE : POLL).await(changed);
            }
            List<EngineTransfer> fresh = List.copyOf(started);
            started.clear();
            return fresh;
        } catch (InterruptedException e) {
            throw new IllegalStateException("this thread is never interrupted", e);
        } finally {
            lock.unlock();
        }
    }

    private void submit(EngineTransfer transfer) {
        transfer.endIfLate();
        EnginePeer peer = transfer.peer();
        if (!peer.alive()) {
            transfer.fail(Cause.PEER_GONE, peer.why());
        } else if (transfer.outside(peer.descriptor()).isPresent()) {
            explain(transfer);
        } else if (transfer.enter()) {
            if (transfer.submit(engine)) {
                underWay.add(transfer);
            } else {
                transfer.exit();
                explain(transfer);
            }
        }
    }

    private boolean isOver(EngineTransfer transfer) {
        transfer.endIfLate();
        if (!transfer.peer().alive()) {
            transfer.fail(Cause.PEER_GONE, transfer.peer().why());
        }
        if (!transfer.poll(engine)) {
            return false;
        }
        if (!transfer.hasFailed()) {
            transfer.succeed();
        } else if (!transfer.isEnded()) {
            explain(transfer);
        }
        transfer.exit();
        return true;
    }

    /** Fails a transfer that the library has failed or would fail: what is wrong, the peer tells. */
    private void explain(EngineTransfer transfer) {
        Thread.ofVirtual().name("mooncake-explain").start(() -> {
            EnginePeer peer = transfer.peer();
            try {
                SegmentDirectory.Located found = find(peer.name(), Deadline.after(ticker, FIND));
                if (!peer.update(found)) {
                    peer.end(peer.name() + " is another engine, at the same address");
                }
                Optional<Range> outside = transfer.outside(found.descriptor());
                if (outside.isPresent()) {
                    transfer.fail(
                            Cause.REFUSED,
                            "%s is not within one registered buffer of %s".formatted(outside.get(), peer.name()));
                }
            } catch (TransferException e) {
                peer.end(String.valueOf(e.getMessage()));
            }
            transfer.fail(
                    peer.alive() ? Cause.TRANSPORT : Cause.PEER_GONE,
                    peer.alive() ? "Mooncake's engine has failed it; its log says why" : peer.why());
        });
    }

    private void receive() {
        List<Notification> received = engine.takeNotifications();
        for (Notification each : received) {
            if (!inbox.add(each)) {
                LOG.warn("a notification of {} is lost: too many wait to be taken", each.from());
            }
        }
        if (!received.isEmpty()) {
            tellProgress();
        }
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        if (!(peer instanceof EnginePeer known) || known.agent() != this) {
            throw new TransferException("peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        Optional<String> refused = NotificationText.refused(message, limits());
        if (refused.isPresent()) {
            throw new TransferException(refused.get());
        }
        known.send(message.clone());
    }

    /** @return false if the peer has refused it */
    boolean sendNotification(PeerAddress to, byte[] message, Deadline deadline) throws IOException {
        return NotificationText.send(json, to, name, message, limits(), deadline);
    }

    @Override
    public List<Notification> takeNotifications() {
        return inbox.takeAll();
    }

    @Override
    public void onProgress(Runnable listener) {
        progress = listener;
    }

    void tellProgress() {
        progress.run();
    }

    void ended(EnginePeer peer) {
        peers.remove(peer.name(), peer);
    }

    @Override
    public void close() {
        lock.lock();
        try {
            if (closed.getAndSet(true)) {
                return;
            }
            started.forEach(each -> each.fail(Cause.CANCELLED, "the agent was closed"));
            started.clear();
        } finally {
            lock.unlock();
        }
        // The library may still move bytes: they end before it and the memory do.
        buffers.close();
        List.copyOf(peers.values()).forEach(each -> each.end("the agent was closed"));
        engine.close();
        directory.close();
    }
}
