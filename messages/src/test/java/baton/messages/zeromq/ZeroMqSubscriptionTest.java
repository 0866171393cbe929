package baton.messages.zeromq;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.kv.ZeroMqEndpoint;
import baton.messages.PeerAccess;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class ZeroMqSubscriptionTest {
    private static final String HOST = "127.0.0.1";

    private final List<AutoCloseable> open = new ArrayList<>();
    private final Log log = new Log();

    /** The calls of a subscription, in order. */
    private static final class Log implements ZeroMqSubscription.Listener {
        private final List<String> told = new CopyOnWriteArrayList<>();
        private volatile boolean connected;
        private final AtomicInteger connections = new AtomicInteger();

        @Override
        public void message(long number, byte[] payload) {
            told.add(number + "=" + new String(payload, StandardCharsets.UTF_8));
        }

        @Override
        public void lost(String why) {
            told.add("lost");
        }

        @Override
        public void replayed(int messages) {}

        @Override
        public void connected(boolean now) {
            connected = now;
            connections.addAndGet(now ? 1 : 0);
        }

        void await(String... all) {
            ZeroMqSubscriptionTest.await(() -> told.size() >= all.length);
            assertThat(told).containsExactly(all);
        }
    }

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
    }

    private ZeroMqPublisher publisher(int kept) {
        ZeroMqPublisher publisher = new ZeroMqPublisher(
                "kv", ZeroMqPublisher.Bounds.of(1000, kept), _ -> true, PeerAccess.everyone(), Ticker.system());
        open.add(publisher);
        return publisher;
    }

    private ZeroMqSubscription subscribe(int port, Optional<Integer> replayPort, String topic) {
        ZeroMqSubscription subscription = ZeroMqSubscription.start(
                new ZeroMqSubscription.Source(
                        new ZeroMqEndpoint(HOST, port), replayPort.map(each -> new ZeroMqEndpoint(HOST, each)), topic),
                PeerAccess.everyone(),
                log,
                Ticker.system());
        open.add(subscription);
        return subscription;
    }

    private static void publish(ZeroMqPublisher publisher, long number) {
        publish(publisher, number, "");
    }

    private static void publish(ZeroMqPublisher publisher, long number, String mark) {
        publisher.publish(number, (mark + "m" + number).getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void pastMessagesComeFirstAndThenEachOnce() throws Exception {
        ZeroMqPublisher publisher = publisher(100);
        int port = publisher.listen(HOST, 0);
        int replay = publisher.listenForReplays(HOST, 0);
        publish(publisher, 0);
        publish(publisher, 1);

        subscribe(port, Optional.of(replay), "k");
        log.await("0=m0", "1=m1");
        await(() -> publisher.subscribers() == 1);
        publish(publisher, 2);
        log.await("0=m0", "1=m1", "2=m2");
        assertThat(log.connected).isTrue();
    }

    @Test
    void aGapIsAskedFor() throws Exception {
        ZeroMqPublisher kept = publisher(100);
        int replay = kept.listenForReplays(HOST, 0);
        ZeroMqPublisher live = publisher(0);
        int port = live.listen(HOST, 0);
        subscribe(port, Optional.of(replay), "");
        await(() -> live.subscribers() == 1);
        publish(kept, 0);
        publish(live, 0);
        log.await("0=m0");
        for (int i = 1; i < 5; i++) {
            publish(kept, i);
        }
        publish(live, 4);
        log.await("0=m0", "1=m1", "2=m2", "3=m3", "4=m4");
        publish(live, 5);
        log.await("0=m0", "1=m1", "2=m2", "3=m3", "4=m4", "5=m5");
    }

    @Test
    void messagesThatAreNotKeptAreLost() throws Exception {
        ZeroMqPublisher publisher = publisher(2);
        int port = publisher.listen(HOST, 0);
        int replay = publisher.listenForReplays(HOST, 0);
        subscribe(port, Optional.of(replay), "");
        await(() -> publisher.subscribers() == 1);
        publish(publisher, 0);
        log.await("0=m0");
        // As of batches that the publisher dropped.
        publish(publisher, 7);
        log.await("0=m0", "lost", "7=m7");
    }

    @Test
    void aRestartedPublisherVoidsEarlierMessages() throws Exception {
        int port = FreePorts.inARow(1);
        int replay = FreePorts.inARow(1);
        ZeroMqPublisher first = publisher(100);
        first.listen(HOST, port);
        first.listenForReplays(HOST, replay);
        subscribe(port, Optional.of(replay), "");
        await(() -> first.subscribers() == 1);
        publish(first, 0);
        publish(first, 1);
        log.await("0=m0", "1=m1");
        first.close();
        await(() -> !log.connected);

        ZeroMqPublisher second = publisher(100);
        // It has come further than the first when the subscription finds it.
        for (int i = 0; i < 3; i++) {
            publish(second, i, "new ");
        }
        second.listenForReplays(HOST, replay);
        second.listen(HOST, port);
        log.await("0=m0", "1=m1", "lost", "0=new m0", "1=new m1", "2=new m2");
    }

    @Test
    void aConnectionThatEndsLosesNothingIfThePublisherIsTheSame() throws Exception {
        ZeroMqPublisher kept = publisher(100);
        int replay = kept.listenForReplays(HOST, 0);
        int port = FreePorts.inARow(1);
        ZeroMqPublisher live = publisher(0);
        live.listen(HOST, port);
        subscribe(port, Optional.of(replay), "");
        await(() -> live.subscribers() == 1);
        publish(kept, 0);
        publish(live, 0);
        log.await("0=m0");
        live.close();
        await(() -> !log.connected);
        publish(kept, 1);
        ZeroMqPublisher again = publisher(0);
        again.listen(HOST, port);
        log.await("0=m0", "1=m1");
        await(() -> log.connections.get() == 2);
        assertThat(log.told).doesNotContain("lost");
    }

    @Test
    void withoutReplaysTheEndOfAConnectionVoidsAll() throws Exception {
        int port = FreePorts.inARow(1);
        ZeroMqPublisher first = publisher(0);
        first.listen(HOST, port);
        subscribe(port, Optional.empty(), "");
        await(() -> first.subscribers() == 1);
        publish(first, 5);
        log.await("5=m5");
        first.close();
        await(() -> !log.connected);
        ZeroMqPublisher second = publisher(0);
        second.listen(HOST, port);
        await(() -> second.subscribers() == 1);
        publish(second, 6);
        log.await("5=m5", "lost", "6=m6");
    }

    private static void await(BooleanSupplier condition) {
        long end = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() - end > 0) {
                throw new AssertionError("not in time");
            }
            LockSupport.parkNanos(500_000);
        }
    }
}
