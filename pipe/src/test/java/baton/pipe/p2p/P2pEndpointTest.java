package baton.pipe.p2p;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvFence;
import baton.kv.Ticker;
import baton.messages.AllowedPeers;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.TensorBytes;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.memory.MemoryTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pSettings.SendType;
import baton.pipe.p2p.P2pStats.Count;
import baton.pipe.p2p.TensorExchange.Received;
import baton.pipe.tcp.TcpTransport;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Several endpoints over real control sockets, with wires in memory or over TCP; and malicious peers. */
@Timeout(300)
class P2pEndpointTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final long BUFFER = 1 << 20;

    private final List<P2pEndpoint> endpoints = new ArrayList<>();
    private final MemoryTransport memory = new MemoryTransport();

    @AfterEach
    void close() {
        endpoints.forEach(P2pEndpoint::close);
    }

    @ParameterizedTest
    @CsvSource({"PUT,tcp", "PUT,memory", "PUT_ASYNC,tcp", "PUT_ASYNC,memory", "GET,tcp", "GET,memory"})
    void tensorsArriveInAnyOrderFromManyPeers(SendType type, String wires) throws Exception {
        P2pEndpoint taker = endpoint(type, wires, BUFFER);
        List<P2pEndpoint> senders = List.of(endpoint(type, wires, BUFFER), endpoint(type, wires, BUFFER));
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            order.add(i);
            send(senders.get(i % 2), taker, "r" + i + "#layer", 100 + 37 * i, i);
        }
        Collections.shuffle(order, new Random(3));
        for (int i : order) {
            try (Received tensor = taker.receive(senders.get(i % 2).address(), "r" + i + "#layer", SOON)) {
                assertThat(tensor.head().shape()).isEqualTo(head(100 + 37 * i).shape());
                assertFilled(tensor.data().host(), 100 + 37 * i, i);
            }
        }
        assertThat(taker.bufferUsed() + taker.poolUsed()).isZero();
        assertThat(taker.stats().get(Count.RECEIVED_TENSORS)).isEqualTo(60);
        until(() -> senders.stream().allMatch(sender -> sender.sendUsed() == 0));
        assertThat(senders.stream()
                        .mapToLong(sender -> sender.stats().get(Count.SENT_TENSORS))
                        .sum())
                .isEqualTo(60);
    }

    @Test
    void manyWaitAtOnceAndBothWays() throws Exception {
        P2pEndpoint a = endpoint(SendType.PUT_ASYNC, "tcp", BUFFER);
        P2pEndpoint b = endpoint(SendType.PUT_ASYNC, "tcp", BUFFER);
        List<CompletableFuture<Void>> waiting = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            int number = i;
            waiting.add(taken(a, b.address(), "to-a-" + number, 1000, number));
            waiting.add(taken(b, a.address(), "to-b-" + number, 1000, number));
        }
        for (int i = 15; i >= 0; i--) {
            send(b, a, "to-a-" + i, 1000, i);
            send(a, b, "to-b-" + i, 1000, i);
        }
        for (CompletableFuture<Void> each : waiting) {
            each.get(60, TimeUnit.SECONDS);
        }
    }

    /** Tensors beyond the buffer spill to the pool, beyond that the sender waits until one is taken. */
    @Test
    void aSlowReceiverStopsTheSenderAtTheBuffersSize() throws Exception {
        int tensors = 64;
        int bytes = 64 << 10;
        P2pEndpoint taker =
                open(settings(SendType.PUT_ASYNC, 4L * bytes, 2L * bytes, Duration.ofSeconds(60), SOON), "tcp");
        P2pEndpoint sender = open(settings(SendType.PUT_ASYNC, 4L * bytes, 0, Duration.ofSeconds(60), SOON), "tcp");
        CompletableFuture<Void> sending = new CompletableFuture<>();
        List<Integer> handedOver = Collections.synchronizedList(new ArrayList<>());
        Thread.ofVirtual().start(() -> {
            try {
                for (int i = 0; i < tensors; i++) {
                    send(sender, taker, "t" + i, bytes, i);
                    handedOver.add(i);
                }
                sending.complete(null);
            } catch (P2pException e) {
                sending.completeExceptionally(e);
            }
        });
        until(() ->
                taker.bufferUsed() == 4L * bytes && taker.poolUsed() == 2L * bytes && sender.sendUsed() == 4L * bytes);
        assertThat(sending).isNotDone();
        assertThat(handedOver.size()).isLessThanOrEqualTo(4 + 2 + 4);
        assertThat(taker.stats().get(Count.SPILLED_TENSORS)).isEqualTo(2);
        for (int i = 0; i < tensors; i++) {
            assertThat(taker.bufferUsed()).isLessThanOrEqualTo(4L * bytes);
            assertThat(taker.poolUsed()).isLessThanOrEqualTo(2L * bytes);
            assertThat(sender.sendUsed()).isLessThanOrEqualTo(4L * bytes);
            try (Received tensor = taker.receive(sender.address(), "t" + i, SOON)) {
                assertFilled(tensor.data().host(), bytes, i);
            }
        }
        sending.get(60, TimeUnit.SECONDS);
    }

    @Test
    void aTensorWithoutMemoryInTimeFailsOnBothSides() throws Exception {
        P2pEndpoint taker = open(settings(SendType.PUT, 1024, 0, Duration.ofMillis(1500), SOON), "tcp");
        P2pEndpoint sender = endpoint(SendType.PUT, "tcp", BUFFER);
        send(sender, taker, "fits", 1024, 1);
        assertFault(() -> send(sender, taker, "late", 512, 2), Fault.OUT_OF_MEMORY);
        assertFault(() -> send(sender, taker, "large", 4096, 2), Fault.OUT_OF_MEMORY);
        assertFault(() -> taker.receive(sender.address(), "late", SOON), Fault.OUT_OF_MEMORY);
        taker.receive(sender.address(), "fits", SOON).close();
        send(sender, taker, "now", 512, 3);
        taker.receive(sender.address(), "now", SOON).close();
        assertThat(taker.stats().get(Count.OUT_OF_MEMORY)).isEqualTo(2);
    }

    @Test
    void keptTensorsAreEvictedForLaterOnesAndGivenToTheirPeerOnly() throws Exception {
        P2pEndpoint taker = endpoint(SendType.GET, "tcp", BUFFER);
        P2pEndpoint stranger = endpoint(SendType.GET, "tcp", BUFFER);
        P2pEndpoint sender = open(settings(SendType.GET, 4096, 0, SOON, SOON), "tcp");
        for (int i = 0; i < 6; i++) {
            send(sender, taker, "t" + i, 1024, i);
        }
        assertThat(sender.stats().get(Count.EVICTED)).isEqualTo(2);
        assertFault(() -> stranger.receive(sender.address(), "t5", SOON), Fault.MISSING);
        assertFault(() -> taker.receive(sender.address(), "t0", SOON), Fault.MISSING);
        for (int i = 5; i > 1; i--) {
            try (Received tensor = taker.receive(sender.address(), "t" + i, SOON)) {
                assertFilled(tensor.data().host(), 1024, i);
            }
        }
        // Freed a moment after its bytes have arrived.
        until(() -> sender.sendUsed() == 0);
    }

    @Test
    void everyWaitEnds() throws Exception {
        P2pEndpoint taker = endpoint(SendType.PUT, "tcp", BUFFER);
        P2pEndpoint sender = endpoint(SendType.PUT, "tcp", BUFFER);
        assertFault(() -> taker.receive(sender.address(), "never", Duration.ofMillis(100)), Fault.DEADLINE);

        // One that is forgotten, and one with a peer that ends.
        CompletableFuture<Void> unwanted = taken(taker, sender.address(), "request#layer", 10, 0);
        CompletableFuture<Void> orphan = taken(taker, sender.address(), "other#layer", 10, 0);
        taker.forget("request");
        assertThatThrownBy(() -> unwanted.get(60, TimeUnit.SECONDS)).hasRootCauseInstanceOf(P2pException.class);
        assertFault(() -> send(sender, taker, "request#layer", 10, 0), Fault.OUT_OF_MEMORY);
        sender.close();
        assertThatThrownBy(() -> orphan.get(60, TimeUnit.SECONDS))
                .hasRootCauseMessage(sender.address() + " has gone: its connection has ended");
        assertFault(() -> taker.receive(sender.address(), "another", SOON), Fault.PEER_GONE);
        PeerAddress nowhere = new PeerAddress(HOST, FreePorts.inARow(1));
        assertFault(() -> taker.receive(nowhere, "x", SOON), Fault.PEER_GONE);
    }

    @ParameterizedTest
    @CsvSource({"PUT", "PUT_ASYNC", "GET"})
    void aRestartedPeerIsConnectedToAnew(SendType type) throws Exception {
        P2pEndpoint steady = endpoint(type, "tcp", BUFFER);
        P2pEndpoint first = endpoint(type, "tcp", BUFFER);
        int port = first.address().port();
        exchange(first, steady, "one");
        exchange(steady, first, "two");
        first.close();
        // A call that waits when the end is noticed waits for the peer's earlier life.
        assertFault(() -> steady.receive(first.address(), "nothing", SOON), Fault.PEER_GONE);
        P2pEndpoint again = open(at(settings(type, BUFFER, BUFFER, SOON, SOON), port), "tcp");
        exchange(again, steady, "three");
        exchange(steady, again, "four");
    }

    @Test
    void tensorsThatAreNotTakenExpire() throws Exception {
        Duration moment = Duration.ofMillis(50);
        P2pEndpoint taker = open(settings(SendType.PUT, BUFFER, BUFFER, SOON, moment), "tcp");
        P2pEndpoint sender = open(settings(SendType.GET, BUFFER, BUFFER, SOON, moment), "tcp");
        P2pEndpoint putter = endpoint(SendType.PUT, "tcp", BUFFER);
        send(putter, taker, "forgotten", 1000, 1);
        send(sender, taker, "kept", 1000, 1);
        until(() -> taker.bufferUsed() == 0 && sender.sendUsed() == 0);
        assertThat(taker.stats().get(Count.EXPIRED)).isEqualTo(1);
        assertThat(sender.stats().get(Count.EXPIRED)).isEqualTo(1);
    }

    /** A peer that accepts connections and reads nothing loses its own tensors, never those for other peers. */
    @Test
    void aStalledPeerDoesNotDelayOtherPeers() throws Exception {
        int bytes = 64 << 10;
        Duration transfer = Duration.ofSeconds(5);
        try (ServerSocket stalled = new ServerSocket(0, 50, InetAddress.ofLiteral(HOST))) {
            PeerAddress nowhere = new PeerAddress(HOST, stalled.getLocalPort());
            P2pEndpoint sender = open(settings(SendType.PUT_ASYNC, 8L * bytes, 0, transfer, SOON), "tcp");
            P2pEndpoint taker = endpoint(SendType.PUT_ASYNC, "tcp", BUFFER);
            P2pEndpoint other = endpoint(SendType.PUT_ASYNC, "tcp", BUFFER);
            exchange(sender, taker, "first");
            exchange(sender, other, "first");
            // All of the memory, each tensor of another request.
            for (int i = 0; i < 8; i++) {
                sender.send(nowhere, "stalled-" + i + "#layer", head(bytes), data -> KvFence.PASSED);
            }
            for (int i = 0; i < 20; i++) {
                send(sender, taker, "t" + i + "#layer", bytes, i);
                send(sender, other, "o" + i + "#layer", bytes, i);
                assertFault(
                        () -> sender.send(nowhere, "stalled-7#more", head(bytes), data -> KvFence.PASSED),
                        Fault.GIVEN_UP);
            }
            for (int i = 0; i < 20; i++) {
                taker.receive(sender.address(), "t" + i + "#layer", SOON).close();
                other.receive(sender.address(), "o" + i + "#layer", SOON).close();
            }
            assertThat(sender.stats().get(Count.PUSHED_OUT)).isPositive();
            // The last tensor is there before its sender has read the answer.
            until(() -> sender.stats().get(Count.SENT_TENSORS) == 2 + 40);
        }
    }

    /** One deadline for all steps of receiving a tensor, also if the peer accepts connections and is silent. */
    @ParameterizedTest
    @CsvSource({"PUT", "GET"})
    void connectingIsPartOfATensorsTime(SendType type) throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.ofLiteral(HOST))) {
            P2pEndpoint taker = endpoint(type, "tcp", BUFFER);
            PeerAddress peer = new PeerAddress(HOST, silent.getLocalPort());
            assertFault(() -> taker.receive(peer, "x", Duration.ofMillis(200)), Fault.DEADLINE);
        }
    }

    /** A thread that has waited while another one's connecting failed connects itself. */
    @Test
    void aConnectionIsMadeAfterAnotherThreadsConnectingTimedOut() throws Exception {
        CountDownLatch connecting = new CountDownLatch(1);
        CountDownLatch over = new CountDownLatch(1);
        PeerChannel channel = new FailingOnce(new ZeroMqPeerChannel(), new AtomicBoolean(), () -> {
            connecting.countDown();
            try {
                throw new MessageException("not in time: " + over.await(60, TimeUnit.SECONDS));
            } catch (InterruptedException e) {
                throw new MessageException("interrupted", e);
            }
        });
        P2pEndpoint taker = P2pEndpoint.open(
                settings(SendType.PUT, BUFFER, BUFFER, SOON, SOON), channel, new TcpTransport(), Ticker.system());
        endpoints.add(taker);
        P2pEndpoint sender = endpoint(SendType.PUT, "tcp", BUFFER);
        CompletableFuture<Void> inVain = taken(taker, sender.address(), "first", 10, 1);
        assertThat(connecting.await(60, TimeUnit.SECONDS)).isTrue();
        FutureTask<Integer> second = new FutureTask<>(() -> {
            try (Received tensor = taker.receive(sender.address(), "second", SOON)) {
                return (int) tensor.data().byteSize();
            }
        });
        Thread waiting = Thread.ofPlatform().daemon().start(second);
        until(() -> waiting.getState() == Thread.State.TIMED_WAITING);
        over.countDown();
        assertThatThrownBy(() -> inVain.get(60, TimeUnit.SECONDS)).hasRootCauseInstanceOf(MessageException.class);
        send(sender, taker, "second", 10, 2);
        assertThat(second.get(60, TimeUnit.SECONDS)).isEqualTo(10);
    }

    /** An exception of a process that has run out of a resource costs one tensor, not those after it. */
    @Test
    void anExceptionDoesNotStopTheTensorsQueuedBehind() throws Exception {
        P2pEndpoint taker = endpoint(SendType.PUT_ASYNC, "tcp", BUFFER);
        P2pEndpoint sender = P2pEndpoint.open(
                settings(SendType.PUT_ASYNC, BUFFER, BUFFER, SOON, SOON),
                new FailingOnce(new ZeroMqPeerChannel(), new AtomicBoolean(), () -> {
                    throw new OutOfMemoryError("no memory for a call");
                }),
                new TcpTransport(),
                Ticker.system());
        endpoints.add(sender);
        send(sender, taker, "lost", 1000, 1);
        until(() -> sender.stats().get(Count.SEND_FAILURES) == 1 && sender.sendUsed() == 0);
        exchange(sender, taker, "next");
        until(() -> sender.sendUsed() == 0);
    }

    /** How a call fails. */
    private interface Failure {
        void happen() throws MessageException;
    }

    /** The first call fails. */
    private record FailingOnce(PeerChannel channel, AtomicBoolean failed, Failure failure) implements PeerChannel {
        @Override
        public SideChannel.Listener listen(String host, int port, Reception reception) throws MessageException {
            return channel.listen(host, port, reception);
        }

        @Override
        public Call call(
                String host,
                int port,
                String identity,
                Duration timeout,
                Consumer<List<byte[]>> unasked,
                Runnable whenEnded)
                throws MessageException {
            if (failed.compareAndSet(false, true)) {
                failure.happen();
            }
            return channel.call(host, port, identity, timeout, unasked, whenEnded);
        }

        @Override
        public void close() {
            channel.close();
        }
    }

    @Test
    void aReceiveOfAnExpiredTensorFailsAtOnce() throws Exception {
        P2pEndpoint taker = open(settings(SendType.PUT, BUFFER, BUFFER, SOON, Duration.ofSeconds(1)), "tcp");
        P2pEndpoint putter = endpoint(SendType.PUT, "tcp", BUFFER);
        send(putter, taker, "forgotten", 1000, 1);
        until(() -> taker.bufferUsed() == 0);
        assertFault(() -> taker.receive(putter.address(), "forgotten", Duration.ofSeconds(5)), Fault.MISSING);
    }

    @Test
    void addressesThatAreNotAllowedAreNeverConnectedTo() throws Exception {
        try (ServerSocketChannel trap = ServerSocketChannel.open();
                PeerChannel peer = new ZeroMqPeerChannel()) {
            trap.bind(new InetSocketAddress(InetAddress.ofLiteral("127.0.0.2"), 0));
            trap.configureBlocking(false);
            int port = ((InetSocketAddress) trap.getLocalAddress()).getPort();
            P2pSettings all = settings(SendType.PUT, BUFFER, BUFFER, SOON, SOON);
            PeerAccess one = access("{\"allowed_peers\": [\"127.0.0.1/32\"]}");
            P2pEndpoint strict = open(
                    new P2pSettings(
                            HOST, 0, SendType.PUT, BUFFER, BUFFER, one, all.exchange(), all.transfer(), all.keep()),
                    "tcp");
            PeerAddress elsewhere = new PeerAddress("127.0.0.2", port);

            assertFault(() -> strict.receive(elsewhere, "x", SOON), Fault.REFUSED);
            assertFault(() -> strict.send(elsewhere, "x", head(1), data -> KvFence.PASSED), Fault.REFUSED);
            assertFault(() -> strict.receive(new PeerAddress("localhost", port), "x", SOON), Fault.REFUSED);
            byte[] leadsElsewhere = WireId.fresh(WireId.Kind.TCP, (InetSocketAddress) trap.getLocalAddress())
                    .encode();
            for (String identity : List.of(elsewhere.toString(), HOST + ":" + port, "nonsense", "evil.example:80")) {
                PeerChannel.Call call = peer.call(HOST, strict.address().port(), identity, SOON, () -> {});
                // The question behind it is answered, or the connection ended, when the first one has been dealt with.
                assertThatThrownBy(() -> {
                            call.tell(List.of(new P2pMessage.New(leadsElsewhere).encode()), SOON);
                            call.ask(List.of(new P2pMessage.Get("x").encode()), SOON);
                        })
                        .isInstanceOf(MessageException.class);
            }
            assertThat(trap.accept()).isNull();
            assertThat(strict.stats().get(Count.REFUSED_PEERS)).isGreaterThanOrEqualTo(5);
        }
    }

    @Test
    void aPeerThatDoesNotKnowTheSecretNeitherGetsNorPuts(@TempDir Path directory) throws Exception {
        P2pSettings plain = settings(SendType.PUT, BUFFER, BUFFER, SOON, SOON);
        P2pEndpoint taker = open(with(plain, secret(directory, "one")), "tcp");
        P2pEndpoint friend = open(with(plain, secret(directory, "one")), "tcp");
        send(friend, taker, "r#0", 1000, 1);
        try (Received tensor = taker.receive(friend.address(), "r#0", SOON)) {
            assertFilled(tensor.data().host(), 1000, 1);
        }
        for (PeerAccess other : List.of(plain.access(), secret(directory, "two"))) {
            P2pEndpoint stranger = open(with(plain, other), "tcp");
            assertFault(() -> send(stranger, taker, "x#0", 1000, 2), Fault.PEER_GONE);
            // Nor is anything asked of one, or given to it.
            assertFault(() -> send(taker, stranger, "x#0", 1000, 2), Fault.PEER_GONE);
        }
        try (PeerChannel peer = new ZeroMqPeerChannel()) {
            assertThatThrownBy(() -> peer.call(
                            HOST, taker.address().port(), friend.address().toString(), SOON, () -> {}))
                    .isInstanceOf(MessageException.class);
        }
        // A stranger may see the end of its connection before it is counted.
        until(() -> taker.stats().get(Count.REFUSED_PEERS) >= 2);
        assertThat(taker.stats().get(Count.RECEIVED_TENSORS)).isEqualTo(1);
        send(friend, taker, "r#1", 1000, 3);
        try (Received tensor = taker.receive(friend.address(), "r#1", SOON)) {
            assertFilled(tensor.data().host(), 1000, 3);
        }
    }

    @Test
    void strangersFromAddressesThatAreNotAllowedAreCounted() throws Exception {
        P2pSettings plain = settings(SendType.PUT, BUFFER, BUFFER, SOON, SOON);
        P2pEndpoint elsewhere = open(with(plain, access("{\"allowed_peers\": [\"192.0.2.1\"]}")), "tcp");
        try (PeerChannel strangers = new ZeroMqPeerChannel()) {
            assertThatThrownBy(() -> strangers.call(
                            HOST, elsewhere.address().port(), "192.0.2.1:1", Duration.ofSeconds(5), () -> {}))
                    .isInstanceOf(MessageException.class);
        }
        assertThat(elsewhere.stats().get(Count.REFUSED_PEERS)).isEqualTo(1);
    }

    private static PeerAccess secret(Path directory, String name) throws IOException {
        Path file = Files.writeString(directory.resolve(name), name.repeat(8));
        return access("{\"kv_auth_secret_file\": \"" + file + "\"}");
    }

    private static P2pSettings with(P2pSettings settings, PeerAccess access) {
        return new P2pSettings(
                settings.host(),
                settings.port(),
                settings.sendType(),
                settings.bufferBytes(),
                settings.poolBytes(),
                access,
                settings.exchange(),
                settings.transfer(),
                settings.keep());
    }

    @Test
    void allowedPeersAreHostsAddressesAndNetworks() {
        AllowedPeers some =
                AllowedPeers.of("allowed_peers", List.of("10.1.0.0/20", "Node-7.example", "fd00::/8", "192.0.2.7"));
        for (String host : List.of("10.1.0.1", "10.1.15.255", "node-7.EXAMPLE", "fd12::1", "192.0.2.7")) {
            assertThat(some.allows(host)).as(host).isTrue();
        }
        for (String host : List.of(
                "10.1.16.0", "10.2.0.1", "node-8.example", "fe80::1", "192.0.2.8", "127.0.0.1", "0.0.0.0", "")) {
            assertThat(some.allows(host)).as(host).isFalse();
        }
        AllowedPeers usual = AllowedPeers.byDefault("kv_ip", HOST);
        assertThat(usual.allows("127.0.0.9")).isTrue();
        assertThat(usual.allows("localhost")).isTrue();
        assertThat(usual.allows("169.254.169.254")).isFalse();
        for (String wrong : List.of("10.0.0.0/33", "10.0.0.0/x", "a b", "name/8", "")) {
            assertThatThrownBy(() -> AllowedPeers.of("allowed_peers", List.of(wrong)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("allowed_peers");
        }
    }

    /** For any control message the connection ends or is answered, memory is freed, and other peers are served. */
    @Test
    void fuzzedControlMessagesEndTheirConnectionOnly() throws Exception {
        long seed = Long.getLong("tests.seed", new Random().nextLong());
        System.out.println("P2pEndpointTest: -Dtests.seed=" + seed);
        Random random = new Random(seed);
        P2pEndpoint taker = open(settings(SendType.PUT, BUFFER, 0, Duration.ofMillis(200), SOON), "tcp");
        P2pEndpoint honest = endpoint(SendType.PUT, "tcp", BUFFER);
        List<byte[]> good = List.of(
                new P2pMessage.New(new byte[41]).encode(),
                new P2pMessage.New(WireId.fresh(WireId.Kind.TCP, new InetSocketAddress(InetAddress.ofLiteral(HOST), 1))
                                .encode())
                        .encode(),
                new P2pMessage.Put("fuzz#layer", head(1 << 12)).encode(),
                new P2pMessage.Put("fuzz#layer", new TensorHead("int64", List.of(1L << 40, 1L << 40), Optional.empty()))
                        .encode(),
                new P2pMessage.Put("fuzz#layer", new TensorHead("float8", List.of(), Optional.empty())).encode(),
                new P2pMessage.Get("x").encode());
        try (PeerChannel peer = new ZeroMqPeerChannel()) {
            for (int round = 0; round < 150; round++) {
                String identity = round % 10 == 0 ? "i".repeat(255) : HOST + ":" + (1 + random.nextInt(65_535));
                PeerChannel.Call call = peer.call(HOST, taker.address().port(), identity, SOON, () -> {});
                try (call) {
                    for (int message = 0; message < 4; message++) {
                        byte[] bytes = good.get(random.nextInt(good.size())).clone();
                        for (int change = random.nextInt(6); change > 0; change--) {
                            bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
                        }
                        byte[] cut =
                                random.nextInt(3) == 0 ? Arrays.copyOf(bytes, random.nextInt(bytes.length)) : bytes;
                        List<byte[]> frames =
                                random.nextInt(8) == 0 ? List.of(cut, new byte[random.nextInt(100_000)]) : List.of(cut);
                        call.tell(frames, SOON);
                    }
                } catch (MessageException e) {
                    assertThat(call.isOpen()).isFalse();
                }
                if (round % 25 == 0) {
                    exchange(honest, taker, "honest-" + round);
                }
            }
        }
        exchange(honest, taker, "after all");
        until(() -> taker.bufferUsed() == 0);
        assertThat(taker.stats().get(Count.MALFORMED)).isPositive();
        assertThat(taker.stats().get(Count.RECEIVED_TENSORS)).isEqualTo(7);
    }

    // ---- fixtures

    private interface Attempt {
        void run() throws P2pException;
    }

    private static void assertFault(Attempt attempt, Fault fault) {
        assertThatThrownBy(attempt::run)
                .isInstanceOfSatisfying(
                        P2pException.class,
                        e -> assertThat(e.fault()).as(e.getMessage()).isEqualTo(fault));
    }

    private void exchange(P2pEndpoint from, P2pEndpoint to, String id) throws Exception {
        send(from, to, id, 3000, 9);
        try (Received tensor = to.receive(from.address(), id, SOON)) {
            assertFilled(tensor.data().host(), 3000, 9);
        }
    }

    private static CompletableFuture<Void> taken(P2pEndpoint by, PeerAddress from, String id, int bytes, int value) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread.ofVirtual().start(() -> {
            try (Received tensor = by.receive(from, id, SOON)) {
                assertFilled(tensor.data().host(), bytes, value);
                done.complete(null);
            } catch (P2pException | RuntimeException | AssertionError e) {
                done.completeExceptionally(e);
            }
        });
        return done;
    }

    private static void send(P2pEndpoint from, P2pEndpoint to, String id, int bytes, int value) throws P2pException {
        from.send(to.address(), id, head(bytes), filled(value));
    }

    /** Fills a tensor with one value. */
    static Function<TensorBytes, KvFence> filled(int value) {
        return data -> {
            MemorySegment _ = data.host().fill((byte) value);
            return KvFence.PASSED;
        };
    }

    private static void assertFilled(MemorySegment data, int bytes, int value) {
        byte[] wanted = new byte[bytes];
        Arrays.fill(wanted, (byte) value);
        assertThat(data.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(wanted);
    }

    private static TensorHead head(long bytes) {
        return new TensorHead("uint8", List.of(bytes), Optional.empty());
    }

    private P2pEndpoint endpoint(SendType type, String wires, long buffer) throws MessageException {
        return open(settings(type, buffer, buffer, SOON, SOON), wires);
    }

    private P2pEndpoint open(P2pSettings settings, String wires) throws MessageException {
        WireTransport transport = wires.equals("tcp") ? new TcpTransport() : memory;
        P2pEndpoint endpoint =
                P2pEndpoint.open(settings, new ZeroMqPeerChannel(settings.access()), transport, Ticker.system());
        endpoints.add(endpoint);
        return endpoint;
    }

    private static P2pSettings settings(SendType type, long buffer, long pool, Duration transfer, Duration keep) {
        return new P2pSettings(HOST, 0, type, buffer, pool, access("{}"), SOON, transfer, keep);
    }

    private static PeerAccess access(String extra) {
        return PeerAccess.of(JsonFields.parse("", extra), "kv_ip", HOST, List.of());
    }

    private static P2pSettings at(P2pSettings settings, int port) {
        return new P2pSettings(
                settings.host(),
                port,
                settings.sendType(),
                settings.bufferBytes(),
                settings.poolBytes(),
                settings.access(),
                settings.exchange(),
                settings.transfer(),
                settings.keep());
    }

    static void until(BooleanSupplier condition) {
        long end = System.nanoTime() + SOON.toNanos();
        while (!condition.getAsBoolean() && System.nanoTime() < end) {
            Thread.onSpinWait();
        }
        assertThat(condition.getAsBoolean()).isTrue();
    }
}
