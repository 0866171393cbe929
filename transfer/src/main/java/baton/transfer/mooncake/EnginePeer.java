package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.HandshakeMessage.UnreachableException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * An engine that a {@link MooncakeEngineAgent} is connected to. The library does not tell whether it lives: its handshake daemon is asked,
 * and one that cannot be reached is gone.
 */
final class EnginePeer implements TransferAgent.Peer {
    private static final Duration BETWEEN = Duration.ofMillis(500);
    private static final Duration ANSWER = Duration.ofSeconds(5);

    /** Handshake daemons serve one peer after the other, so that one may be busy. */
    private static final int MOST_UNANSWERED = 3;

    private static final byte[] EMPTY = {'{', '}'};

    private final MooncakeEngineAgent agent;
    private final String name;
    private final int segment;
    private final InetSocketAddress rpc;
    private final Outbox outbox;
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile SegmentDescriptor descriptor;
    private final AtomicReference<@Nullable String> gone = new AtomicReference<>();

    /** @param segment the library's number of it */
    EnginePeer(MooncakeEngineAgent agent, String name, int segment, SegmentDirectory.Located found) {
        this.agent = agent;
        this.name = name;
        this.segment = segment;
        this.descriptor = found.descriptor();
        this.rpc = InetSocketAddress.createUnresolved(
                found.rpc().host(), found.rpc().port());
        this.outbox = new Outbox(
                (message, deadline) -> agent.sendNotification(found.rpc(), message, deadline),
                why -> end(name + " " + why),
                agent.limits().waitingBytes(),
                agent.ticker());
        Thread.ofVirtual().name("mooncake-watch-" + name).start(this::watch);
    }

    private void watch() {
        int unanswered = 0;
        try {
            while (!ended.await(BETWEEN.toMillis(), TimeUnit.MILLISECONDS)) {
                try {
                    byte[] unusedAnswer = HandshakeMessage.exchange(
                            new InetSocketAddress(rpc.getHostString(), rpc.getPort()),
                            new HandshakeMessage(HandshakeMessage.Type.PROBE, EMPTY.clone()),
                            agent.limits().handshakeBytes(),
                            Deadline.after(agent.ticker(), ANSWER));
                    unanswered = 0;
                } catch (UnreachableException e) {
                    end(name + " has closed its handshake port: " + e.getMessage());
                } catch (IOException e) {
                    unanswered++;
                    if (unanswered == MOST_UNANSWERED) {
                        end(name + " does not answer: " + e.getMessage());
                    }
                }
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("this thread is never interrupted", e);
        }
    }

    MooncakeEngineAgent agent() {
        return agent;
    }

    int segment() {
        return segment;
    }

    SegmentDescriptor descriptor() {
        return descriptor;
    }

    /** @return whether it is the same engine, which may have registered more */
    boolean update(SegmentDirectory.Located found) {
        SegmentDescriptor now = found.descriptor();
        boolean same = now.dataPort() == descriptor.dataPort()
                && now.dataHost().equals(descriptor.dataHost())
                && found.rpc().port() == rpc.getPort();
        if (same) {
            descriptor = now;
        }
        return same;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public boolean alive() {
        return gone.get() == null;
    }

    String why() {
        return Optional.ofNullable(gone.get()).orElse("peer " + name + " is alive");
    }

    /** @throws TransferException if the peer is gone, or too much waits */
    void send(byte[] message) throws TransferException {
        if (!alive()) {
            throw new TransferException(why());
        }
        outbox.add(message);
    }

    void end(String why) {
        if (!gone.compareAndSet(null, why)) {
            return;
        }
        ended.countDown();
        outbox.close();
        agent.ended(this);
    }

    @Override
    public void close() {
        end("the connection to " + name + " was closed here");
    }
}
