package baton.transfer.nixl;

import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Notifications without a transfer, on their way between callers and the owner thread. So many wait at most in either direction: more
 * are refused when they are to be sent, and dropped when they arrive.
 */
final class NixlNotifications {
    private static final Logger LOG = LoggerFactory.getLogger(NixlAgent.class);

    private static final int MAX_MESSAGE_BYTES = 1 << 20;
    private static final int MAX_MESSAGES = 65_536;
    private static final long MAX_MESSAGES_BYTES = 64 << 20;

    private final NixlApi api;
    private final String name;
    private final NixlThread thread;
    private final NixlNativeAgent nixl;
    private final NixlPeers peers;
    private final Runnable progress;

    private final Queue<Notification> arrived = new ConcurrentLinkedQueue<>();
    private final AtomicInteger arrivedCount = new AtomicInteger();
    private final AtomicLong arrivedBytes = new AtomicLong();
    private final AtomicInteger leavingCount = new AtomicInteger();
    private final AtomicLong leavingBytes = new AtomicLong();

    /** Belongs to the owner thread. */
    private boolean droppingSaid;

    /**
     * @param name of the agent
     * @param progress called when a notification has arrived
     */
    NixlNotifications(
            NixlApi api, String name, NixlThread thread, NixlNativeAgent nixl, NixlPeers peers, Runnable progress) {
        this.api = api;
        this.name = name;
        this.thread = thread;
        this.nixl = nixl;
        this.peers = peers;
        this.progress = progress;
    }

    /** Called by any thread, as {@link NixlAgent#notify}. */
    void send(Peer peer, byte[] message) throws TransferException {
        if (message.length > MAX_MESSAGE_BYTES) {
            throw new TransferException(
                    "a message of " + message.length + " bytes is too long, at most " + MAX_MESSAGE_BYTES);
        }
        if (!(peer instanceof NixlPeer connected) || !connected.isOf(peers)) {
            throw new TransferException("peer " + peer.name() + " is another agent's");
        }
        if (!connected.alive() || thread.hasEnded()) {
            throw new TransferException(thread.hasEnded() ? thread.whyEnded() : connected.why());
        }
        if (leavingCount.get() >= MAX_MESSAGES || leavingBytes.get() >= MAX_MESSAGES_BYTES) {
            throw new TransferException(leavingCount.get() + " messages wait to be sent, no more are taken");
        }
        byte[] copy = message.clone();
        leavingCount.incrementAndGet();
        leavingBytes.addAndGet(copy.length);
        thread.submit(() -> {
            leavingCount.decrementAndGet();
            leavingBytes.addAndGet(-copy.length);
            peers.send(connected, copy);
        });
    }

    /** Called by any thread, as {@link NixlAgent#takeNotifications}. */
    List<Notification> take() {
        List<Notification> taken = new ArrayList<>();
        for (Notification message; (message = arrived.poll()) != null; ) {
            arrivedCount.decrementAndGet();
            arrivedBytes.addAndGet(-message.message().length);
            taken.add(message);
        }
        return taken;
    }

    /**
     * Takes the notifications that have arrived from NIXL.
     *
     * @return whether there was any
     */
    boolean receive() {
        thread.check();
        List<Notification> messages = api.notifications(nixl.handle(), nixl.notificationMap());
        messages.forEach(this::arrive);
        return !messages.isEmpty();
    }

    private void arrive(Notification message) {
        if (arrivedCount.get() >= MAX_MESSAGES || arrivedBytes.get() >= MAX_MESSAGES_BYTES) {
            if (!droppingSaid) {
                LOG.warn("NIXL agent {} drops messages: {} have arrived and are not taken", name, arrivedCount.get());
                droppingSaid = true;
            }
            return;
        }
        arrivedCount.incrementAndGet();
        arrivedBytes.addAndGet(message.message().length);
        arrived.add(new Notification(NixlNativeAgent.firstName(message.from()), message.message()));
        progress.run();
    }
}
