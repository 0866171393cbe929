package baton.transfer.mooncake;

import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/** An engine that a {@link SegmentAgent} is connected to: its buffers, the notifications to it, and whether it is gone. */
abstract class SegmentPeer implements TransferAgent.Peer {
    private final SegmentAgent<?, ?> agent;
    private final String name;
    private final NotificationQueue outbox;
    private final AtomicReference<@Nullable String> gone = new AtomicReference<>();
    private volatile SegmentDescriptor descriptor;

    SegmentPeer(SegmentAgent<?, ?> agent, String name, SegmentDirectory.Located found) {
        this.agent = agent;
        this.name = name;
        this.descriptor = found.descriptor();
        this.outbox = new NotificationQueue(
                (message, deadline) -> agent.sendNotification(found.rpc(), message, deadline),
                why -> end(name + " " + why),
                agent.limits().waitingBytes(),
                agent.ticker());
    }

    /** Whether its directory's entry is of the same engine, which may have registered more. */
    abstract boolean isSame(SegmentDirectory.Located found);

    /** Called once, after the peer is gone: ends all uses of the peer. */
    abstract void ended(String why);

    final boolean isOf(SegmentAgent<?, ?> other) {
        return agent.equals(other);
    }

    final SegmentDescriptor descriptor() {
        return descriptor;
    }

    /** @return whether it is the same engine, which may have registered more */
    final boolean update(SegmentDirectory.Located found) {
        boolean same = isSame(found);
        if (same) {
            descriptor = found.descriptor();
        }
        return same;
    }

    @Override
    public final String name() {
        return name;
    }

    @Override
    public final boolean alive() {
        return gone.get() == null;
    }

    final String why() {
        return Optional.ofNullable(gone.get()).orElse("peer " + name + " is alive");
    }

    /** @throws TransferException if the peer is gone, or too much waits */
    final void send(byte[] message) throws TransferException {
        if (!alive()) {
            throw new TransferException(why());
        }
        outbox.add(message);
    }

    /** A transfer with it is over. */
    void forget(SegmentTransfer transfer) {
        agent.tellProgress();
    }

    /** Marks the peer as gone, and ends all uses of it. */
    final void end(String why) {
        if (gone.compareAndSet(null, why)) {
            outbox.close();
            ended(why);
            agent.ended(this);
        }
    }

    @Override
    public final void close() {
        end("the connection to " + name + " was closed here");
    }
}
