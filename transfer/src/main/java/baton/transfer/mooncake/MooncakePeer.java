package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.messages.Closing;
import baton.messages.PeerAddress;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An engine that a {@link MooncakeAgent} is connected to: transfers to it, the threads that move them, each over a lane of its own, and
 * a connection that is watched. That one carries nothing: when it ends, and no new one can be made, the engine is gone.
 */
final class MooncakePeer extends SegmentPeer {
    private static final Logger LOG = LoggerFactory.getLogger(MooncakePeer.class);

    /** A lane that is not used for so long is closed. */
    private static final Duration IDLE = Duration.ofSeconds(30);

    /** The limit of a check whether a peer lives. */
    private static final Duration CHECK = Duration.ofSeconds(2);

    /** Between connections to a peer that closes those that carry nothing. */
    private static final Duration AGAIN = Duration.ofSeconds(1);

    private final MooncakeAgent agent;
    private final InetSocketAddress data;

    private final Set<SegmentTransfer> transfers = ConcurrentHashMap.newKeySet();

    /** The transfers with batches that may wait for a lane. */
    @GuardedBy("this")
    private final Deque<MooncakeTransfer> queue = new ArrayDeque<>();

    @GuardedBy("this")
    private int workers;

    @GuardedBy("this")
    private int idle;

    private volatile SocketChannel watched;

    private MooncakePeer(
            MooncakeAgent agent,
            SegmentDirectory.Located found,
            String name,
            InetSocketAddress data,
            SocketChannel watched) {
        super(agent, name, found);
        this.agent = agent;
        this.data = data;
        this.watched = watched;
    }

    /**
     * Connects to an engine's data port.
     *
     * @throws TransferException if it may not or cannot be connected to
     */
    static MooncakePeer open(MooncakeAgent agent, String name, SegmentDirectory.Located found, Deadline deadline)
            throws TransferException {
        if (!found.descriptor().protocol().equals(SegmentDescriptor.TCP)) {
            throw new TransferException("protocol=%s of segment %s must be tcp"
                    .formatted(PeerAddress.shown(found.descriptor().protocol()), name));
        }
        InetSocketAddress data = dataAddress(found);
        if (!agent.mayConnect(data.getHostString())) {
            throw new TransferException("segment %s has its data port at host=%s, which is not an allowed peer"
                    .formatted(name, PeerAddress.shown(data.getHostString())));
        }
        try {
            MooncakePeer peer = new MooncakePeer(agent, found, name, data, dial(data, deadline.remaining()));
            Thread.ofVirtual().name("mooncake-watch-" + name).start(peer::watch);
            return peer;
        } catch (IOException e) {
            throw new TransferException(
                    "the data port of segment %s, %s:%d, cannot be connected to: %s"
                            .formatted(name, data.getHostString(), data.getPort(), e.getMessage()),
                    e);
        }
    }

    /** Where transfers go. */
    static InetSocketAddress dataAddress(SegmentDirectory.Located found) {
        String host = found.descriptor().dataHost().orElse(found.rpc().host());
        return InetSocketAddress.createUnresolved(host, found.descriptor().dataPort());
    }

