package baton.connectors;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.ZeroMqEndpoint;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.zeromq.ZeroMqPublisher;
import baton.messages.zeromq.ZeroMqSubscription;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.tcp.TcpTransport;
import baton.testkit.Damages;
import baton.testkit.DamagingProxy;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.embedded.EmbeddedAgent;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Captures of each plane between two instances: a secret hides messages, and {@code kv_encryption} blocks too. */
@Timeout(300)
class SealedPlanesTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration LONG = Duration.ofMinutes(2);
    private static final byte[] KNOWN = "keys and values of a prompt".getBytes(StandardCharsets.US_ASCII);

    @TempDir
    private Path directory;

    private final Damages damages = new Damages();
    private final ByteArrayOutputStream captured = new ByteArrayOutputStream();
    private final List<AutoCloseable> open = new ArrayList<>();
    private final SystemRuntime runtime = new SystemRuntime();

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
    }

    private <T extends AutoCloseable> T closed(T opened) {
        open.add(opened);
        return opened;
    }

    private PeerAccess access(String encryption) throws IOException {
        Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        return PeerAccess.of(
                JsonFields.parse(
                        "extra",
                        encryption.equals("no secret")
                                ? "{}"
                                : "{\"kv_encryption\": \"" + encryption + "\", \"kv_auth_secret_file\": \"" + file
                                        + "\"}"),
                "host",
                HOST,
                List.of());
    }

    /** The port of a proxy that records all bytes. */
    private int recorded(int port) throws IOException {
        return closed(new DamagingProxy(
                        "capture",
                        0,
                        new InetSocketAddress(InetAddress.getLoopbackAddress(), port),
                        damages,
                        (_, bytes) -> {
                            synchronized (captured) {
                                captured.writeBytes(bytes);
                            }
                        }))
                .port();
    }

    private void assertCaptured(boolean sealed) {
        String all;
        synchronized (captured) {
            all = captured.toString(StandardCharsets.ISO_8859_1);
        }
        assertThat(all).isNotEmpty();
        assertThat(all.contains(new String(KNOWN, StandardCharsets.US_ASCII)))
                .as("plain bytes in the capture")
                .isNotEqualTo(sealed);
    }

    @ParameterizedTest
    @ValueSource(strings = {"no secret", "off", "required"})
    void sideChannel(String encryption) throws Exception {
        PeerAccess access = access(encryption);
        int port = closed(closed(runtime.sideChannel(access)).listen(HOST, 0, frames -> frames))
                .port();
        List<byte[]> answer = closed(runtime.sideChannel(access))
                .ask(HOST, recorded(port), List.of(KNOWN), LONG)
                .get();
        assertThat(answer).containsExactly(KNOWN);
        assertCaptured(!encryption.equals("no secret"));
        PeerAccess other = access(encryption.equals("no secret") ? "off" : "no secret");
        assertThatThrownBy(() -> closed(runtime.sideChannel(other))
                        .ask(HOST, port, List.of(KNOWN), LONG)
                        .get())
                .as("the other end has no secret, or only that has one")
                .rootCause()
                .isInstanceOf(IOException.class);
    }

    @ParameterizedTest
    @ValueSource(strings = {"no secret", "off", "required"})
    void peerChannel(String encryption) throws Exception {
        PeerAccess access = access(encryption);
        int port = closed(closed(runtime.peerChannel(access)).listen(HOST, 0, caller -> caller::answer))
                .port();
        PeerChannel.Call call =
                closed(closed(runtime.peerChannel(access)).call(HOST, recorded(port), "caller", LONG, () -> {}));
        assertThat(call.ask(List.of(KNOWN), LONG)).containsExactly(KNOWN);
        assertCaptured(!encryption.equals("no secret"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"no secret", "off", "required"})
    void events(String encryption) throws Exception {
        PeerAccess access = access(encryption);
        ZeroMqPublisher publisher = closed(
                new ZeroMqPublisher("kv", ZeroMqPublisher.Bounds.of(10, 10), _ -> true, access, Ticker.system()));
        int port = publisher.listen(HOST, 0);
        int replay = publisher.listenForReplays(HOST, 0);
        publisher.publish(0, KNOWN);
        CompletableFuture<byte[]> received = new CompletableFuture<>();
        closed(ZeroMqSubscription.start(
                new ZeroMqSubscription.Source(
                        new ZeroMqEndpoint(HOST, recorded(port)),
                        Optional.of(new ZeroMqEndpoint(HOST, recorded(replay))),
                        "kv"),
                access,
                new ZeroMqSubscription.Listener() {
                    @Override
                    public void message(long number, byte[] payload) {
                        received.complete(payload);
                    }

                    @Override
                    public void lost(String why) {}

                    @Override
                    public void replayed(int messages) {}

                    @Override
                    public void connected(boolean now) {}
                },
                Ticker.system()));
        assertThat(received.get(120, TimeUnit.SECONDS)).isEqualTo(KNOWN);
        assertCaptured(!encryption.equals("no secret"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"off", "required"})
    void wire(String encryption) throws Exception {
        PeerAccess access = access(encryption);
        int port = FreePorts.inARow(1);
        WireTransport transport = closed(new TcpTransport(WireId.Kind.TCP, access, Ticker.system()));
        FutureTask<Wire> first = new FutureTask<>(() -> closed(transport.meet(HOST, port, 0, LONG)));
        Thread.ofVirtual().start(first);
        try (Arena arena = Arena.ofShared()) {
            Wire wire = closed(transport.meet(HOST, recorded(port), 1, LONG));
            MemorySegment received = arena.allocate(KNOWN.length);
            wire.send(arena.allocateFrom(ValueLayout.JAVA_BYTE, KNOWN), LONG);
            first.get().receive(received, LONG);
            assertThat(received.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(KNOWN);
        }
        assertCaptured(encryption.equals("required"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"off", "required"})
    void transferAgent(String encryption) throws Exception {
        assertThat(new Agents(encryption, 300_000).read()).isInstanceOf(Transfer.State.Done.class);
        assertCaptured(encryption.equals("required"));
    }

    @Test
    @Tag("thorough")
    void damagesOfSealedBytesEndTheTransfer() throws Exception {
        Agents agents = new Agents("required", 3 << 20);
        for (Damages.Kind kind : Damages.Kind.values()) {
            damages.arm(new Damages.Damage(kind, "capture from the server", 1 << 20, 100));
            assertThat(agents.read()).as(kind.toString()).isInstanceOf(Transfer.State.Failed.class);
            assertThat(damages.disarm()).as("withdrawn before it happened").isFalse();
        }
        assertThat(agents.read()).isInstanceOf(Transfer.State.Done.class);
    }

    /** Two of them, of which one reads the other's memory, which has the known bytes in many places. */
    private final class Agents {
        private final int bytes;
        private final EmbeddedAgent here;
        private final MemorySegment target;
        private final MemorySegment source;
        private final byte[] metadata;

        private Agents(String encryption, int bytes) throws Exception {
            this.bytes = bytes;
            EmbeddedAgent.Settings settings = EmbeddedAgent.Settings.at(HOST)
                    .withTransport(EmbeddedAgent.Transport.TCP)
                    .withAccess(Optional.of(access(encryption)));
            Arena arena = closed(Arena.ofShared());
            EmbeddedAgent there = closed(EmbeddedAgent.open("there", settings));
            here = closed(EmbeddedAgent.open("here", settings));
            source = arena.allocate(bytes);
            for (long at = 0; at + KNOWN.length < bytes; at += 1000) {
                MemorySegment.copy(KNOWN, 0, source, ValueLayout.JAVA_BYTE, at, KNOWN.length);
            }
            target = arena.allocate(bytes);
            there.register(new Region(source, Optional.empty()));
            here.register(new Region(target, Optional.empty()));
            metadata = behindProxy(there);
        }

        private byte[] behindProxy(EmbeddedAgent agent) throws IOException {
            int port = agent.listening().getPort();
            ByteBuffer address = ByteBuffer.allocate(Integer.BYTES).putInt(0, port);
            byte[] changed = agent.metadata();
            ByteBuffer all = ByteBuffer.wrap(changed);
            int proxy = recorded(port);
            for (int i = 0; i + Integer.BYTES <= changed.length; i++) {
                if (all.slice(i, Integer.BYTES).equals(address)) {
                    all.putInt(i, proxy);
                }
            }
            return changed;
        }

        /** Its end; one that is done has moved all bytes. */
        private Transfer.State read() throws Exception {
            target.fill((byte) 0);
            Transfer read = here.start(
                    TransferAgent.Operation.READ,
                    here.connect(metadata, LONG),
                    List.of(new Range(target.address(), source.address(), bytes)),
                    Optional.empty(),
                    LONG);
            while (read.state() instanceof Transfer.State.UnderWay) {
                Thread.onSpinWait();
            }
            if (read.state() instanceof Transfer.State.Done) {
                assertThat(target.mismatch(source)).isEqualTo(-1);
            }
            return read.state();
        }
    }
}
