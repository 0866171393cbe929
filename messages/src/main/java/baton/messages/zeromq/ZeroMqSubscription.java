package baton.messages.zeromq;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.ZeroMqEndpoint;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A SUB socket at a {@link ZeroMqPublisher} or vLLM's {@code ZmqEventPublisher}: gets numbered messages in their order, each once, connects
 * again when the connection ends, and asks for missed messages.
 *
 * <ul>
 *   <li>First the past messages that the publisher keeps are asked for.
 *   <li>A gap in the numbers is asked for. Messages that the publisher no longer keeps are lost.
 *   <li>After a connection has ended, the last message that came is asked for with those after it. If it is not kept, or another one has
 *       its number, the publisher is another one: earlier messages are void.
 *   <li>A number that is not greater than the one before on the same connection is of another publisher, too.
 * </ul>
 *
 * The listener is called by one thread of the subscription.
 */
public final class ZeroMqSubscription implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(ZeroMqSubscription.class);

    private static final int MOST_MESSAGE_BYTES = 64 << 20;
    private static final int FRAMES = 5;
    private static final Duration EXCHANGE = Duration.ofSeconds(5);
    private static final Duration REPLAY = Duration.ofSeconds(30);
    private static final Duration FIRST_PAUSE = Duration.ofMillis(50);
    private static final Duration LONGEST_PAUSE = Duration.ofSeconds(5);
    private static final Duration BETWEEN_LINES = Duration.ofMinutes(1);
    private static final Duration JOIN = Duration.ofSeconds(2);
    private static final int SUBSCRIBE = 1;
    private static final long NONE = -1;

    /**
     * Where messages are published.
     *
     * @param replay where past ones can be asked for
     * @param topic beginning of the topics that are subscribed to
     */
    public record Source(ZeroMqEndpoint endpoint, Optional<ZeroMqEndpoint> replay, String topic) {}

    /** Takes messages. */
    public interface Listener {
        void message(long number, byte[] payload);

        /** Messages were lost, or the publisher is another one: the state built from earlier messages is invalid. */
        void lost(String why);

        /** Missed messages have come by a replay. */
        void replayed(int messages);

        /** Whether there is a connection, on which nothing is missing. */
        void connected(boolean now);
    }

    private final Source source;
    private final PeerAccess access;
    private final Listener listener;
    private final Ticker ticker;
    private final Bursts failures;
    private final Bursts losses;
    private final CountDownLatch closed = new CountDownLatch(1);
    private final Thread thread;
    private volatile Socket live = new Socket();
    private volatile Socket asking = new Socket();

    /** The number that the next message should have; {@link #NONE} before the first. Of the thread. */
    private long expected = NONE;

    /** The last message that was passed on. */
    private byte[] last = new byte[0];

    /** The last number on this connection. */
    private long lastLive = NONE;

    private ZeroMqSubscription(Source source, PeerAccess access, Listener listener, Ticker ticker) {
        this.source = source;
        this.access = access;
        this.listener = listener;
        this.ticker = ticker;
        this.failures = new Bursts(1, BETWEEN_LINES, ticker);
        this.losses = new Bursts(1, BETWEEN_LINES, ticker);
        this.thread = Thread.ofVirtual()
                .name("zeromq-subscribed-" + source.endpoint())
                .unstarted(this::run);
    }

    /**
     * Begins to connect, and returns at once.
     *
     * @param access whether connections are sealed
     */
    public static ZeroMqSubscription start(Source source, PeerAccess access, Listener listener, Ticker ticker) {
        ZeroMqSubscription subscription = new ZeroMqSubscription(source, access, listener, ticker);
        subscription.thread.start();
        return subscription;
    }

    private void run() {
        Duration pause = FIRST_PAUSE;
        try {
            while (isOpen()) {
                boolean connected = false;
                try (Socket next = new Socket()) {
                    live = next;
                    if (isOpen()) {
                        Zmtp zmtp = connect(next, source.endpoint(), "SUB", Set.of("PUB", "XPUB"));
                        subscribe(zmtp);
                        lastLive = NONE;
                        catchUp();
                        connected = true;
                        listener.connected(true);
                        receive(zmtp);
                    }
                } catch (IOException | IllegalArgumentException e) {
                    if (isOpen()) {
                        failures.event(
                                more -> log.warn("no events from {}: {}{}", source.endpoint(), e.getMessage(), more));
                    }
                } finally {
                    if (connected) {
                        listener.connected(false);
                    }
                }
                pause = connected ? FIRST_PAUSE : pause.multipliedBy(2);
                pause = pause.compareTo(LONGEST_PAUSE) > 0 ? LONGEST_PAUSE : pause;
                if (closed.await(pause.toNanos(), TimeUnit.NANOSECONDS)) {
                    return;
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean isOpen() {
        return closed.getCount() > 0;
    }

    /** Connects and shakes hands within {@link #EXCHANGE}. */
    private Zmtp connect(Socket peer, ZeroMqEndpoint at, String type, Set<String> peerTypes) throws IOException {
        CompletableFuture<Void> timer = endAfter(peer, EXCHANGE);
        try {
            peer.connect(
                    new InetSocketAddress(InetAddress.getByName(at.host()), at.port()),
                    Deadline.after(ticker, EXCHANGE).remainingMillis());
            peer.setTcpNoDelay(true);
            BoundSocket.detectLoss(peer);
            Zmtp zmtp = Zmtp.over(peer, access, true, FRAMES, MOST_MESSAGE_BYTES);
            zmtp.handshake(type, peerTypes);
            return zmtp;
        } finally {
            timer.cancel(false);
        }
    }

    private static CompletableFuture<Void> endAfter(Socket peer, Duration time) {
        CompletableFuture<Void> timer = new CompletableFuture<>();
        CompletableFuture<?> unusedEnd = timer.completeOnTimeout(null, time.toNanos(), TimeUnit.NANOSECONDS)
                .thenRun(() -> Closing.quietly(peer));
        return timer;
    }

    private void subscribe(Zmtp zmtp) throws IOException {
        byte[] topic = source.topic().getBytes(StandardCharsets.UTF_8);
        byte[] frame = new byte[1 + topic.length];
        frame[0] = SUBSCRIBE;
        System.arraycopy(topic, 0, frame, 1, topic.length);
        zmtp.send(List.of(frame));
    }

    /** Asks for the messages published before this connection. */
    private void catchUp() throws IOException {
        if (source.replay().isEmpty()) {
            if (expected != NONE) {
                forget("the connection ended, and the publisher has no replay endpoint");
            }
            return;
        }
        if (expected != NONE) {
            boolean[] same = {false};
            byte[] before = last;
            long at = expected - 1;
            replay(at, (number, payload) -> {
                if (!same[0]) {
                    same[0] = number == at && Arrays.equals(payload, before);
                    return same[0];
                }
                return pass(number, payload);
            });
            if (same[0]) {
                return;
            }
            forget("the publisher is another one, or has not kept message " + at);
        }
        replay(0, this::pass);
    }

    private void receive(Zmtp zmtp) throws IOException {
        while (zmtp.awaitMessageAfterCommands()) {
            List<byte[]> frames = zmtp.receive();
            if (frames.size() != 3 || frames.get(1).length != Long.BYTES) {
                throw new Zmtp.Violation("a message is a topic, a number of 8 bytes and a payload");
            }
            received(ByteBuffer.wrap(frames.get(1)).getLong(), frames.get(2));
        }
        if (isOpen()) {
            throw new IOException("the publisher closed the connection");
        }
    }

    private void received(long number, byte[] payload) throws IOException {
        if (number <= lastLive) {
            forget("number " + number + " came after " + lastLive + ": the publisher was started anew");
            if (number > 0 && source.replay().isPresent()) {
                replay(0, this::pass);
            }
        }
        lastLive = number;
        if (expected != NONE && number > expected && source.replay().isPresent()) {
            replay(expected, this::pass);
        }
        boolean _ = pass(number, payload);
    }

    /** Passes a message on unless it came before, and reports missing messages before it as lost. Returns true. */
    private boolean pass(long number, byte[] payload) {
        if (expected != NONE && number < expected) {
            return true;
        }
        if (expected != NONE && number > expected) {
            forget("messages " + expected + " to " + (number - 1) + " are lost");
        }
        expected = number + 1;
        last = payload;
        listener.message(number, payload);
        return true;
    }

    private void forget(String why) {
        expected = NONE;
        last = new byte[0];
        losses.event(more -> log.info("{}: {}{}", source.endpoint(), why, more));
        listener.lost(why);
    }

    private interface Replayed {
        /** Returns whether to go on. */
        boolean take(long number, byte[] payload);
    }

    /** Asks for the messages from a number on. A publisher that does not answer has none. */
    private void replay(long from, Replayed taker) throws IOException {
        ZeroMqEndpoint at = source.replay().orElseThrow();
        try (Socket peer = new Socket()) {
            asking = peer;
            if (!isOpen()) {
                throw new IOException("the subscription is closed");
            }
            CompletableFuture<Void> timer = endAfter(peer, REPLAY);
            try {
                Zmtp zmtp = connect(peer, at, "DEALER", Set.of("ROUTER", "REP"));
                zmtp.send(List.of(new byte[0], Publication.eightBytes(from)));
                int messages = 0;
                boolean more = true;
                while (more && zmtp.awaitMessage()) {
                    List<byte[]> frames = zmtp.receive();
                    if (frames.size() != 4 || frames.get(2).length != Long.BYTES) {
                        throw new Zmtp.Violation(
                                "an answer is an empty frame, a topic, a number of 8 bytes and a payload");
                    }
                    long number = ByteBuffer.wrap(frames.get(2)).getLong();
                    more = number >= 0 && taker.take(number, frames.get(3));
                    messages += more ? 1 : 0;
                }
                listener.replayed(messages);
            } finally {
                timer.cancel(false);
            }
        } catch (IOException | IllegalArgumentException e) {
            if (!isOpen()) {
                throw new IOException("the subscription is closed", e);
            }
            failures.event(more -> log.warn("past events at {}: {}{}", at, e.getMessage(), more));
        }
    }

    @Override
    public void close() {
        closed.countDown();
        Closing.quietly(live);
        Closing.quietly(asking);
        try {
            if (!thread.join(JOIN)) {
                log.warn("the subscription to {} has not ended in time", source.endpoint());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
