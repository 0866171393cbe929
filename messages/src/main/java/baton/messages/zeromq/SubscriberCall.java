package baton.messages.zeromq;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Keeps a connection to a SUB socket that listens, such as a router's that many instances publish to. */
final class SubscriberCall implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(SubscriberCall.class);
    private static final Duration FIRST_PAUSE = Duration.ofMillis(100);
    private static final Duration LONGEST_PAUSE = Duration.ofSeconds(5);
    private static final Duration BETWEEN_LINES = Duration.ofMinutes(1);
    private static final Duration JOIN = Duration.ofSeconds(2);

    private final String host;
    private final int port;
    private final ZeroMqPublisher.Bounds bounds;
    private final PeerAccess access;
    private final Function<Subscriber.Link, Subscriber> reception;
    private final Ticker ticker;
    private final Bursts failures;
    private final CountDownLatch closed = new CountDownLatch(1);
    /** A platform thread, as looking up a name may hang in the system. */
    private final Thread thread =
            Thread.ofPlatform().daemon().name("zeromq-publish-to").unstarted(this::run);

    private volatile Socket socket = new Socket();

    SubscriberCall(
            String host,
            int port,
            ZeroMqPublisher.Bounds bounds,
            PeerAccess access,
            Function<Subscriber.Link, Subscriber> reception,
            Ticker ticker) {
        this.host = host;
        this.port = port;
        this.bounds = bounds;
        this.access = access;
        this.reception = reception;
        this.ticker = ticker;
        this.failures = new Bursts(1, BETWEEN_LINES, ticker);
    }

    void start() {
        thread.start();
    }

    private void run() {
        Duration pause = FIRST_PAUSE;
        try {
            while (closed.getCount() > 0) {
                boolean connected = false;
                try (Socket next = new Socket()) {
                    socket = next;
                    connected = closed.getCount() > 0 && serve(next);
                } catch (IOException | IllegalArgumentException e) {
                    failures.event(
                            more -> log.warn("events cannot be sent to {}:{}: {}{}", host, port, e.getMessage(), more));
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

    /** Returns whether the other side was a subscriber; after its end. */
    private boolean serve(Socket peer) throws IOException {
        CompletableFuture<Void> timer = new CompletableFuture<>();
        CompletableFuture<?> unusedEnd = timer.completeOnTimeout(
                        null, bounds.exchange().toNanos(), TimeUnit.NANOSECONDS)
                .thenRun(() -> Closing.quietly(peer));
        Zmtp zmtp;
        try {
            peer.connect(
                    new InetSocketAddress(InetAddress.getByName(host), port),
                    Deadline.after(ticker, bounds.exchange()).remainingMillis());
            peer.setTcpNoDelay(true);
            BoundSocket.detectLoss(peer);
            zmtp = Zmtp.over(peer, access, true, 1, 1 + bounds.topicBytes());
            zmtp.handshake("PUB", Set.of("SUB", "XSUB"));
        } finally {
            timer.cancel(false);
        }
        Subscriber subscriber = reception.apply(new Subscriber.Link() {
            @Override
            public void send(List<byte[]> frames) throws IOException {
                zmtp.send(frames);
            }

            @Override
            public void end() {
                Closing.quietly(peer);
            }
        });
        log.info("events are sent to {}:{}", host, port);
        try {
            boolean more = zmtp.awaitMessageAfterCommands();
            while (more) {
                more = subscriber.received(zmtp.receive()) && zmtp.awaitMessageAfterCommands();
            }
        } catch (IOException e) {
            failures.event(more -> log.warn("{}:{} gets events no more: {}{}", host, port, e.getMessage(), more));
        } finally {
            Closing.quietly(peer);
            subscriber.left();
        }
        return true;
    }

    @Override
    public void close() {
        closed.countDown();
        Closing.quietly(socket);
        try {
            if (!thread.join(JOIN)) {
                log.warn("the connection to {}:{} has not ended in time", host, port);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
