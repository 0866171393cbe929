package baton.connectors.onesided;

import baton.messages.PeerAddress;
import baton.transfer.TransferAgent.Peer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.stream.Stream;

/** The peer instances that one rank knows, by the address of their side channel. The rank's thread owns it. */
public final class PeerDirectory {
    /** A failed handshake is remembered for so many times its timeout. */
    private static final int REMEMBERED_TIMEOUTS = 2;

    private final RankContext context;
    private final Map<PeerAddress, PeerEngine> engines = new LinkedHashMap<>();
    /** Replaced by a later handshake, or given up; closed when no load uses them and their handshakes are over. */
    private final List<PeerEngine> closing = new ArrayList<>();

    public PeerDirectory(RankContext context) {
        this.context = context;
    }

    /** Begins handshakes ahead of the first request. */
    public void connectAhead(List<PeerAddress> addresses, long now) {
        for (PeerAddress address : addresses) {
            engines.put(address, PeerEngine.connect(address, Optional.empty(), context, now));
        }
    }

    /** Takes in the results of handshakes. */
    public void poll(long now) {
        engines.values().forEach(engine -> engine.poll(now));
    }

    /** True while a handshake runs. */
    public boolean isPending() {
        return engines.values().stream().anyMatch(PeerEngine::isPending);
    }

    /** The owner of the blocks that a reference names; see {@link #engine}. */
    PeerEngine owner(RemoteBlocks reference, long since, long now) {
        Optional.ofNullable(engines.get(reference.address()))
                .filter(known -> known.started() - since < 0)
                .ifPresent(known -> known.disconnectIfRegisteredBefore(reference));
        PeerEngine owner = engine(
                reference.address(), reference.tensorParallelSize(), since, now, engine -> engine.isOwnerOf(reference));
        if (owner.started() - since >= 0) {
            owner.registered(reference);
        }
        return owner;
    }

    /** Why the last handshake with an address failed, if that was not before {@code since} and none has begun after it. */
    Optional<String> failureSince(PeerAddress address, long since) {
        return Optional.ofNullable(engines.get(address))
                .filter(engine -> engine.hasFailedSince(since))
                .flatMap(PeerEngine::failure);
    }

    /** The instance of that id at an address; see {@link #engine}. */
    PeerEngine instance(PeerNotification.Instance instance, long since, long now) {
        return engine(
                new PeerAddress(instance.host(), instance.port()),
                instance.tensorParallelSize(),
                since,
                now,
                engine -> engine.ranks().stream()
                        .allMatch(rank -> rank.info().engineId().equals(instance.engineId())));
    }

    /**
     * The instance at an address. Begins a new handshake if the known instance is gone, or is not the expected one, and its handshake
     * began before {@code since}.
     */
    private PeerEngine engine(
            PeerAddress address, int tensorParallelSize, long since, long now, Predicate<PeerEngine> isExpected) {
        PeerEngine known = engines.get(address);
        if (known != null
                && (known.isPending()
                        || known.started() - since >= 0
                        || (known.isConnected() && isExpected.test(known)))) {
            return known;
        }
        PeerEngine connecting = PeerEngine.connect(address, Optional.of(tensorParallelSize), context, now);
        connecting.poll(now);
        engines.put(address, connecting);
        if (known != null) {
            closing.add(known);
        }
        return connecting;
    }

    /** Closes connections to instances that were not used for long, or that failed. A failure is reported to the queued loads. */
    public void closeUnused(long now) {
        long ttl = context.settings().engineTtl().toNanos();
        long remembered = context.settings()
                .handshakeTimeout()
                .multipliedBy(REMEMBERED_TIMEOUTS)
                .toNanos();
        for (Iterator<PeerEngine> all = engines.values().iterator(); all.hasNext(); ) {
            PeerEngine engine = all.next();
            boolean idle = ttl > 0 && !engine.isPending() && now - engine.lastUsed() >= ttl;
            if (!engine.isUsed() && (idle || engine.hasFailedBefore(now - remembered))) {
                all.remove();
                closing.add(engine);
            }
        }
        closing.removeIf(engine -> {
            if (engine.isUsed() || engine.isAbandoned()) {
                return false;
            }
            engine.poll(now);
            if (engine.isPending() || (engine.hasConnected() && isHandshakeRunning())) {
                return false;
            }
            engine.close(peersInUse());
            return true;
        });
    }

    /** Connections of a running handshake are known only when it is over; they may be any that are open. */
    private boolean isHandshakeRunning() {
        return Stream.concat(engines.values().stream(), closing.stream()).anyMatch(PeerEngine::isPending);
    }

    private List<Peer> peersInUse() {
        return Stream.concat(engines.values().stream(), closing.stream().filter(PeerEngine::isUsed))
                .flatMap(engine -> engine.ranks().stream())
                .map(PeerEngine.RemoteRank::peer)
                .toList();
    }

    /** Closes all connections. */
    public void close() {
        engines.values().forEach(engine -> engine.close(List.of()));
        closing.forEach(engine -> engine.close(List.of()));
        engines.clear();
        closing.clear();
    }
}
