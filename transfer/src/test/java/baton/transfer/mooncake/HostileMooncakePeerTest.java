package baton.transfer.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.messages.PeerAccess;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.select.TransferAgents;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.json.JsonMapper;

/** Messages byte by byte, and an agent's handling of peers that break Mooncake's protocols. */
@Timeout(300)
class HostileMooncakePeerTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final String HOST = "127.0.0.1";
    private static final Duration LONG = Duration.ofMinutes(2);
    private static final int BYTES = 1 << 20;
    private static final int CONNECTIONS = 8;
    private static final MooncakeAgentSettings SETTINGS = MooncakeAgentSettings.at(HOST)
            .withStall(Duration.ofMillis(500))
            .withLimits(new MooncakeAgentSettings.Limits(CONNECTIONS, 4, 1 << 16, 16, 100, 1000, 20_000));

    private static final long OK = 0x4D43545600000000L;
    private static final long REJECTED = OK + 1;
    private static final int READ = 0;
    private static final int WRITE = 1;
    private static final int V2 = 0x80;

    private final long seed = Long.getLong("tests.seed", new Random().nextLong());
    private final Random random = new Random(seed);
    private final Arena arena = Arena.ofShared();
    private final List<AutoCloseable> open = new ArrayList<>();
    private MooncakeAgent agent;
    private MemorySegment around;
    private MemorySegment memory;
    private SegmentDescriptor descriptor;

    @BeforeEach
    void open() throws Exception {
        agent = opened(MooncakeAgent.open(SETTINGS));
        around = arena.allocate(4L * BYTES, 64);
        memory = around.asSlice(BYTES, BYTES);
        agent.register(new Region(memory, Optional.empty()));
        // Touches the first one.
        agent.register(new Region(around.asSlice(2L * BYTES, BYTES), Optional.empty()));
        descriptor = SegmentDescriptor.parse(JSON, exchange(1, "{}"));
    }

    /** Whatever was sent, memory is as it was and the agent still serves. */
    @AfterEach
    void theAgentStillServesAnHonestPeer() throws Exception {
        assertThat(around.mismatch(arena.allocate(4L * BYTES))).isEqualTo(-1);
        memory.fill((byte) 9);
        MooncakeAgent honest = opened(MooncakeAgent.open(MooncakeAgentSettings.at(HOST)));
        MemorySegment own = arena.allocate(BYTES, 64);
        honest.register(new Region(own, Optional.empty()));
        Peer peer = honest.connect(agent.metadata(), LONG);
        assertThat(finish(honest.start(
                        Operation.READ,
                        peer,
                        List.of(new Range(own.address(), memory.address(), BYTES)),
                        Optional.empty(),
                        LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(own.mismatch(memory)).isEqualTo(-1);
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
        arena.close();
    }

    private <T extends AutoCloseable> T opened(T resource) {
        open.add(resource);
        return resource;
    }

    private Socket data() throws IOException {
        return socket(descriptor.dataPort());
    }

    private static Socket socket(int port) throws IOException {
        Socket socket = new Socket(InetAddress.getLoopbackAddress(), port);
        socket.setSoTimeout(30_000);
        return socket;
    }

    private static byte[] header(int operation, long address, long bytes) {
        return little(24).putLong(bytes).putLong(address).put((byte) operation).array();
    }

    private static ByteBuffer little(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static long status(Socket socket) throws IOException {
        byte[] status = socket.getInputStream().readNBytes(8);
        assertThat(status).hasSize(8);
        return ByteBuffer.wrap(status).order(ByteOrder.LITTLE_ENDIAN).getLong();
    }

    private static boolean isEnded(Socket socket) throws IOException {
        byte[] rest = new byte[4096];
        try {
            while (socket.getInputStream().read(rest) >= 0) {
                // Earlier messages.
            }
            return true;
        } catch (SocketException _) {
            return true;
        }
    }

    private static byte[] handshake(int type, String json) {
        byte[] text = json.getBytes(StandardCharsets.UTF_8);
        return little(9 + text.length)
                .putLong(text.length + 1)
                .put((byte) type)
                .put(text)
                .array();
    }

    private byte[] exchange(int type, String json) throws IOException {
        try (Socket socket = socket(agent.rpc().port())) {
            socket.getOutputStream().write(handshake(type, json));
            return answer(socket, type);
        }
    }

    private static byte[] answer(Socket socket, int type) throws IOException {
        long length = status(socket);
        assertThat(socket.getInputStream().read()).isEqualTo(type);
        return socket.getInputStream().readNBytes((int) length - 1);
    }

    /** Outside of all registered memory, across two buffers, and numbers that overflow. */
    private long[][] outside() {
        long start = memory.address();
        return new long[][] {
            {start - 1, 2},
            {start - 1, 1},
            {start, BYTES + 1L},
            {start + BYTES - 1, 2},
            {start + 2L * BYTES - 1, 2},
            {start + 2L * BYTES, 1},
            {0, 1},
            {-1, 1},
            {start, 0},
            {start, -1},
            {start, Long.MAX_VALUE},
            {start, Long.MIN_VALUE},
            {Long.MAX_VALUE, Long.MAX_VALUE},
            {Long.MIN_VALUE, 1}
        };
    }

    @Test
    void rangesOutsideOneRegisteredBufferAreRejected() throws IOException {
        for (long[] range : outside()) {
            for (int operation : new int[] {READ, WRITE, 7}) {
                try (Socket socket = data()) {
                    socket.getOutputStream().write(header(operation | V2, range[0], range[1]));
                    socket.getOutputStream().write(new byte[100]);
                    assertThat(status(socket)).isEqualTo(REJECTED);
                    assertThat(socket.getInputStream().read()).isEqualTo(-1);
                }
                try (Socket socket = data()) {
                    socket.getOutputStream().write(header(operation, range[0], range[1]));
                    assertThat(socket.getInputStream().read()).isEqualTo(-1);
                }
            }
        }
    }

    @Test
    void aRejectionArrivesThoughTheBodyIsStillBeingWritten() throws IOException {
        byte[] body = new byte[1 << 20];
        Arrays.fill(body, (byte) 7);
        try (Socket socket = data()) {
            socket.getOutputStream().write(header(WRITE | V2, memory.address() - 1, 32L * body.length));
            for (int i = 0; i < 32; i++) {
                socket.getOutputStream().write(body);
            }
            assertThat(status(socket)).isEqualTo(REJECTED);
        }
    }

    @Test
    void requestsThatFollowEachOtherAreAnsweredInOrderByBothVersions() throws IOException {
        try (Socket socket = data()) {
            ByteBuffer all = little(4 * 24 + 10);
            all.put(header(WRITE | V2, memory.address(), 5)).put(new byte[5]);
            all.put(header(READ | V2, memory.address(), 3));
            all.put(header(WRITE, memory.address() + 5, 5)).put(new byte[5]);
            all.put(header(READ, memory.address(), 2));
            // Byte by byte, so that no header is read at once.
            for (int i = 0; i < all.position(); i++) {
                socket.getOutputStream().write(all.get(i));
            }
            assertThat(status(socket)).isEqualTo(OK);
            assertThat(status(socket)).isEqualTo(OK);
            assertThat(socket.getInputStream().readNBytes(5)).containsOnly(0);
        }
    }

    @Test
    void aPeerThatStopsInTheMiddleIsDisconnectedAndAnIdleOneIsNot() throws IOException {
        try (Socket idle = data();
                Socket halfHeader = data();
                Socket halfBody = data();
                Socket takesNothing = data()) {
            halfHeader.getOutputStream().write(header(READ | V2, memory.address(), 1), 0, 23);
            halfBody.getOutputStream().write(header(WRITE | V2, memory.address(), 1000));
            halfBody.getOutputStream().write(new byte[999]);
            byte[] reads = new byte[24 * 1000];
            for (int at = 0; at < reads.length; at += 24) {
                System.arraycopy(header(READ | V2, memory.address(), BYTES), 0, reads, at, 24);
            }
            takesNothing.getOutputStream().write(reads);
            assertThat(isEnded(halfHeader)).isTrue();
            assertThat(isEnded(halfBody)).isTrue();
            assertThatThrownBy(() -> {
                        for (int i = 0; i < 1_000_000; i++) {
                            takesNothing.getOutputStream().write(reads);
                        }
                    })
                    .isInstanceOf(IOException.class);
            idle.getOutputStream().write(header(READ | V2, memory.address(), 1));
            assertThat(status(idle)).isEqualTo(OK);
        }
    }

    @Test
    void aNewConnectionTakesTheOldestIdleOnesPlaceAndNoBusyOnes() throws Exception {
        MooncakeAgent patient = opened(MooncakeAgent.open(SETTINGS.withStall(LONG)));
        patient.register(new Region(memory, Optional.empty()));
        int port = descriptorOf(patient).dataPort();
        List<Socket> sockets = new ArrayList<>();
        for (int i = 0; i < CONNECTIONS; i++) {
            Socket socket = opened(socket(port));
            sockets.add(socket);
            // Served before the next one comes.
            socket.getOutputStream().write(header(READ | V2, memory.address(), 1));
            assertThat(status(socket)).isEqualTo(OK);
            assertThat(socket.getInputStream().read()).isZero();
        }
        Socket another = opened(socket(port));
        another.getOutputStream().write(header(READ | V2, memory.address(), 1));
        assertThat(status(another)).isEqualTo(OK);
        assertThat(another.getInputStream().read()).isZero();
        assertThat(isEnded(sockets.getFirst())).isTrue();
        sockets.set(0, another);
        for (Socket socket : sockets) {
            socket.getOutputStream().write(header(WRITE | V2, memory.address(), 2));
            socket.getOutputStream().write(0);
        }
        await("all are busy", () -> patient.server().busy() == CONNECTIONS);
        try (Socket more = socket(port)) {
            assertThat(isEnded(more)).isTrue();
        }
        for (Socket socket : sockets) {
            socket.getOutputStream().write(0);
            assertThat(status(socket)).isEqualTo(OK);
        }
    }

    private static SegmentDescriptor descriptorOf(MooncakeAgent agent) throws Exception {
        try (Socket socket = socket(agent.rpc().port())) {
            socket.getOutputStream().write(handshake(1, "{}"));
            return SegmentDescriptor.parse(JSON, answer(socket, 1));
        }
    }

    @Test
    void handshakesThatAreNoneAreClosed() throws IOException {
        List<byte[]> wrong = new ArrayList<>();
        wrong.add(little(8).putLong(0).array());
        wrong.add(little(8).putLong(-1).array());
        wrong.add(little(8).putLong((1 << 16) + 1).array());
        wrong.add(little(8).putLong(Long.MAX_VALUE).array());
        // Announced and never sent; more of them than are served at a time.
        for (int i = 0; i < 12; i++) {
            wrong.add(little(9).putLong(1 << 16).put((byte) 1).array());
        }
        wrong.add(new byte[3]);
        wrong.add(handshake(2, "no JSON"));
        wrong.add(handshake(2, "[".repeat(5000)));
        List<Socket> sockets = new ArrayList<>();
        for (byte[] bytes : wrong) {
            Socket socket = opened(socket(agent.rpc().port()));
            socket.getOutputStream().write(bytes);
            sockets.add(socket);
        }
        for (int i = 0; i < sockets.size(); i++) {
            assertThat(isEnded(sockets.get(i)))
                    .as(Arrays.toString(Arrays.copyOf(wrong.get(i), 12)))
                    .isTrue();
        }
    }

    @Test
    void connectionRequestsAreAnsweredWithEmptyFieldsAndWithoutATypeToo() throws IOException {
        assertThat(new String(exchange(0, "{}"), StandardCharsets.UTF_8))
                .contains("\"reply_msg\":\"\"", "\"qp_num\":[]");
        assertThat(new String(exchange(3, "{}"), StandardCharsets.UTF_8)).contains("\"status\":\"success\"");
        try (Socket socket = socket(agent.rpc().port())) {
            socket.getOutputStream()
                    .write(little(10).putLong(2).put((byte) '{').put((byte) '}').array());
            long length = status(socket);
            assertThat(new String(socket.getInputStream().readNBytes((int) length), StandardCharsets.UTF_8))
                    .startsWith("{\"payload\"");
        }
    }

    @Test
    void notificationsThatAreNotTakenAreRefusedAndComeOnceThereIsRoom() throws Exception {
        String text = "x".repeat(900);
        int taken = 0;
        while (new String(exchange(2, "{\"name\":\"n\",\"notify_msg\":\"" + text + "\"}"), StandardCharsets.UTF_8)
                .contains("success")) {
            taken++;
            assertThat(taken).isLessThan(30);
        }
        assertThat(new String(
                        exchange(2, "{\"name\":\"n\",\"notify_msg\":\"" + "x".repeat(1001) + "\"}"),
                        StandardCharsets.UTF_8))
                .contains("\"notify_msg\":\"\"");
        MooncakeAgent other = opened(MooncakeAgent.open(MooncakeAgentSettings.at(HOST)));
        other.notify(other.connect(agent.metadata(), LONG), text.getBytes(StandardCharsets.UTF_8));
        assertThat(agent.takeNotifications()).hasSize(taken);
        await("the one that was refused", () -> agent.takeNotifications().size() == 1);
    }

    @Test
    void noiseNeitherPassesNorHangs() throws IOException {
        for (int round = 0; round < 200; round++) {
            try (Socket socket = round % 2 == 0 ? data() : socket(agent.rpc().port())) {
                byte[] noise = new byte[random.nextInt(300)];
                random.nextBytes(noise);
                if (round % 4 == 0 && noise.length > 24) {
                    System.arraycopy(
                            header(random.nextInt(256), memory.address() - 1, 1 + random.nextInt(100)),
                            0,
                            noise,
                            0,
                            17);
                }
                socket.getOutputStream().write(noise);
                socket.shutdownOutput();
                assertThat(isEnded(socket))
                        .as("tests.seed=%d round %d", seed, round)
                        .isTrue();
            } catch (SocketException e) {
                // The agent hung up before all was sent.
                assertThat(e).isNotNull();
            }
        }
    }

    @Test
    void onlyAllowedPeersAreServedAndConnectedTo() throws Exception {
        PeerAccess others = PeerAccess.of(
                JsonFields.parse("extra", "{\"allowed_peers\": [\"127.0.0.2/32\"], \"kv_auth_secret_file\": null}"),
                "host",
                HOST,
                List.of());
        MooncakeAgent guarded = opened(MooncakeAgent.open(SETTINGS.withAccess(Optional.of(others))));
        for (int port : new int[] {guarded.rpc().port(), guarded.server().port()}) {
            try (Socket socket = socket(port)) {
                assertThat(isEnded(socket)).isTrue();
            }
        }
        assertThat(others.takeRefused()).isPositive();
        assertThatThrownBy(() -> guarded.connect(agent.metadata(), LONG))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("not an allowed peer");
    }

    @Test
    void aHostThatOthersReachNeedsListedPeers() {
        PeerAccess nobodyListed = PeerAccess.of(JsonFields.empty("extra"), "host", "192.0.2.1", List.of());
        assertThatThrownBy(() ->
                        MooncakeAgent.open(MooncakeAgentSettings.at("192.0.2.1").withAccess(Optional.of(nobodyListed))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("allowed_peers")
                .hasMessageContaining("--kv-allow-unauthenticated");
        assertThatThrownBy(() -> MooncakeAgent.open(MooncakeAgentSettings.at("0.0.0.0")))
                .isInstanceOf(ConfigException.class);
    }

    @ParameterizedTest
    @ValueSource(strings = {"tcp", "rdma"})
    void encryptionIsRefusedAtTheStart(String protocol, @TempDir Path directory) throws IOException {
        Path secret = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        JsonFields extra = JsonFields.parse(
                "extra",
                "{\"transfer_agent\": \"mooncake\", \"protocol\": \"%s\", \"kv_encryption\": \"required\", \"kv_auth_secret_file\": \"%s\"}"
                        .formatted(protocol, secret));
        PeerAccess access = PeerAccess.of(extra, "host", HOST, List.of());
        assertThatThrownBy(() -> TransferAgents.open(
                        "test", extra, EmbeddedAgent.Settings.at(HOST).withAccess(Optional.of(access))))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "extra.transfer_agent: is mooncake: Baton cannot encrypt its connections, but kv_encryption is required");
    }

    // Peers that answer

    /** A handshake daemon that answers everything with a text, and a scripted data port. */
    private static final class Fake implements AutoCloseable {
        private final ServerSocket daemon = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private final ServerSocket port = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private volatile String answer = "";
        private volatile boolean closed;

        private interface Behaviour {
            void serve(Socket socket) throws IOException;
        }

        Fake(Behaviour behaviour) throws IOException {
            answer = described(port.getLocalPort(), 2, HOST);
            accept(daemon, socket -> {
                long length = status(socket);
                socket.getInputStream().readNBytes((int) length);
                socket.getOutputStream().write(handshake(1, answer));
                isEnded(socket);
            });
            accept(port, behaviour);
        }

        String described(int dataPort, int version, String host) {
            return """
                    {"name":"x","protocol":"tcp","tcp_data_port":%d,"tcp_data_host":"%s","tcp_proto_version":%d,
                     "buffers":[{"name":"x","addr":18446744073709547520,"length":4096},{"name":"x","addr":9007199254740993,"length":9007199254740993}]}""".formatted(dataPort, host, version);
        }

        private void accept(ServerSocket server, Behaviour behaviour) {
            Thread.ofVirtual().start(() -> {
                while (!closed) {
                    try {
                        Socket socket = server.accept();
                        socket.setSoTimeout(30_000);
                        Thread.ofVirtual().start(() -> {
                            try (socket) {
                                behaviour.serve(socket);
                            } catch (IOException _) {
                                // The agent hung up.
                            }
                        });
                    } catch (IOException _) {
                        return;
                    }
                }
            });
        }

        byte[] name() {
            return (HOST + ":" + daemon.getLocalPort()).getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public void close() throws IOException {
            closed = true;
            daemon.close();
            port.close();
        }
    }

    private Transfer start(Operation operation, Peer peer, long remote, int bytes, Duration timeout) {
        return agent.start(
                operation, peer, List.of(new Range(memory.address(), remote, bytes)), Optional.empty(), timeout);
    }

    @Test
    void addressesAbove2To53AreExact() throws Exception {
        SegmentDescriptor parsed = SegmentDescriptor.parse(
                JSON, opened(new Fake(HostileMooncakePeerTest::isEnded)).answer.getBytes(StandardCharsets.UTF_8));
        assertThat(parsed.buffers())
                .containsExactly(
                        new SegmentDescriptor.Buffer(-4096, 4096),
                        new SegmentDescriptor.Buffer((1L << 53) + 1, (1L << 53) + 1));
        assertThat(parsed.holds((1L << 53) + 1, (1L << 53) + 1)).isTrue();
        assertThat(parsed.holds(1L << 53, 1)).isFalse();
        assertThat(parsed.holds((1L << 53) + 1, (1L << 53) + 2)).isFalse();
        assertThat(parsed.holds(-1, 1)).isTrue();
        assertThat(parsed.holds(-1, 2)).isFalse();
        String json = parsed.toJson(JSON, Instant.EPOCH).toString();
        assertThat(json)
                .contains("\"addr\":18446744073709547520", "\"addr\":9007199254740993", "1970-01-01 00:00:00.000000");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "[]",
                "{}",
                "{\"protocol\":\"rdma\",\"tcp_data_port\":1}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":0}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":70000}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":0,\"length\":1}]}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":1,\"length\":1.5}]}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"buffers\":[{\"addr\":18446744073709551616,\"length\":1}]}",
                "{\"protocol\":\"tcp\",\"tcp_data_port\":1,\"tcp_data_host\":\"nowhere.invalid\"}"
            })
    void aDescriptorThatIsNoneIsRefused(String answer) throws Exception {
        Fake fake = opened(new Fake(HostileMooncakePeerTest::isEnded));
        fake.answer = answer;
        assertThatThrownBy(() -> agent.connect(fake.name(), LONG)).isInstanceOf(TransferException.class);
    }

    @Test
    void aDataPortAtAHostThatIsNotAllowedIsNotConnectedTo() throws Exception {
        PeerAccess access = PeerAccess.of(
                JsonFields.parse("extra", "{\"allowed_peers\": [\"127.0.0.1/32\"]}"), "host", HOST, List.of());
        MooncakeAgent guarded = opened(MooncakeAgent.open(SETTINGS.withAccess(Optional.of(access))));
        Fake fake = opened(new Fake(HostileMooncakePeerTest::isEnded));
        for (String host : List.of("127.0.0.2", "a.name.not.listed")) {
            fake.answer = fake.described(9, 2, host);
            assertThatThrownBy(() -> guarded.connect(fake.name(), LONG))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining(host)
                    .hasMessageContaining("not an allowed peer");
        }
    }

    @Test
    void aPeerThatAnswersNonsenseOrNothingEndsOnlyItsTransfers() throws Exception {
        Fake nonsense = opened(new Fake(socket -> {
            socket.getInputStream().readNBytes(24);
            socket.getOutputStream().write(new byte[100]);
        }));
        Peer peer = agent.connect(nonsense.name(), LONG);
        assertFails(start(Operation.READ, peer, -4096, 100, LONG), Cause.TRANSPORT);
        Fake silent = opened(new Fake(HostileMooncakePeerTest::isEnded));
        Peer mute = agent.connect(silent.name(), LONG);
        for (Operation operation : Operation.values()) {
            assertFails(start(operation, mute, -4096, 100, Duration.ofMillis(50)), Cause.TIMEOUT);
        }
        Fake rejects = opened(new Fake(socket -> {
            socket.getInputStream().readNBytes(24);
            socket.getOutputStream().write(little(8).putLong(REJECTED).array());
        }));
        Peer strict = agent.connect(rejects.name(), LONG);
        for (Operation operation : Operation.values()) {
            assertFails(start(operation, strict, -4096, 100, LONG), Cause.REFUSED);
        }
        Fake hangsUp = opened(new Fake(socket -> socket.getInputStream().read()));
        Peer rude = agent.connect(hangsUp.name(), LONG);
        for (Operation operation : Operation.values()) {
            assertFails(start(operation, rude, -4096, 100, LONG), Cause.TRANSPORT);
            assertFails(start(operation, rude, 1, 100, LONG), Cause.REFUSED);
        }
    }

    /** The messages of an engine of version 1, in front of an agent that serves both. */
    @Test
    void version1IsSpokenWithEnginesThatHaveNoOther() throws Exception {
        MooncakeAgent old = opened(MooncakeAgent.open(MooncakeAgentSettings.at(HOST)));
        MemorySegment remoteMemory = arena.allocate(BYTES, 64);
        old.register(new Region(remoteMemory, Optional.empty()));
        Fake fake = opened(new Fake(HostileMooncakePeerTest::isEnded));
        SegmentDescriptor newer = descriptorOf(old);
        fake.answer = new SegmentDescriptor("old", "tcp", Optional.empty(), newer.dataPort(), 1, newer.buffers())
                .toJson(JSON, Instant.EPOCH)
                .toString();
        Peer peer = agent.connect(fake.name(), LONG);
        MemorySegment mine = arena.allocate(BYTES, 64);
        agent.register(new Region(mine, Optional.empty()));
        byte[] bytes = new byte[BYTES];
        random.nextBytes(bytes);
        MemorySegment.copy(bytes, 0, mine, ValueLayout.JAVA_BYTE, 0, BYTES);
        List<Range> ranges = new ArrayList<>();
        for (int at = 0; at < BYTES; at += 16_384) {
            ranges.add(new Range(mine.address() + at, remoteMemory.address() + BYTES - 16_384 - at, 16_384));
        }
        assertThat(finish(agent.start(Operation.WRITE, peer, ranges, Optional.empty(), LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(remoteMemory.asSlice(BYTES - 16_384).mismatch(mine.asSlice(0, 16_384)))
                .isEqualTo(-1);
        mine.fill((byte) 0);
        assertThat(finish(agent.start(Operation.READ, peer, ranges, Optional.empty(), LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(mine.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(bytes);
        for (Operation operation : Operation.values()) {
            assertFails(
                    agent.start(
                            operation,
                            peer,
                            List.of(new Range(mine.address(), remoteMemory.address() - 1, 100)),
                            Optional.empty(),
                            LONG),
                    Cause.REFUSED);
        }
    }

    private static void assertFails(Transfer transfer, Cause cause) {
        State state = finish(transfer);
        assertThat(state).isInstanceOf(State.Failed.class);
        assertThat(((State.Failed) state).cause())
                .as(((State.Failed) state).message())
                .isEqualTo(cause);
    }

    static State finish(Transfer transfer) {
        while (transfer.state() instanceof State.UnderWay) {
            LockSupport.parkNanos(100_000);
        }
        return transfer.state();
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void await(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (!condition.holds()) {
            assertThat(System.nanoTime()).as(what).isLessThan(deadline);
            LockSupport.parkNanos(1_000_000);
        }
    }
}