    private static SocketChannel dial(InetSocketAddress to, Duration timeout) throws IOException {
        SocketChannel channel = SocketChannel.open();
        try {
            connect(channel, to, timeout);
            return channel;
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    /** Looks the name up anew each time. */
    private static void connect(SocketChannel channel, InetSocketAddress to, Duration timeout) throws IOException {
        InetSocketAddress address = new InetSocketAddress(to.getHostString(), to.getPort());
        if (address.isUnresolved()) {
            throw new IOException("no such host");
        }
        channel.socket().connect(address, Math.toIntExact(Math.clamp(timeout.toMillis(), 1, Integer.MAX_VALUE)));
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
    }

    private void watch() {
        ByteBuffer nothing = ByteBuffer.allocate(1);
        while (alive()) {
            long begun = agent.ticker().nanos();
            try (SocketChannel channel = watched) {
                // Waits for the peer's end, or this one's: each closes the channel.
                int unusedCount = channel.read(nothing.clear());
            } catch (IOException e) {
                LOG.debug("the watched connection to {} ended: {}", name(), e.toString());
            }
            if (!alive()) {
                return;
            }
            if (agent.ticker().nanos() - begun < AGAIN.toNanos()) {
                check();
                LockSupport.parkNanos(AGAIN.toNanos());
            }
            try {
                watched = dial(data, CHECK);
                if (!alive()) {
                    Closing.quietly(watched);
                }
            } catch (IOException e) {
                end(name() + " has closed its data port: " + e.getMessage());
            }
        }
    }

    /** Asks whether the peer is there; if not, it is gone. */
    private void check() {
        try {
            dial(data, CHECK).close();
        } catch (IOException e) {
            end(name() + " has closed its data port: " + e.getMessage());
        }
    }

    @Override
    boolean isSame(SegmentDirectory.Located found) {
        return dataAddress(found).equals(data);
    }

    @Override
    void ended(String why) {
        synchronized (this) {
            notifyAll();
        }
        Closing.quietly(watched);
        failAll(Cause.PEER_GONE, why);
    }

    /** Begins to move a transfer's batches, or fails it. */
    void begin(MooncakeTransfer transfer) {
        int most = agent.limits().transfers();
        Optional<Cause> refused = Optional.empty();
        synchronized (this) {
            if (!alive()) {
                refused = Optional.of(Cause.PEER_GONE);
            } else if (transfers.size() >= most) {
                refused = Optional.of(Cause.REFUSED);
            } else {
                transfers.add(transfer);
                enqueue(transfer);
            }
        }
        refused.ifPresent(cause -> transfer.fail(
                cause,
                cause == Cause.PEER_GONE ? why() : "%d transfers are under way, no more are allowed".formatted(most)));
        if (transfer.isEnded()) {
            // It ended before it was known here.
            forget(transfer);
        }
    }

    @GuardedBy("this")
    private void enqueue(MooncakeTransfer transfer) {
        queue.add(transfer);
        notifyAll();
        int wanted = Math.min(agent.settings().lanes(), transfer.batches());
        for (int missing = wanted - idle;
                missing > 0 && workers < agent.settings().lanes();
                missing--) {
            workers++;
            Thread.ofPlatform().daemon().name("mooncake-lane-" + name()).start(this::work);
        }
    }

    @Override
    void forget(SegmentTransfer transfer) {
        transfers.remove(transfer);
        super.forget(transfer);
    }

    void endLate() {
        transfers.forEach(SegmentTransfer::endIfLate);
    }

    void failAll(Cause cause, String why) {
        transfers.forEach(each -> each.fail(cause, why));
    }

    /** A transfer that has batches to move; empty when there was none for long, or the peer is gone. */
    private synchronized Optional<MooncakeTransfer> next() {
        Deadline deadline = Deadline.after(agent.ticker(), IDLE);
        while (alive()) {
            while (!queue.isEmpty()
                    && (queue.getFirst().isEnded() || queue.getFirst().batches() == 0)) {
                queue.removeFirst();
            }
            if (!queue.isEmpty()) {
                return Optional.of(queue.getFirst());
            }
            idle++;
            try {
                if (!deadline.awaitNotify(this) && queue.isEmpty()) {
                    break;
                }
            } catch (InterruptedException e) {
                break;
            } finally {
                idle--;
            }
        }
        workers--;
        return Optional.empty();
    }

    /** Moves batches over a lane, which lasts until it fails or is idle for long. */
    private void work() {
        try (Arena arena = Arena.ofConfined()) {
            Optional<Lane> lane = Optional.empty();
            for (Optional<MooncakeTransfer> next = next(); next.isPresent(); next = next()) {
                lane = move(arena, lane, next.get());
            }
            lane.ifPresent(Lane::close);
        }
    }

    /** @return the lane for the next transfer, if it is still good */
    private Optional<Lane> move(Arena arena, Optional<Lane> kept, MooncakeTransfer transfer) {
        Lane lane;
        try {
            lane = kept.isPresent() ? kept.get() : new Lane(arena, descriptor().version());
        } catch (IOException e) {
            transfer.fail(Cause.TRANSPORT, "no connection to %s: %s".formatted(name(), e.getMessage()));
            return Optional.empty();
        }
        boolean good = false;
        try {
            if (transfer.attach(lane)) {
                if (kept.isEmpty()) {
                    lane.connect(
                            new InetSocketAddress(data.getHostString(), data.getPort()),
                            transfer.deadline().remaining());
                }
                good = transfer.moveOver(lane);
            }
        } catch (IOException e) {
            failed(transfer, e, kept.isPresent() && !lane.answered());
        } finally {
            transfer.detach(lane);
            if (!good) {
                lane.close();
            }
        }
        return good ? Optional.of(lane) : Optional.empty();
    }

    /** @param again whether the lane was an old one, which the peer may have closed while it was idle */
    private void failed(MooncakeTransfer transfer, IOException e, boolean again) {
        if (transfer.isEnded()) {
            return;
        }
        if (e instanceof Lane.RejectedException) {
            transfer.fail(Cause.REFUSED, e.getMessage() + " (" + name() + ")");
            return;
        }
        if (again) {
            synchronized (this) {
                enqueue(transfer);
            }
            return;
        }
        check();
        if (alive()) {
            Optional<String> outside = outside(transfer);
            transfer.fail(
                    outside.isPresent() ? Cause.REFUSED : Cause.TRANSPORT,
                    outside.orElseGet(() -> "a connection to %s failed: %s".formatted(name(), e.getMessage())));
        }
    }

    /** Whether the peer has closed the connection because a range is not registered there, any more. */
    private Optional<String> outside(MooncakeTransfer transfer) {
        try {
            SegmentDirectory.Located found = agent.find(name(), Deadline.after(agent.ticker(), CHECK));
            if (update(found)) {
                return transfer.outside(found.descriptor())
                        .map(range -> "%s is not within one registered buffer of %s".formatted(range, name()));
            }
        } catch (TransferException e) {
            LOG.debug("{} does not answer with its buffers: {}", name(), e.toString());
        }
        return Optional.empty();
    }
}
