package baton.messages.events;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvEventsConfig;
import baton.kv.Ticker;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.time.Instant;
import java.time.InstantSource;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

@Timeout(300)
class KvEventPublisherTest {
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final InstantSource CLOCK = InstantSource.fixed(Instant.ofEpochSecond(1_700_000_000L, 250_000_000));
    private static final KvEventCodec CODEC = new KvEventCodec(KvEventCodec.Hashes.INT);
    private static final List<KvEvent> CLEARED = List.of(new KvEvent.AllBlocksCleared());

    private final List<KvEventPublisher> open = new ArrayList<>();
    private final ZContext context = new ZContext();

    @AfterEach
    void close() {
        context.close();
        open.forEach(KvEventPublisher::close);
    }

    @Test
    void batchesOfEventsAreNumberedAndHaveTheirTime() {
        KvEventPublisher publisher = start("{\"endpoint\": \"tcp://*:0\", \"topic\": \"kv\"}", loopback());
        ZMQ.Socket subscriber = subscribed(publisher);

        publisher.publish(CLEARED);
        publisher.publish(List.of());
        publisher.publish(List.of(new KvEvent.AllBlocksCleared(), new KvEvent.BlockRemoved(List.of(), "GPU")));
        await(() -> publisher.published() == 2);
        publisher.close();

        assertThat(subscriber.recvStr()).isEqualTo("kv");
        assertThat(subscriber.recv()).isEqualTo(new byte[8]);
        // 1700000000.25
        String head = "93cb41d954fc40100000";
        assertThat(HexFormat.of().formatHex(subscriber.recv()))
                .isEqualTo(head + "9181a474797065b0416c6c426c6f636b73436c656172656400");
        assertThat(subscriber.recvStr()).isEqualTo("kv");
        assertThat(subscriber.recv()).isEqualTo(new byte[] {0, 0, 0, 0, 0, 0, 0, 1});
        assertThat(HexFormat.of().formatHex(subscriber.recv())).startsWith(head + "92");
        assertThat(publisher.published()).isEqualTo(2);
        assertThat(publisher.dropped()).isZero();
    }

    @ParameterizedTest(name = "{0} batches may wait, of {1} tokens")
    @CsvSource({"1, 20000", "100000, 2000000"})
    void batchesOfEventsForWhichThereIsNoRoomAreDroppedAndLeaveAGap(int batches, int tokens) {
        KvEventPublisher publisher = start(
                "{\"endpoint\": \"tcp://*:0\", \"hwm\": 0, \"max_queue_size\": %d}".formatted(batches), loopback());
        ZMQ.Socket subscriber = subscribed(publisher);
        // To encode these takes longer than to hand them over.
        List<KvEvent> large = List.of(
                new KvEvent.BlockStored(List.of(), Optional.empty(), Collections.nCopies(tokens, 70_000), 16, "GPU"));
        int made = 0;
        while (publisher.dropped() == 0) {
            publisher.publish(large);
            made++;
        }
        await(() -> publisher.published() > 0);
        int all = made;
        await(() -> publisher.published() + publisher.dropped() == all);
        publisher.publish(CLEARED);

        List<Long> numbers = new ArrayList<>();
        while (numbers.isEmpty() || numbers.getLast() < made) {
            subscriber.recv();
            numbers.add(new BigInteger(subscriber.recv()).longValueExact());
            subscriber.recv();
        }
        assertThat(numbers).isSorted().doesNotHaveDuplicates().hasSize(made + 1 - (int) publisher.dropped());
    }

    @Test
    void theSourceOfEventsNamesThePortsThatWereFound() {
        KvEventPublisher publisher =
                start("{\"endpoint\": \"tcp://*:0\", \"replay_endpoint\": \"tcp://127.0.0.1:0\"}", loopback());

        assertThat(publisher.source().endpoint().host()).isEqualTo("127.0.0.1");
        assertThat(publisher.source().endpoint().port()).isPositive();
        assertThat(publisher.source().replayEndpoint().orElseThrow().port()).isPositive();
    }

