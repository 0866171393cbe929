package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;

import baton.testkit.Damages.Damage;
import baton.testkit.Damages.Kind;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(300)
class DamagingProxyTest {
    private static final int TIMEOUT_MILLIS = 30_000;

    private final Damages damages = new Damages();

    @ParameterizedTest
    @CsvSource({
        "FLIP, abcdefgjij",
        "CUT, abcdefg",
        "DROP, abcdefgj",
        "SWAP, abcdefgihj",
        "REPEAT, abcdefghihij",
    })
    void aDamageHappensOnceAfterItsOffset(Kind kind, String arrives) throws IOException {
        String sent = "abcdefghij";
        int span = kind == Kind.FLIP || kind == Kind.SWAP ? 1 : 2;
        damages.arm(new Damage(kind, DamagingProxy.lanes("p").getFirst(), 7, span));

        assertThat(received(sent)).isEqualTo(arrives);
        assertThat(damages.count()).isEqualTo(1);
        assertThat(damages.byKind()).containsEntry(kind, 1);
        assertThat(damages.disarm()).isFalse();
        assertThat(received(sent)).isEqualTo(sent);
    }

    @Test
    void theOtherLaneIsNotDamaged() throws IOException {
        damages.arm(new Damage(Kind.FLIP, DamagingProxy.lanes("p").getLast(), 0, 1));

        assertThat(received("abc")).isEqualTo("abc");
        assertThat(damages.disarm()).isTrue();
        assertThat(damages.count()).isZero();
    }

    @Test
    void furtherConnectionsAreLedThroughProxies() throws IOException {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        try (ServerSocket first = new ServerSocket(0, 1, loopback);
                ServerSocket second = new ServerSocket(0, 1, loopback);
                DamagingProxy proxy = new DamagingProxy(
                        "p",
                        0,
                        (InetSocketAddress) first.getLocalSocketAddress(),
                        damages,
                        (through, bytes) ->
                                ByteBuffer.wrap(bytes).putShort((short) through.through("q", second.getLocalPort())));
                Socket client = new Socket(loopback, proxy.port());
                Socket accepted = first.accept()) {
            accepted.setSoTimeout(TIMEOUT_MILLIS);
            client.getOutputStream().write(new byte[2]);
            int port = new DataInputStream(accepted.getInputStream()).readUnsignedShort();
            damages.arm(new Damage(Kind.DROP, DamagingProxy.lanes("q").getFirst(), 0, 1));
            try (Socket led = new Socket(loopback, port);
                    Socket further = second.accept()) {
                further.setSoTimeout(TIMEOUT_MILLIS);
                led.getOutputStream().write("xy".getBytes(StandardCharsets.US_ASCII));
                assertThat(further.getInputStream().read()).isEqualTo('y');
            }
        }
    }

    /** The bytes that a server receives from a client through a proxy. */
    private String received(String sent) throws IOException {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        try (ServerSocket server = new ServerSocket(0, 1, loopback);
                DamagingProxy proxy = new DamagingProxy(
                        "p",
                        0,
                        (InetSocketAddress) server.getLocalSocketAddress(),
                        damages,
                        DamagingProxy.Rewriting.NONE)) {
            Socket client = new Socket(loopback, proxy.port());
            try (client) {
                client.getOutputStream().write(sent.getBytes(StandardCharsets.US_ASCII));
            }
            try (Socket accepted = server.accept()) {
                accepted.setSoTimeout(TIMEOUT_MILLIS);
                return new String(accepted.getInputStream().readAllBytes(), StandardCharsets.US_ASCII);
            }
        }
    }
}
