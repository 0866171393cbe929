package baton.connectors.onesided;

import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Instance;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushPart;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;

/** The loads of one rank. The rank's thread owns it. */
public final class LoadTable {
    /** In how many parts a load comes, to be digested meanwhile, unless {@link #MANY_LOADS} are under way: agents bound transfers. */
    private static final int PARTS = 8;

    private static final int MANY_LOADS = 32;

    private final RankContext context;
    private final PeerDirectory peers;
    private final Outbox outbox;
    private final Map<String, PullLoad> loads = new LinkedHashMap<>();
    private int sideChannelPort;
    /** The agent digests blocks while it moves them, so that they need not come in parts. */
    private boolean agentDigests;

    public LoadTable(RankContext context, PeerDirectory peers, Outbox outbox) {
        this.context = context;
        this.peers = peers;
        this.outbox = outbox;
    }

    /**
     * Results of loads since the last report.
     *
     * @param received requests whose loads are over
     * @param invalid their blocks that do not have what was promised
     */
    public record Finished(Set<String> received, Set<Integer> invalid) {}

    public boolean isEmpty() {
        return loads.isEmpty();
    }

    /** The port of the side channel, for the registration of pushes. */
    public void sideChannelPort(int port) {
        sideChannelPort = port;
    }

    public void start(LoadRequest load, long now) {
        loads.put(load.requestId(), new PullLoad(this, load, now));
    }

    public void cancel(String requestId) {
        PullLoad load = loads.get(requestId);
        if (load != null) {
            load.cancel();
        }
    }

    /** Goes on with all loads as far as possible. */
    public void advance(long now) {
        boolean moved = true;
        while (moved) {
            moved = false;
            for (PullLoad load : loads.values()) {
                moved |= load.advance(now);
            }
        }
    }

    /** Takes out the loads that are over. */
    public Finished takeFinished(long now) {
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        for (Iterator<Map.Entry<String, PullLoad>> all = loads.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry<String, PullLoad> next = all.next();
            if (next.getValue().isOver()) {
                all.remove();
                received.add(next.getKey());
                invalid.addAll(next.getValue().invalid());
                next.getValue().settle(now);
            }
        }
        return new Finished(received, invalid);
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
        for (PullLoad load : loads.values()) {
            if (load.isReceiving()) {
                load.push().ifPresent(push -> push.onPart(part, from));
            }
        }
    }

    private boolean anyReceiver(Predicate<PushReceiver> takes) {
        return loads.values().stream().flatMap(load -> load.push().stream()).anyMatch(takes);
    }

    /** Drops all loads; returns when nothing reads the pool any more. The agent is closed. */
    public void close() {
        loads.values().forEach(PullLoad::awaitChecksums);
        loads.clear();
    }

    RankContext context() {
        return context;
    }

    PeerDirectory peers() {
        return peers;
    }

    Outbox outbox() {
        return outbox;
    }

    /** This instance, as owners find it. */
    Instance instance() {
        RankInfo self = context.self();
        return new Instance(self.engineId(), context.settings().host(), sideChannelPort, self.tensorParallelSize());
    }

    /** In how many parts the next load may come. */
    int parts() {
        return agentDigests || loads.size() > MANY_LOADS ? 1 : PARTS;
    }

    void agentDigests(boolean digests) {
        agentDigests = digests;
    }
}