    @Test
    void eventsOnEveryAddressAreOnLoopbackOnlyUnlessOtherHostsMayReadThem() {
        KvEventAccess closed = loopback();
        KvEventAccess open = access(true, Optional.empty(), Map.of(KvEventAccess.HOST_IP, "10.1.2.3"));
        KvEventsConfig any = config("{}");

        assertThat(closed.listening("x", any.endpoint())).hasToString("tcp://127.0.0.1:5557");
        assertThat(open.listening("x", any.endpoint())).hasToString("tcp://*:5557");
        assertThat(open.listening("x", config("{\"endpoint\": \"tcp://*:0\"}").endpoint()))
                .hasToString("tcp://10.1.2.3:0");
        KvEventsConfig other = config("{\"replay_endpoint\": \"tcp://192.0.2.7:5558\"}");
        assertThatThrownBy(() -> closed.listening(
                        "kv_events_config.replay_endpoint",
                        other.replayEndpoint().orElseThrow()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_events_config.replay_endpoint: is tcp://192.0.2.7:5558")
                .hasMessageContaining("--kv-allow-unauthenticated");
        assertThat(open.listening("x", other.replayEndpoint().orElseThrow())).hasToString("tcp://192.0.2.7:5558");
    }

    @Test
    void hostsThatAreNotAllowedGetNoEventsAndAreCounted() throws Exception {
        KvEventPublisher publisher =
                start("{\"endpoint\": \"tcp://*:0\"}", access(false, Optional.of(List.of("192.0.2.0/24")), Map.of()));
        try (Socket socket = new Socket(
                InetAddress.getLoopbackAddress(), publisher.source().endpoint().port())) {
            socket.setSoTimeout((int) SOON.toMillis());
            assertThat(socket.getInputStream().read()).isEqualTo(-1);
        }
        assertThat(publisher.refused()).isEqualTo(1);
        assertThat(publisher.subscribers()).isZero();
    }

    @Test
    void aPortOfEventsThatIsInUseIsNamed() throws Exception {
        try (ServerSocket taken = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            assertThatThrownBy(() -> start("{\"endpoint\": \"tcp://*:" + taken.getLocalPort() + "\"}", loopback()))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("kv_events_config.endpoint")
                    .hasMessageContaining("cannot listen on 127.0.0.1:" + taken.getLocalPort());
        }
    }

    private KvEventPublisher start(String json, KvEventAccess access) {
        KvEventPublisher publisher = KvEventPublisher.start(config(json), CODEC, access, Ticker.system(), CLOCK);
        open.add(publisher);
        return publisher;
    }

    private static KvEventsConfig config(String json) {
        return KvEventsConfig.fromJson(JsonFields.parse("kv_events_config", json));
    }

    private static KvEventAccess loopback() {
        return access(false, Optional.empty(), Map.of());
    }

    private static KvEventAccess access(boolean open, Optional<List<String>> allowed, Map<String, String> environment) {
        return KvEventAccess.of(open, allowed, Optional.empty(), environment, Ticker.system());
    }

    /**
     * A socket with a subscription that has arrived. JeroMQ 0.6 loses about one in forty of those that are made while no call is made
     * on the socket, at libzmq's publishers as well.
     */
    private ZMQ.Socket subscribed(KvEventPublisher publisher) {
        for (int left = 6; left > 0; left--) {
            ZMQ.Socket subscriber = context.createSocket(SocketType.SUB);
            subscriber.setReceiveTimeOut((int) SOON.toMillis());
            subscriber.subscribe("");
            subscriber.connect(publisher.source().endpoint().toString());
            long end = System.nanoTime() + SOON.toNanos() / 6;
            while (System.nanoTime() - end < 0) {
                // Lets the socket do its deferred work.
                int unusedEvents = subscriber.getEvents();
                if (publisher.subscribers() == 1) {
                    return subscriber;
                }
                LockSupport.parkNanos(1_000_000);
            }
            subscriber.close();
        }
        throw new AssertionError("no subscription in time");
    }

    private static void await(BooleanSupplier condition) {
        long end = System.nanoTime() + SOON.toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime() - end).as("time left").isNegative();
            LockSupport.parkNanos(1_000_000);
        }
    }
}
