package baton.messages.zeromq;

import static baton.messages.zeromq.ZeroMqSideChannelTest.concat;
import static baton.messages.zeromq.ZeroMqSideChannelTest.readToEnd;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.zeromq.ZeroMqPublisher.Bounds;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

/** Published events and replays over TCP: Baton's own connections, JeroMQ's sockets, slow peers and peers that mean no good. */
@Timeout(300)
class ZeroMqPublisherTest {
    private static final String HOST = "127.0.0.1";
    private static final InetAddress LOOPBACK = InetAddress.ofLiteral(HOST);
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final Ticker CLOCK = Ticker.system();

    private final List<AutoCloseable> open = new ArrayList<>();

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
    }

    @Test
    void eventsReachTheSubscribersOfTheirTopic() throws Exception {
        ZeroMqPublisher publisher = publisher("kv@pod", Bounds.of(100, 0));
        int port = publisher.listen(HOST, 0);
        Peer all = subscriber(port);
        all.subscribe("");
        Peer some = subscriber(port);
        some.subscribe("kv@");
        Peer none = subscriber(port);
        none.subscribe("other");
        none.subscribe("kv@pod2");
        await(() -> publisher.subscribers() == 2);

        publisher.publish(0, bytes(10));
        some.send(List.of(text("\0kv@")));
        await(() -> publisher.subscribers() == 1);
        publisher.publish(1, bytes(70_000));
        none.send(List.of(text("\1kv@pod")));
        await(() -> publisher.subscribers() == 2);
        publisher.publish(0x0102030405060708L, new byte[0]);

        assertThat(all.receive()).containsExactly(text("kv@pod"), eight(0), bytes(10));
        assertThat(some.receive()).containsExactly(text("kv@pod"), eight(0), bytes(10));
        assertThat(all.receive()).containsExactly(text("kv@pod"), eight(1), bytes(70_000));
        for (Peer each : List.of(all, none)) {
            assertThat(each.receive())
                    .containsExactly(text("kv@pod"), HexFormat.of().parseHex("0102030405060708"), new byte[0]);
        }
        all.close();
        await(() -> publisher.subscribers() == 1);
        assertThat(publisher.lost()).isZero();
    }

    @Test
    void jeroMqSubscribesToEventsAndAsksForPastOnes() throws Exception {
        ZeroMqPublisher publisher = publisher("kv", Bounds.of(100, 100));
        int port = publisher.listen(HOST, 0);
        int replays = publisher.listenForReplays(HOST, 0);
        try (ZContext context = new ZContext()) {
            ZMQ.Socket sub = context.createSocket(SocketType.SUB);
            sub.setReceiveTimeOut((int) SOON.toMillis());
            sub.setHandshakeIvl(300);
            // Its pings are all that it sends, and have to be answered.
            sub.setHeartbeatIvl(20);
            sub.setHeartbeatTimeout(5_000);
            sub.subscribe("k");
            connected(sub, port, publisher);
            for (int i = 0; i < 3; i++) {
                publisher.publish(i, bytes(i));
                assertThat(sub.recvStr()).isEqualTo("kv");
                assertThat(sub.recv()).isEqualTo(eight(i));
                assertThat(sub.recv()).isEqualTo(bytes(i));
            }
            ZMQ.Socket dealer = asking(context, replays);
            for (long sequence : List.of(1L, 2L, -1L)) {
                if (sequence > 1 || sequence < 0) {
                    assertThat(dealer.recv()).isEmpty();
                }
                assertThat(dealer.recvStr()).isEqualTo(sequence < 0 ? "" : "kv");
                assertThat(dealer.recv()).isEqualTo(eight(sequence));
                assertThat(dealer.recv()).isEqualTo(sequence < 0 ? new byte[0] : bytes((int) sequence));
                assertThat(dealer.hasReceiveMore()).isFalse();
            }
        }
    }

    /**
     * Connects a socket until its subscription has arrived. JeroMQ 0.6 loses about one in forty of those that are made while no call is
     * made on the socket, at libzmq's publishers as well.
     */
    private static void connected(ZMQ.Socket sub, int port, ZeroMqPublisher publisher) {
        String address = "tcp://" + HOST + ":" + port;
        for (int left = 6; left > 0; left--) {
            sub.connect(address);
            long end = System.nanoTime() + SOON.toNanos() / 6;
            while (System.nanoTime() - end < 0) {
                // Lets the socket do its deferred work.
                int unusedEvents = sub.getEvents();
                if (publisher.subscribers() == 1) {
                    return;
                }
                LockSupport.parkNanos(1_000_000);
            }
            sub.disconnect(address);
        }
        throw new AssertionError("no subscription in time");
    }

    /** A socket that has asked for messages from 1 on and got the first frame; one of JeroMQ's connections in 20 to 40 stalls. */
    private static ZMQ.Socket asking(ZContext context, int port) {
        for (int left = 6; left > 0; left--) {
            ZMQ.Socket dealer = context.createSocket(SocketType.DEALER);
            dealer.setReceiveTimeOut((int) SOON.toMillis() / 6);
            dealer.connect("tcp://" + HOST + ":" + port);
            dealer.send("", ZMQ.SNDMORE);
            dealer.send(eight(1));
            byte[] first = dealer.recv();
            if (first != null) {
                assertThat(first).isEmpty();
                return dealer;
            }
        }
        throw new AssertionError("no replay in time");
    }

    @Test
    void heartbeatsOfAnEventSubscriberAreAnsweredForAsLongAsItLikes() throws Exception {
        Bounds hasty = bounds(10, 1 << 20, 4, Duration.ofSeconds(2));
        ZeroMqPublisher publisher = publisher("", hasty);
        try (Socket socket = new Socket(LOOPBACK, publisher.listen(HOST, 0))) {
            socket.setSoTimeout((int) SOON.toMillis());
            socket.getOutputStream().write(greetingAndReady("SUB"));
            socket.getOutputStream().write(HexFormat.of().parseHex("000101"));
            await(() -> publisher.subscribers() == 1);
            byte[] unusedGreeting = socket.getInputStream().readNBytes(64 + 2 + 6 + 12 + 4 + 3 + 9 + 4);
            // More than fit between two messages, over more time than a message may take.
            for (int i = 0; i < 100; i++) {
                socket.getOutputStream().write("\4\7\4PING\0\0".getBytes(StandardCharsets.ISO_8859_1));
                assertThat(socket.getInputStream().readNBytes(7))
                        .isEqualTo("\4\5\4PONG".getBytes(StandardCharsets.ISO_8859_1));
                LockSupport.parkNanos(24_000_000);
            }
            publisher.publish(7, text("still here"));
            assertThat(socket.getInputStream().readNBytes(2 + 10 + 12)).endsWith(text("still here"));
        }
    }

    @Test
    void aSlowSubscriberLosesEventsAndTheOthersDoNot() throws Exception {
        ZeroMqPublisher publisher = publisher("", Bounds.of(8, 0));
        int port = publisher.listen(HOST, 0);
        Peer slow = subscriber(port);
        slow.subscribe("");
        Peer quick = subscriber(port);
        quick.subscribe("");
        await(() -> publisher.subscribers() == 2);

        long published = 0;
        // The size of the system's buffers for a connection is unknown.
        while (publisher.lost() < 10) {
            publisher.publish(published, bytes(1 << 20));
            assertThat(quick.receive().get(1)).isEqualTo(eight(published));
            published++;
        }
        long lost = publisher.lost();

        List<Long> received = new ArrayList<>();
        while (received.size() < published - lost) {
            received.add(ByteBuffer.wrap(slow.receive().get(1)).getLong());
        }
        assertThat(received).isSorted().doesNotHaveDuplicates();
        assertThat(received.getLast()).isLessThan(published - 1);
        publisher.publish(published, bytes(3));
        assertThat(slow.receive()).containsExactly(new byte[0], eight(published), bytes(3));
    }

    @Test
    void aSubscriberThatTakesNoEventsForLongIsDisconnected() throws Exception {
        ZeroMqPublisher publisher =
                publisher("", new Bounds(0, 64 << 20, 0, 0, 4, 4, 100, Duration.ofSeconds(5), Duration.ofMillis(200)));
        Peer stalled = subscriber(publisher.listen(HOST, 0));
        stalled.subscribe("");
        await(() -> publisher.subscribers() == 1);
        for (int i = 0; i < 40; i++) {
            publisher.publish(i, bytes(1 << 20));
        }
        await(() -> publisher.subscribers() == 0);
    }

    @Test
    void aReplayFillsAGapOfEvents() throws Exception {
        ZeroMqPublisher publisher = publisher("t", Bounds.of(100, 5));
        int replays = publisher.listenForReplays(HOST, 0);
        assertThat(replay(replays, 0)).isEmpty();
        for (int i = 0; i < 12; i++) {
            publisher.publish(i, bytes(i));
        }

        assertThat(replay(replays, 9)).containsExactly(9L, 10L, 11L);
        assertThat(replay(replays, 0)).containsExactly(7L, 8L, 9L, 10L, 11L);
        assertThat(replay(replays, 12)).isEmpty();
        // As an unsigned number it is after all.
        assertThat(replay(replays, -1)).isEmpty();
    }

    @Test
    void eventsKeptForReplaysAreBoundedInBytes() throws Exception {
        ZeroMqPublisher publisher = publisher(
                "", new Bounds(0, 1 << 20, 1_000, 10_000, 4, 4, 100, Duration.ofSeconds(5), Duration.ofMinutes(1)));
        int replays = publisher.listenForReplays(HOST, 0);
        for (int i = 0; i < 20; i++) {
            publisher.publish(i, bytes(3_000));
        }
        assertThat(replay(replays, 0)).containsExactly(17L, 18L, 19L);
        publisher.publish(20, bytes(20_000));
        assertThat(replay(replays, 0)).isEmpty();
    }

    @Test
    void invalidBytesAtTheEventPortsEndTheirConnectionOnly() throws Exception {
        ZeroMqPublisher publisher = publisher("", bounds(10, 1 << 20, 8, Duration.ofSeconds(2)));
        int port = publisher.listen(HOST, 0);
        int replays = publisher.listenForReplays(HOST, 0);
        Peer subscriber = subscriber(port);
        subscriber.subscribe("");
        await(() -> publisher.subscribers() == 1);
        Random random = new Random(Long.getLong("tests.seed", 7));
        List<byte[]> bad = new ArrayList<>(List.of(
                new byte[0],
                text("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                greetingAndReady("PUSH"),
                slice(greetingAndReady("SUB"), 30)));
        for (String type : List.of("SUB", "DEALER")) {
            for (String message : List.of(
                    // Neither 0 nor 1; nothing; two frames; a size that is not there; too long; a half.
                    "000102", "0000", "01010100", "02ffffffffffffffff", "020000000000100000", "0005016162")) {
                bad.add(concat(greetingAndReady(type), HexFormat.of().parseHex(message)));
            }
            for (int i = 0; i < 20; i++) {
                byte[] noise = new byte[random.nextInt(1, 200)];
                random.nextBytes(noise);
                bad.add(concat(greetingAndReady(type), noise));
            }
        }
        // More subscriptions than allowed.
        byte[] many = greetingAndReady("SUB");
        for (int i = 0; i < 5; i++) {
            many = concat(many, new byte[] {0, 2, 1, (byte) ('a' + i)});
        }
        bad.add(many);
        for (byte[] bytes : bad) {
            for (int each : List.of(port, replays)) {
                try (Socket socket = new Socket(LOOPBACK, each)) {
                    socket.setSoTimeout((int) SOON.toMillis());
                    write(socket, bytes);
                    socket.shutdownOutput();
                    readToEnd(socket);
                }
            }
        }
        await(() -> publisher.subscribers() == 1);
        publisher.publish(0, text("still here"));
        assertThat(subscriber.receive().getLast()).isEqualTo(text("still here"));
        assertThat(replay(replays, 0)).containsExactly(0L);
    }

    @Test
    void aReplayRequestOfAnotherFormEndsItsConnection() throws Exception {
        ZeroMqPublisher publisher = publisher("", Bounds.of(10, 10));
        int replays = publisher.listenForReplays(HOST, 0);
        for (List<byte[]> request : List.of(
                List.of(eight(0)), List.of(new byte[0], new byte[7]), List.of(new byte[0], eight(0), new byte[0]))) {
            Peer peer = peer(replays, "DEALER", Set.of("ROUTER"));
            peer.send(request);
            assertThatThrownBy(peer::receive).isInstanceOf(IOException.class);
        }
    }

    @Test
    void anEventPortRefusesSubscribersBeyondItsLimitAndKeepsThoseItHas() throws Exception {
        ZeroMqPublisher publisher = publisher("", bounds(10, 1 << 20, 2, Duration.ofSeconds(5)));
        int port = publisher.listen(HOST, 0);
        List<Peer> kept = List.of(subscriber(port), subscriber(port));
        for (Peer each : kept) {
            each.subscribe("");
        }
        await(() -> publisher.subscribers() == 2);
        Peer more = subscriber(port);
        assertThatThrownBy(more::receive).isInstanceOf(IOException.class);

        publisher.publish(1, bytes(1));
        for (Peer each : kept) {
            assertThat(each.receive()).hasSize(3);
        }
    }

    @Test
    void onlyAllowedHostsGetEvents() throws Exception {
        ZeroMqPublisher publisher =
                new ZeroMqPublisher("", Bounds.of(10, 10), _ -> false, PeerAccess.everyone(), CLOCK);
        open.add(publisher);
        for (int port : List.of(publisher.listen(HOST, 0), publisher.listenForReplays(HOST, 0))) {
            assertThatThrownBy(() -> subscriber(port)).isInstanceOf(IOException.class);
        }
    }

    @Test
    void eventsGoToASubscriberThatListensAndAgainWhenItIsBack() throws Exception {
        ZeroMqPublisher publisher = publisher("kv", Bounds.of(10, 0));
        int port = FreePorts.inARow(1);
        try (ServerSocket server = new ServerSocket(port, 1, LOOPBACK)) {
            publisher.connect(HOST, port);
            for (int i = 0; i < 2; i++) {
                Peer peer = new Peer(server.accept(), "SUB", Set.of("PUB"));
                peer.subscribe("kv");
                await(() -> publisher.subscribers() == 1);
                publisher.publish(i, bytes(5));
                assertThat(peer.receive()).containsExactly(text("kv"), eight(i), bytes(5));
                peer.close();
                await(() -> publisher.subscribers() == 0);
            }
        }
        try (ZContext context = new ZContext()) {
            ZMQ.Socket sub = context.createSocket(SocketType.SUB);
            sub.setReceiveTimeOut(10);
            sub.setHandshakeIvl(300);
            sub.subscribe("");
            sub.bind("tcp://" + HOST + ":" + port);
            // A ZeroMQ socket that listens sends its subscriptions when its user calls it.
            await(() -> sub.recv() == null && publisher.subscribers() == 1);
            sub.setReceiveTimeOut((int) SOON.toMillis());
            publisher.publish(9, bytes(5));
            assertThat(sub.recvStr()).isEqualTo("kv");
            assertThat(sub.recv()).isEqualTo(eight(9));
        }
    }

    @Test
    void messagesThatWaitForASubscriberAreFlushed() throws Exception {
        ZeroMqPublisher publisher = publisher("", Bounds.of(0, 0));
        Peer peer = subscriber(publisher.listen(HOST, 0));
        peer.subscribe("");
        await(() -> publisher.subscribers() == 1);
        LongStream.range(0, 1_000).forEach(i -> publisher.publish(i, bytes(100)));
        publisher.flush(Deadline.after(CLOCK, SOON));
        publisher.close();
        for (long i = 0; i < 1_000; i++) {
            assertThat(peer.receive().get(1)).isEqualTo(eight(i));
        }
    }

    @Test
    void anEventPortInUseIsNamedInTheError() throws Exception {
        ZeroMqPublisher publisher = publisher("", Bounds.of(0, 0));
        int port = publisher.listen(HOST, 0);
        assertThatThrownBy(() -> publisher.listenForReplays(HOST, port))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining("event replay cannot listen on " + HOST + ":" + port);
    }

    private ZeroMqPublisher publisher(String topic, Bounds bounds) {
        ZeroMqPublisher publisher = new ZeroMqPublisher(topic, bounds, _ -> true, PeerAccess.everyone(), CLOCK);
        open.add(publisher);
        return publisher;
    }

    /** Four subscriptions, ten replayed messages. */
    private static Bounds bounds(int hwm, long bytes, int connections, Duration exchange) {
        return new Bounds(hwm, bytes, 10, bytes, connections, 4, 100, exchange, Duration.ofMinutes(1));
    }

    private Peer subscriber(int port) throws IOException {
        return peer(port, "SUB", Set.of("PUB"));
    }

    private Peer peer(int port, String type, Set<String> peers) throws IOException {
        Peer peer = new Peer(new Socket(LOOPBACK, port), type, peers);
        open.add(peer);
        return peer;
    }

    /** The numbers of the messages that are sent again. */
    private List<Long> replay(int port, long from) throws IOException {
        Peer peer = peer(port, "DEALER", Set.of("ROUTER"));
        peer.send(List.of(new byte[0], eight(from)));
        List<Long> numbers = new ArrayList<>();
        while (true) {
            List<byte[]> answer = peer.receive();
            assertThat(answer).hasSize(4);
            assertThat(answer.getFirst()).isEmpty();
            long number = ByteBuffer.wrap(answer.get(2)).getLong();
            if (number == -1) {
                assertThat(answer.get(1)).isEmpty();
                assertThat(answer.get(3)).isEmpty();
                return numbers;
            }
            numbers.add(number);
        }
    }

    /** A connection by Baton's own ZMTP. */
    private static final class Peer implements AutoCloseable {
        private final Socket socket;
        private final Zmtp zmtp;

        Peer(Socket socket, String type, Set<String> peers) throws IOException {
            this.socket = socket;
            socket.setSoTimeout((int) SOON.toMillis());
            zmtp = Zmtp.over(socket, PeerAccess.everyone(), true, 8, 64 << 20);
            zmtp.handshake(type, peers);
        }

        void subscribe(String prefix) throws IOException {
            send(List.of(text("\1" + prefix)));
        }

        void send(List<byte[]> frames) throws IOException {
            zmtp.send(frames);
        }

        List<byte[]> receive() throws IOException {
            return zmtp.receive();
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }

    private static byte[] greetingAndReady(String type) {
        byte[] greeting = new byte[64];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        System.arraycopy(text("NULL"), 0, greeting, 12, 4);
        byte[] command = concat(
                text("\5READY\13Socket-Type"),
                concat(ByteBuffer.allocate(4).putInt(type.length()).array(), text(type)));
        return concat(concat(greeting, new byte[] {4, (byte) command.length}), command);
    }

    private static void await(BooleanSupplier condition) {
        long end = System.nanoTime() + SOON.toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime() - end).as("time left").isNegative();
            LockSupport.parkNanos(1_000_000);
        }
    }

    private static void write(Socket socket, byte[] bytes) {
        try {
            socket.getOutputStream().write(bytes);
        } catch (IOException e) {
            // It may be refused before everything is written.
        }
    }

    private static byte[] slice(byte[] bytes, int length) {
        return Arrays.copyOf(bytes, length);
    }

    private static byte[] eight(long number) {
        return ByteBuffer.allocate(8).putLong(number).array();
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] bytes(int count) {
        byte[] bytes = new byte[count];
        IntStream.range(0, count).forEach(i -> bytes[i] = (byte) (i * 31));
        return bytes;
    }
}
