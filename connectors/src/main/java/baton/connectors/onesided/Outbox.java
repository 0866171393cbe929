package baton.connectors.onesided;

import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Heartbeat;
import baton.connectors.onesided.PeerNotification.PushOver;
import baton.transfer.TransferException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Notifications to the owners of blocks, sent as soon as they are connected. The rank's thread owns it. */
public final class Outbox {
    /** Further ones are dropped: leases expire without them. */
    private static final int MAX_WAITING = 10_000;

    private final RankContext context;
    private final PeerDirectory peers;
    private final List<Waiting> waiting = new ArrayList<>();

    private record Waiting(RemoteBlocks about, boolean heartbeat, long since, long deadline) {}

    public Outbox(RankContext context, PeerDirectory peers) {
        this.context = context;
        this.peers = peers;
    }

    public boolean isEmpty() {
        return waiting.isEmpty();
    }

    /** The blocks are still wanted. */
    public void heartbeat(RemoteBlocks blocks, long now) {
        add(blocks, true, now);
    }

    /** The blocks are not needed any more. */
    public void completion(RemoteBlocks blocks, long now) {
        add(blocks, false, now);
    }

    private void add(RemoteBlocks about, boolean heartbeat, long now) {
        if (waiting.size() < MAX_WAITING) {
            waiting.add(new Waiting(
                    about,
                    heartbeat,
                    now,
                    now + context.settings().handshakeTimeout().multipliedBy(2).toNanos()));
        }
    }

    /** Sends the notifications that can be sent; drops those about blocks that the peer does not own, or never promised. */
    public void send(long now) {
        Map<PeerEngine, List<String>> heartbeats = new LinkedHashMap<>();
        for (Iterator<Waiting> all = waiting.iterator(); all.hasNext(); ) {
            Waiting next = all.next();
            PeerEngine owner = peers.owner(next.about(), next.since(), now);
            if (owner.isPending() && now - next.deadline() < 0) {
                continue;
            }
            all.remove();
            if (owner.isConnected() && owner.isOwnerOf(next.about()) && owner.hasPromised(next.about())) {
                if (next.heartbeat()) {
                    heartbeats
                            .computeIfAbsent(owner, _ -> new ArrayList<>())
                            .add(next.about().requestId());
                } else {
                    notify(owner, completion(next.about(), owner));
                }
            }
        }
        heartbeats.forEach((owner, ids) -> notify(owner, new Heartbeat(ids)));
    }

    /** The notification that the owner's blocks are not needed any more. */
    PeerNotification completion(RemoteBlocks blocks, PeerEngine owner) {
        int readersOfEach = context.self().tensorParallelSize()
                / owner.ranks().getFirst().info().tensorParallelSize();
        Completion completion = new Completion(blocks.requestId(), Math.max(1, readersOfEach));
        return blocks.mode() == TransferMode.PUSH && owner.isBaton() ? new PushOver(completion) : completion;
    }

    /** Notifies all connected ranks of an instance. */
    void notify(PeerEngine engine, PeerNotification notification) {
        engine.ranks().forEach(rank -> notify(rank, notification));
    }

    /** Notifies a rank, if it is connected. A failure is counted and logged. */
    void notify(RemoteRank rank, PeerNotification notification) {
        if (!rank.peer().alive()) {
            return;
        }
        try {
            context.agent().notify(rank.peer(), context.codec().encode(notification));
        } catch (TransferException e) {
            context.stats().failedNotification(rank.peer().name(), e.getMessage());
        }
    }
}
