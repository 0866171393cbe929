package baton.connectors.onesided;

import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Instance;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushPart;
import java.util.function.Predicate;

/** The loads of one rank from peers of which it knows the pools. */
public final class PullLoads extends LoadTable<PullLoad> {
    /**
     * The number of parts of a load, so that arrived parts are digested meanwhile, unless {@link #MANY_LOADS} are under way: agents bound
     * transfers.
     */
    private static final int PARTS = 8;

    private static final int MANY_LOADS = 32;

    final RankContext context;
    final PeerDirectory peers;
    final Outbox outbox;
    private int sideChannelPort;
    /** The agent digests blocks while it moves them, so that they need not come in parts. */
    private boolean agentDigests;

    public PullLoads(RankContext context, PeerDirectory peers, Outbox outbox) {
        super(context.wake());
        this.context = context;
        this.peers = peers;
        this.outbox = outbox;
    }

    /** The port of the side channel, for the registration of pushes. */
    public void sideChannelPort(int port) {
        sideChannelPort = port;
    }

    public void start(LoadRequest load, long now) {
        start(load.requestId(), new PullLoad(this, load, now));
    }

    /** An answer that comes late is of no use. */
    public void onAccepted(String attempt, String from) {
        var _ = anyReceiver(push -> push.onAccepted(attempt, from));
    }

    /** False if no load waits for that push. */
    public boolean onDone(PushDone done, String from) {
        return anyReceiver(push -> push.onDone(done, from));
    }

    /** False if no load waits for that push. */
    public boolean onFailed(PushFailed failed, String from) {
        return anyReceiver(push -> push.onFailed(failed, from));
    }

    /** False if it is not the end of a push that a load waits for. */
    public boolean onCompletion(Completion completion, String from) {
        return anyReceiver(push -> push.onCompletion(completion, from));
    }

    /** A part that comes late is of no use. */
    public void onPart(PushPart part, String from) {
        for (PullLoad load : loads()) {
            if (load.isArriving()) {
                load.push().ifPresent(push -> push.onPart(part, from));
            }
        }
    }

    private boolean anyReceiver(Predicate<PushReceiver> takes) {
        return loads().stream().flatMap(load -> load.push().stream()).anyMatch(takes);
    }

    /** This instance, as owners find it. */
    Instance instance() {
        RankInfo self = context.self();
        return new Instance(self.engineId(), context.settings().host(), sideChannelPort, self.tensorParallelSize());
    }

    /** The number of parts of the next load. */
    int parts() {
        return agentDigests || loads().size() > MANY_LOADS ? 1 : PARTS;
    }

    void agentDigests(boolean digests) {
        agentDigests = digests;
    }
}
