package baton.pipe.tcp;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import java.lang.foreign.Arena;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Connections without the token are closed, and do not keep the expected peer out. */
class StrangersTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration LONG = Duration.ofSeconds(60);

    @Test
    void connectionsWithoutTheTokenAreClosedAndTheOneWithItIsAccepted() throws Exception {
        List<Socket> strangers = new ArrayList<>();
        try (TcpTransport transport = new TcpTransport();
                WireTransport.Offer offer = transport.offer(HOST)) {
            int port = WireId.decode(offer.id(), WireId.Kind.TCP).port();
            Random random = new Random(1);
            for (int i = 0; i < 3 * TokenListener.MOST_AT_ONCE; i++) {
                Socket stranger = new Socket(InetAddress.getLoopbackAddress(), port);
                strangers.add(stranger);
                if (i % 3 == 1) {
                    byte[] garbage = new byte[1000];
                    random.nextBytes(garbage);
                    stranger.getOutputStream().write(garbage);
                } else if (i % 3 == 2) {
                    stranger.getOutputStream().write(TcpWire.HELLO);
                    stranger.getOutputStream().write(new byte[WireId.TOKEN_BYTES]);
                    assertThat(stranger.getInputStream().read()).isEqualTo(-1);
                }
            }
            connect(transport, offer);
        } finally {
            for (Socket stranger : strangers) {
                stranger.close();
            }
        }
    }

    /** Also at a meeting point: a connection without the token does not take the expected peer's place. */
    @Test
    void aMeetingIsOfThoseThatKnowTheSecret(@TempDir Path directory) throws Exception {
        PeerAccess guarded = access("{\"kv_auth_secret_file\": \""
                + Files.writeString(directory.resolve("secret"), "0123456789abcdef") + "\"}");
        int port = FreePorts.inARow(1);
        try (TcpTransport first = new TcpTransport(WireId.Kind.TCP, guarded, Ticker.system());
                TcpTransport second = new TcpTransport(WireId.Kind.TCP, guarded, Ticker.system());
                TcpTransport stranger = new TcpTransport()) {
            FutureTask<Wire> waiting = background(() -> first.meet(HOST, port, 0, LONG));
            assertRefused(stranger, port, guarded);
            try (Wire met = second.meet(HOST, port, 1, LONG);
                    Wire other = result(waiting)) {
                assertThat(met).isNotSameAs(other);
            }
        }
    }

    @Test
    void withoutASecretOnlyAllowedPeersConnectAtAMeetingPoint() throws Exception {
        PeerAccess strict = access("{\"allowed_peers\": [\"192.0.2.1\"]}");
        int port = FreePorts.inARow(1);
        try (TcpTransport first = new TcpTransport(WireId.Kind.TCP, strict, Ticker.system());
                TcpTransport stranger = new TcpTransport()) {
            FutureTask<Wire> waiting = background(() -> first.meet(HOST, port, 0, Duration.ofSeconds(5)));
            assertRefused(stranger, port, strict);
            assertThatThrownBy(() -> result(waiting)).hasStackTraceContaining("has not come within");
        }
    }

    /** The stranger may come before the port is listened on. */
    private static void assertRefused(TcpTransport stranger, int port, PeerAccess access) {
        Deadline deadline = Deadline.after(Ticker.system(), LONG);
        do {
            assertThat(deadline.isOver()).as("none was refused").isFalse();
            assertThatThrownBy(() -> stranger.meet(HOST, port, 1, Duration.ofMillis(300)))
                    .isInstanceOf(PipeException.class);
        } while (access.takeRefused() == 0);
    }

    private static PeerAccess access(String extra) {
        return PeerAccess.of(JsonFields.parse("extra", extra), "kv_ip", HOST, List.of());
    }

    @Test
    void aWrongTokenIsRefused() throws Exception {
        try (TcpTransport transport = new TcpTransport();
                WireTransport.Offer offer = transport.offer(HOST)) {
            byte[] id = offer.id();
            for (int bit = 0; bit < 8 * WireId.TOKEN_BYTES; bit += 5) {
                byte[] wrong = id.clone();
                wrong[id.length - 1 - bit / 8] ^= (byte) (1 << bit % 8);
                assertThatThrownBy(() -> transport.join(wrong, HOST, LONG))
                        .isInstanceOf(PipeException.class)
                        .hasMessageContaining("no peer accepted the connection");
            }
            connect(transport, offer);
        }
    }

    @Test
    void anIdWithAnotherHostsAddressIsRefusedBeforeConnecting() throws Exception {
        try (TcpTransport transport = new TcpTransport()) {
            byte[] token = new byte[WireId.TOKEN_BYTES];
            for (String elsewhere : List.of("127.0.0.2", "192.0.2.1", "::1", "2001:db8::1")) {
                byte[] id =
                        new WireId(WireId.Kind.TCP, Optional.of(InetAddress.getByName(elsewhere)), 1, token).encode();
                assertThatThrownBy(() -> transport.join(id, HOST, LONG))
                        .isInstanceOf(PipeException.class)
                        .hasMessageContaining("leads to");
            }
        }
    }

    @Test
    void theWildcardAddressOfAnIdIsReplacedByTheKnownHost() throws Exception {
        try (TcpTransport transport = new TcpTransport()) {
            try (WireTransport.Offer offer = transport.offer("0.0.0.0")) {
                assertThat(WireId.decode(offer.id(), WireId.Kind.TCP).address()).isEmpty();
                connect(transport, offer);
            }
            try (WireTransport.Offer offer = transport.offer(HOST)) {
                assertThatThrownBy(() -> transport.join(offer.id(), "0.0.0.0", LONG))
                        .hasMessageContaining("is none to connect to");
                FutureTask<Wire> joining = background(() -> transport.join(offer.id(), "localhost", LONG));
                offer.accept(LONG).close();
                result(joining).close();
            }
            assertThatThrownBy(() -> transport.offer("no.such.host.invalid"))
                    .isInstanceOf(PipeException.class)
                    .hasMessageContaining("has no address");
        }
    }

    private static void connect(TcpTransport transport, WireTransport.Offer offer) throws Exception {
        FutureTask<Wire> joining = background(() -> transport.join(offer.id(), HOST, LONG));
        try (Wire here = offer.accept(LONG);
                Wire there = result(joining);
                Arena arena = Arena.ofConfined()) {
            here.send(arena.allocate(10), LONG);
            there.receive(arena.allocate(10), LONG);
        }
    }
}
