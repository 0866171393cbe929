package baton.transfer.mooncake;

import static baton.transfer.TransferAgentContract.fill;
import static baton.transfer.mooncake.HostileMooncakePeerTest.await;
import static baton.transfer.mooncake.HostileMooncakePeerTest.finish;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;

/** The agent and Mooncake's own engine, in both directions. */
@Timeout(300)
class RealEngineTest {
    private static final String HOST = "127.0.0.1";
    private static final int BYTES = 8 << 20;
    private static final Duration LONG = Duration.ofMinutes(2);
    private static final int BLOCK = 16 << 10;

    @TempDir
    Path directory;

    private final Arena arena = Arena.ofShared();
    private final List<AutoCloseable> open = new ArrayList<>();

    /** How the two find each other. */
    enum Metadata {
        P2P,
        /** {@code http_metadata_server.py}. */
        PYTHON,
        /** The server within {@code mooncake_master}, which does not decode keys. */
        MASTER
    }

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
        arena.close();
    }

    private <T extends AutoCloseable> T opened(T resource) {
        open.add(resource);
        return resource;
    }

    private String metadata(Metadata kind) throws Exception {
        if (kind == Metadata.P2P) {
            return MetadataSource.P2P;
        }
        int port = FreePorts.inARow(3);
        Path bin = Path.of(RealEngine.python()).resolveSibling("mooncake_master");
        List<String> command = kind == Metadata.PYTHON
                ? List.of(
                        RealEngine.python(),
                        "-m",
                        "mooncake.http_metadata_server",
                        "--host",
                        HOST,
                        "--port",
                        Integer.toString(port))
                : List.of(
                        bin.toString(),
                        "--rpc_address=" + HOST,
                        "--rpc_port=" + (port + 1),
                        "--metrics_port=" + (port + 2),
                        "--enable_http_metadata_server=true",
                        "--http_metadata_server_host=" + HOST,
                        "--http_metadata_server_port=" + port);
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("metadata.log").toFile())
                .start();
        opened(() -> {
            process.destroyForcibly();
            assertThat(process.waitFor(120, TimeUnit.SECONDS)).isTrue();
        });
        await("the metadata server listens", () -> {
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return socket.isConnected();
            } catch (IOException e) {
                return false;
            }
        });
        return "http://" + HOST + ":" + port + "/metadata";
    }

    private MooncakeAgent agent(String metadata, String segment) throws TransferException {
        MetadataSource source = MetadataSource.parse("metadata_server", metadata);
        return opened(MooncakeAgent.open(MooncakeAgentSettings.at(HOST)
                .withMetadata(
                        source instanceof MetadataSource.Http http
                                ? new MetadataSource.Http(http.address(), http.cluster(), Optional.of(segment))
                                : source)));
    }

    private RealEngine engine(String metadata, String segment, Map<String, String> environment) throws IOException {
        RealEngine engine = opened(RealEngine.start(
                directory, metadata.equals(MetadataSource.P2P) ? HOST : segment, metadata, BYTES, with(environment)));
        assertThat(engine.status()).isZero();
        return engine;
    }

    private static Map<String, String> with(Map<String, String> environment) {
        Map<String, String> all = new HashMap<>(environment);
        all.put("MC_TCP_BIND_ADDRESS", HOST);
        return all;
    }

    private MemorySegment registered(MooncakeAgent agent) throws TransferException {
        MemorySegment memory = arena.allocate(BYTES, 64);
        agent.register(new Region(memory, Optional.empty()));
        return memory;
    }

    @ParameterizedTest
    @EnumSource
    void bytesAndNotificationsGoBothWays(Metadata kind) throws Exception {
        String metadata = metadata(kind);
        RealEngine engine = engine(metadata, "engine:1234", Map.of());
        MooncakeAgent agent = agent(metadata, "baton:4321");
        MemorySegment memory = registered(agent);
        Peer peer = agent.connect(engine.name().getBytes(StandardCharsets.UTF_8), LONG);
        assertThat(peer.name()).isEqualTo(engine.name());

        thisAgentReadsAndWrites(agent, peer, memory, engine);
        theEngineReadsAndWrites(agent, memory, engine);

        agent.notify(peer, text("hello"));
        assertThat(finish(agent.start(
                        Operation.WRITE,
                        peer,
                        List.of(new Range(memory.address(), engine.address(), 100)),
                        Optional.of(text("after the write")),
                        LONG)))
                .isInstanceOf(State.Done.class);
        List<String> received = new ArrayList<>();
        await("both notifications", () -> {
            for (JsonNode each : engine.call("notifies")) {
                received.add(each.toString());
            }
            return received.size() == 2;
        });
        assertThat(received)
                .containsExactly(
                        "[\"" + agent.name() + "\",\"hello\"]", "[\"" + agent.name() + "\",\"after the write\"]");
        assertThat(engine.call(
                                "write_notifying",
                                agent.name(),
                                0,
                                memory.address(),
                                BYTES,
                                "engine",
                                "grüße \"with\" all \u0001 that JSON escapes")
                        .intValue())
                .isZero();
        List<Notification> notifications = new ArrayList<>();
        await("the engine's notification", () -> notifications.addAll(agent.takeNotifications()));
        assertThat(notifications).singleElement().satisfies(one -> {
            assertThat(one.from()).isEqualTo("engine");
            assertThat(one.message()).isEqualTo(text("grüße \"with\" all \u0001 that JSON escapes"));
        });
        assertThat(engine.call("probe", agent.name()).intValue()).isZero();
    }

    /** Versions that an engine can be set to, and connections for each request. */
    @ParameterizedTest
    @ValueSource(strings = {"MC_TCP_PROTO=1", "MC_TCP_ENABLE_CONNECTION_POOL=0", "MC_TCP_SLICE_SIZE=1000"})
    void enginesWithOtherSettingsReadAndWriteHere(String variable) throws Exception {
        String[] parts = variable.split("=", -1);
        RealEngine engine = engine(MetadataSource.P2P, "", Map.of(parts[0], parts[1]));
        MooncakeAgent agent = agent(MetadataSource.P2P, "");
        MemorySegment memory = registered(agent);
        theEngineReadsAndWrites(agent, memory, engine);
    }

    private void thisAgentReadsAndWrites(MooncakeAgent agent, Peer peer, MemorySegment memory, RealEngine engine)
            throws IOException {
        engine.call("fill", 1);
        assertThat(finish(agent.start(Operation.READ, peer, blocks(memory, engine), Optional.empty(), LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(digest(unscattered(memory)))
                .isEqualTo(engine.call("digest", 0, BYTES).stringValue());
        fill(memory, 2);
        assertThat(finish(agent.start(Operation.WRITE, peer, blocks(memory, engine), Optional.empty(), LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(engine.call("digest", 0, BYTES).stringValue()).isEqualTo(digest(unscattered(memory)));
        // Odd lengths and offsets.
        fill(memory, 3);
        assertThat(finish(agent.start(
                        Operation.WRITE,
                        peer,
                        List.of(new Range(memory.address() + 7, engine.address() + 1001, 65_537)),
                        Optional.empty(),
                        LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(engine.call("digest", 1001, 65_537).stringValue()).isEqualTo(digest(memory.asSlice(7, 65_537)));
    }

    private void theEngineReadsAndWrites(MooncakeAgent agent, MemorySegment memory, RealEngine engine)
            throws IOException {
        engine.call("fill", 4);
        assertThat(engine.call("write", agent.name(), 0, memory.address(), BYTES)
                        .intValue())
                .isZero();
        awaitDigest(memory, engine.call("digest", 0, BYTES).stringValue());
        fill(memory, 5);
        assertThat(engine.call("read", agent.name(), 0, memory.address(), BYTES).intValue())
                .isZero();
        assertThat(engine.call("digest", 0, BYTES).stringValue()).isEqualTo(digest(memory));
        List<Integer> offsets =
                IntStream.range(0, 200).map(i -> i * 5003).boxed().toList();
        List<Long> remotes = offsets.stream()
                .map(offset -> memory.address() + BYTES - 5003 - offset)
                .toList();
        List<Integer> lengths = Collections.nCopies(200, 4999);
        assertThat(engine.call("batch_write", agent.name(), offsets, remotes, lengths)
                        .intValue())
                .isZero();
        for (int i = 0; i < 200; i++) {
            awaitDigest(
                    memory.asSlice(BYTES - 5003 - offsets.get(i), 4999),
                    engine.call("digest", offsets.get(i), 4999).stringValue());
        }
        fill(memory, 6);
        assertThat(engine.call("batch_read", agent.name(), offsets, remotes, lengths)
                        .intValue())
                .isZero();
        for (int i = 0; i < 200; i++) {
            assertThat(engine.call("digest", offsets.get(i), 4999).stringValue())
                    .isEqualTo(digest(memory.asSlice(BYTES - 5003 - offsets.get(i), 4999)));
        }
    }

    /** All of the engine's buffer, in blocks that lie in no order here. */
    private static List<Range> blocks(MemorySegment memory, RealEngine engine) {
        List<Range> ranges = new ArrayList<>();
        List<Integer> order = order();
        for (int i = 0; i < order.size(); i++) {
            ranges.add(new Range(
                    memory.address() + (long) order.get(i) * BLOCK, engine.address() + (long) i * BLOCK, BLOCK));
        }
        return ranges;
    }

    private static List<Integer> order() {
        List<Integer> order =
                new ArrayList<>(IntStream.range(0, BYTES / BLOCK).boxed().toList());
        Collections.shuffle(order, new Random(1));
        return order;
    }

    private MemorySegment unscattered(MemorySegment memory) {
        MemorySegment whole = arena.allocate(BYTES);
        List<Integer> order = order();
        for (int i = 0; i < order.size(); i++) {
            MemorySegment.copy(memory, (long) order.get(i) * BLOCK, whole, (long) i * BLOCK, BLOCK);
        }
        return whole;
    }

    @Test
    void anEngineIsRefusedUnregisteredMemory() throws Exception {
        RealEngine engine = engine(MetadataSource.P2P, "", Map.of());
        MooncakeAgent agent = agent(MetadataSource.P2P, "");
        MemorySegment around = arena.allocate(3L * BYTES, 64);
        MemorySegment memory = around.asSlice(BYTES, BYTES);
        agent.register(new Region(memory, Optional.empty()));
        engine.call("fill", 7);
        for (long offset : new long[] {-1, 1, -BYTES, BYTES}) {
            assertThat(engine.call("write", agent.name(), 0, memory.address() + offset, BYTES)
                            .intValue())
                    .as("offset %d", offset)
                    .isNegative();
        }
        assertThat(around.mismatch(arena.allocate(3L * BYTES))).isEqualTo(-1);
        // An engine of 0.3.13 fails a valid request after some that were rejected, whatever the other end is.
        await(
                "a valid write",
                () -> engine.call("write", agent.name(), 0, memory.address(), BYTES)
                                .intValue()
                        == 0);
        assertThat(digest(memory)).isEqualTo(engine.call("digest", 0, BYTES).stringValue());
    }

    @Test
    void anEngineRefusesUnregisteredMemory() throws Exception {
        RealEngine engine = engine(MetadataSource.P2P, "", Map.of());
        MooncakeAgent agent = agent(MetadataSource.P2P, "");
        MemorySegment memory = registered(agent);
        Peer peer = agent.connect(text(engine.name()), LONG);
        for (Operation operation : Operation.values()) {
            for (long offset : new long[] {-1, 1}) {
                State state = finish(agent.start(
                        operation,
                        peer,
                        List.of(new Range(memory.address(), engine.address() + offset, BYTES)),
                        Optional.empty(),
                        LONG));
                assertThat(state).isInstanceOf(State.Failed.class);
                assertThat(((State.Failed) state).cause())
                        .as(((State.Failed) state).message())
                        .isEqualTo(Transfer.Cause.REFUSED);
            }
        }
        assertThat(peer.alive()).isTrue();
        thisAgentReadsAndWrites(agent, peer, memory, engine);
    }

    @Test
    void anEngineThatIsKilledIsGone() throws Exception {
        RealEngine engine = engine(MetadataSource.P2P, "", Map.of());
        MooncakeAgent agent = agent(MetadataSource.P2P, "");
        MemorySegment memory = registered(agent);
        Peer peer = agent.connect(text(engine.name()), LONG);
        engine.kill();
        await("its end is noticed", () -> !peer.alive());
        State state = finish(agent.start(
                Operation.READ,
                peer,
                List.of(new Range(memory.address(), engine.address(), 10)),
                Optional.empty(),
                LONG));
        assertThat(((State.Failed) state).cause()).isEqualTo(Transfer.Cause.PEER_GONE);
        assertThatThrownBy(() -> agent.connect(text(engine.name()), LONG))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining(engine.name());
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "P2P")
    void aNameThatACrashedEngineLeftIsRefusedWithTheKeyAndTheRemedy(Metadata kind) throws Exception {
        String metadata = metadata(kind);
        RealEngine engine = engine(metadata, "left:1", Map.of());
        engine.kill();
        assertThatThrownBy(() -> agent(metadata, "left:1"))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("mooncake/rpc_meta/left:1")
                .hasMessageContaining("curl -X DELETE '" + metadata + "?key=mooncake%2Frpc_meta%2Fleft%3A1'");
        // And the other way round: after an end in order the name is free.
        MooncakeAgent first = agent(metadata, "taken:1");
        assertThat(RealEngine.start(directory, "taken:1", metadata, 4096, with(Map.of()))
                        .status())
                .isNotZero();
        first.close();
        engine(metadata, "taken:1", Map.of());
    }

    @Test
    void anUnknownNameIsReportedWithItsKey() throws Exception {
        String metadata = metadata(Metadata.PYTHON);
        MooncakeAgent agent = agent(metadata, "baton");
        assertThatThrownBy(() -> agent.connect(text("nobody"), LONG))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("mooncake/rpc_meta/nobody");
        URI nowhere = URI.create("http://127.0.0.1:" + FreePorts.inARow(1) + "/metadata");
        assertThatThrownBy(() -> MooncakeAgent.open(MooncakeAgentSettings.at(HOST)
                        .withMetadata(new MetadataSource.Http(nowhere, Optional.empty(), Optional.empty()))))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining(nowhere.toString());
    }

    /** Version 1 does not answer a writer, so that bytes may come after its success. */
    private static void awaitDigest(MemorySegment memory, String expected) {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (!digest(memory).equals(expected) && System.nanoTime() < deadline) {
            LockSupport.parkNanos(1_000_000);
        }
        assertThat(digest(memory)).isEqualTo(expected);
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String digest(MemorySegment memory) {
        try {
            return HexFormat.of()
                    .formatHex(MessageDigest.getInstance("SHA-256").digest(memory.toArray(ValueLayout.JAVA_BYTE)));
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError(e);
        }
    }
}
