package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.Inbox;
import baton.transfer.Range;
import baton.transfer.RefusedTransfer;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Held;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Stream;
import tools.jackson.databind.json.JsonMapper;

/**
 * An agent that speaks of segments, as Mooncake's engines do. Its metadata are its segment's name as text.
 *
 * @param <P> its peers
 * @param <T> its transfers
 */
abstract class SegmentAgent<P extends SegmentPeer, T extends SegmentTransfer> implements TransferAgent {
    private final MooncakeAgentSettings.Limits limits;
    private final Optional<PeerAccess> access;
    private final Ticker ticker;
    private final Class<P> peerType;
    final JsonMapper json = JsonMapper.builder().build();
    final LocalBuffers buffers = new LocalBuffers();
    final SegmentDirectory directory;
    final Inbox inbox;
    final AtomicBoolean closed = new AtomicBoolean();
    final Map<String, P> peers = new ConcurrentHashMap<>();

    /** A thread that connects holds one of these, chosen by the peer's name, so that two threads get the same peer. */
    private final List<ReentrantLock> connecting;

    private volatile Runnable progress = () -> {};

    /** @param connections that are made at once */
    SegmentAgent(
            MooncakeAgentSettings.Limits limits,
            Optional<PeerAccess> access,
            MetadataSource metadata,
            Ticker ticker,
            Class<P> peerType,
            int connections) {
        this.limits = limits;
        this.access = access;
        this.ticker = ticker;
        this.peerType = peerType;
        this.inbox = new Inbox(limits.waitingBytes());
        this.connecting = Stream.generate(ReentrantLock::new).limit(connections).toList();
        this.directory = switch (metadata) {
            case MetadataSource.Handshake _ -> new HandshakeDirectory(json, this::mayConnect, limits.handshakeBytes());
            case MetadataSource.Http http -> new ServerDirectory(http, json, limits.handshakeBytes(), ticker);
        };
    }

    /** The segment's name. */
    @Override
    public abstract String name();

    /** Where the handshake daemon listens; {@code get_rpc_port()} of Mooncake's engine is its port. */
    public abstract PeerAddress rpc();

    /** @throws TransferException if the segment is at a host that is not an allowed peer */
    abstract void requireAllowed(String segment, SegmentDirectory.Located found) throws TransferException;

    /** Looks up a peer's segment in its directory. Returns the library's number of it; 0 if there is no library. */
    abstract int number(String segment) throws TransferException;

    abstract P open(String segment, int number, SegmentDirectory.Located found, Deadline deadline)
            throws TransferException;

    abstract T prepare(P peer, SegmentTransfer.Asked asked);

    /** Begins a transfer. Its ranges are held. */
    abstract void begin(P peer, T transfer);

    final Ticker ticker() {
        return ticker;
    }

    final MooncakeAgentSettings.Limits limits() {
        return limits;
    }

    @Override
    public final byte[] metadata() {
        return name().getBytes(StandardCharsets.UTF_8);
    }

    final boolean mayConnect(String host) {
        return access.map(each -> each.mayConnect(host)).orElse(true);
    }

    final SegmentDirectory.Located find(String segment, Deadline deadline) throws TransferException {
        SegmentDirectory.Located found = directory.find(segment, deadline);
        requireAllowed(segment, found);
        return found;
    }

    /**
     * Connects to the engine of that segment.
     *
     * @param metadata the segment's name: {@code host:port}, or a name at the metadata server
     */
    @Override
    public final Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        String segment = SegmentName.of(metadata);
        if (segment.equals(name())) {
            throw new TransferException("an agent cannot connect to itself, name=" + segment);
        }
        Deadline deadline = Deadline.after(ticker, timeout);
        ReentrantLock one = connecting.get(Math.floorMod(segment.hashCode(), connecting.size()));
        try {
            if (!deadline.tryLock(one)) {
                throw new TransferException("no connection to %s after %s".formatted(segment, deadline));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted while connecting to " + segment, e);
        }
        try {
            SegmentDirectory.Located found = find(segment, deadline);
            int number = number(segment);
            P known = peers.get(segment);
            if (known != null) {
                if (known.alive() && known.update(found)) {
                    return known;
                }
                known.end(segment + " is another engine, at the same address");
            }
            P peer = open(segment, number, found, deadline);
            peers.put(segment, peer);
            if (closed.get() || !peer.alive()) {
                peers.remove(segment, peer);
            }
            if (closed.get()) {
                peer.end("the agent was closed");
                throw new TransferException("transfer agent " + name() + " is closed");
            }
            return peer;
        } finally {
            one.unlock();
        }
    }

    private Optional<P> own(Peer peer) {
        return Optional.of(peer)
                .filter(peerType::isInstance)
                .map(peerType::cast)
                .filter(each -> each.isOf(this));
    }

    private String foreign(Peer peer) {
        return "peer=%s is not a peer of agent %s".formatted(peer.name(), name());
    }

    @Override
    public final Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        Optional<P> known = own(peer);
        if (known.isEmpty()) {
            return new RefusedTransfer(Cause.REFUSED, foreign(peer));
        }
        if (ranges.isEmpty() || ranges.size() > limits.ranges()) {
            return new RefusedTransfer(
                    Cause.REFUSED, "%d ranges, 1 to %d are allowed".formatted(ranges.size(), limits.ranges()));
        }
        Optional<String> refused = notification.flatMap(message -> NotificationText.refused(message, limits));
        if (refused.isPresent()) {
            return new RefusedTransfer(Cause.REFUSED, refused.get());
        }
        T transfer = prepare(known.get(), new SegmentTransfer.Asked(operation, ranges, notification, timeout));
        for (Range range : ranges) {
            Optional<Held> local = buffers.hold(range.local(), range.bytes(), transfer);
            if (local.isEmpty()) {
                transfer.release();
                return new RefusedTransfer(Cause.REFUSED, range + " is not within one registered region here");
            }
            transfer.add(range, local.get());
        }
        begin(known.get(), transfer);
        return transfer;
    }

    @Override
    public final void notify(Peer peer, byte[] message) throws TransferException {
        Optional<P> known = own(peer);
        if (known.isEmpty()) {
            throw new TransferException(foreign(peer));
        }
        Optional<String> refused = NotificationText.refused(message, limits);
        if (refused.isPresent()) {
            throw new TransferException(refused.get());
        }
        known.get().send(message.clone());
    }

    /** @return false if the peer has refused it */
    final boolean sendNotification(PeerAddress to, byte[] message, Deadline deadline) throws IOException {
        return NotificationText.send(json, to, name(), message, limits, deadline);
    }

    @Override
    public final List<Notification> takeNotifications() {
        return inbox.takeAll();
    }

    @Override
    public final void onProgress(Runnable listener) {
        progress = listener;
    }

    final void tellProgress() {
        progress.run();
    }

    final void ended(SegmentPeer peer) {
        peers.remove(peer.name(), peer);
    }
}
