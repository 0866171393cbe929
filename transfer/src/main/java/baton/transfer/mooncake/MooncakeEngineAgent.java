package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.KvMemory;
import baton.kv.ListenAddress;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Buffer;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Mooncake's transfer engine by its library, for RDMA. Peers are named as those of {@link MooncakeAgent} are, which with
 * {@code protocol: tcp} this one exchanges bytes with too.
 *
 * <p>The library moves the bytes, serves peers and receives notifications. It has no function to look at a descriptor, to ask whether a
 * peer lives, or to cancel: the first two are asked of the peer's handshake daemon in Java, and a cancelled or late transfer ends when the
 * library has finished it. Its ports listen on all addresses and admit every peer.
 */
public final class MooncakeEngineAgent extends SegmentAgent<EnginePeer, EngineTransfer> {
    private static final Logger LOG = LoggerFactory.getLogger(MooncakeEngineAgent.class);
    private static final Duration FIND = Duration.ofSeconds(5);
    private static final Duration POLL = Duration.ofNanos(20_000);
    private static final Duration IDLE = Duration.ofMillis(5);

    private final EngineHandle engine;
    private final String name;
    private final PeerAddress rpc;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();

    /** Started, and not yet looked at by the thread. */
    @GuardedBy("lock")
    private final List<EngineTransfer> started = new ArrayList<>();

    /** The transfers in the library and those queued before it. The thread owns them. */
    private final Set<EngineTransfer> underWay = new HashSet<>();

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
        super(
                MooncakeAgentSettings.Limits.DEFAULT,
                settings.access(),
                settings.metadata(),
                ticker,
                EnginePeer.class,
                1);
        String metadata;
        String asked;
        switch (settings.metadata()) {
            case MetadataSource.Handshake _ -> {
                metadata = MetadataSource.P2P;
                asked = settings.host();
            }
            case MetadataSource.Http http -> {
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

    @Override
    public PeerAddress rpc() {
        return rpc;
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
    public boolean reaches(KvMemory.Device memory) {
        return memory.device().kind().equals("cuda");
    }

    @Override
    void requireAllowed(String segment, SegmentDirectory.Located found) throws TransferException {
        if (!mayConnect(found.rpc().host())
                || !found.descriptor().dataHost().map(this::mayConnect).orElse(true)) {
            throw new TransferException("segment %s is at a host that is not an allowed peer".formatted(segment));
        }
    }

    @Override
    int number(String segment) throws TransferException {
        int number = engine.open(segment);
        if (number < 0) {
            throw new TransferException("Mooncake's engine does not open segment %s: error %d; its log says why"
                    .formatted(segment, number));
        }
        return number;
    }

    @Override
    EnginePeer open(String segment, int number, SegmentDirectory.Located found, Deadline deadline) {
        return new EnginePeer(this, segment, number, found);
    }

    @Override
    EngineTransfer prepare(EnginePeer peer, SegmentTransfer.Asked asked) {
        return new EngineTransfer(peer, asked, ticker());
    }

    @Override
    void begin(EnginePeer peer, EngineTransfer transfer) {
        lock.lock();
        try {
            if (!closed.get()) {
                started.add(transfer);
                changed.signalAll();
                return;
            }
        } finally {
            lock.unlock();
        }
        transfer.fail(Cause.CANCELLED, "the agent was closed");
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
                boolean unusedTimeLeft = Deadline.after(ticker(), underWay.isEmpty() ? IDLE : POLL)
                        .await(changed);
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

    /** Fails a transfer that the library has failed or would fail, with the cause that the peer reports. */
    private void explain(EngineTransfer transfer) {
        Thread.ofVirtual().name("mooncake-explain").start(() -> {
            EnginePeer peer = transfer.peer();
            try {
                SegmentDirectory.Located found = find(peer.name(), Deadline.after(ticker(), FIND));
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
