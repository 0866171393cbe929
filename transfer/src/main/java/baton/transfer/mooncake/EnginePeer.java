package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.transfer.mooncake.HandshakeMessage.UnreachableException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * An engine that a {@link MooncakeEngineAgent} is connected to. The library does not tell whether it lives: its handshake daemon is asked,
 * and one that cannot be reached is gone.
 */
final class EnginePeer extends SegmentPeer {
    private static final Duration BETWEEN = Duration.ofMillis(500);
    private static final Duration ANSWER = Duration.ofSeconds(5);

    /** Handshake daemons serve one peer after the other, so that one may be busy. */
    private static final int MOST_UNANSWERED = 3;

    private static final byte[] EMPTY = {'{', '}'};

    private final MooncakeEngineAgent agent;
    private final int segment;
    private final InetSocketAddress rpc;
    private final CountDownLatch ended = new CountDownLatch(1);

    /** @param segment the library's number of it */
    EnginePeer(MooncakeEngineAgent agent, String name, int segment, SegmentDirectory.Located found) {
        super(agent, name, found);
        this.agent = agent;
        this.segment = segment;
        this.rpc = InetSocketAddress.createUnresolved(
                found.rpc().host(), found.rpc().port());
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
                    end(name() + " has closed its handshake port: " + e.getMessage());
                } catch (IOException e) {
                    unanswered++;
                    if (unanswered == MOST_UNANSWERED) {
                        end(name() + " does not answer: " + e.getMessage());
                    }
                }
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("this thread is never interrupted", e);
        }
    }

    int segment() {
        return segment;
    }

    @Override
    boolean isSame(SegmentDirectory.Located found) {
        SegmentDescriptor other = found.descriptor();
        return other.dataPort() == descriptor().dataPort()
                && other.dataHost().equals(descriptor().dataHost())
                && found.rpc().port() == rpc.getPort();
    }

    @Override
    void ended(String why) {
        ended.countDown();
    }
}
