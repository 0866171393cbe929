package baton.messages;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class PeerAccessTest {
    @TempDir
    private Path directory;

    private static PeerAccess access(String json) {
        return PeerAccess.of(
                JsonFields.parse("extra", json.replace('\'', '"')), "host", "127.0.0.1", List.of("node-1"));
    }

    private Path secret(String text) throws IOException {
        return Files.writeString(directory.resolve("secret"), text);
    }

    @Test
    void withoutSettingsItIsLoopbackAndWhatOtherSettingsName() {
        PeerAccess access = access("{}");
        for (String host : List.of("127.0.0.1", "127.0.0.9", "::1", "localhost", "node-1")) {
            assertThat(access.mayConnect(host)).as(host).isTrue();
        }
        for (String host :
                List.of("10.0.0.1", "169.254.169.254", "0.0.0.0", "::", "node-2", "localhost.evil.example")) {
            assertThat(access.mayConnect(host)).as(host).isFalse();
        }
        assertThat(access.admits(InetAddress.ofLiteral("127.0.0.1"))).isTrue();
        assertThat(access.admits(InetAddress.ofLiteral("192.0.2.1"))).isFalse();
    }

    @Test
    void withASecretPeersAreAnsweredWhereverTheyAreButNoOtherHostIsConnectedTo() throws IOException {
        PeerAccess access = access("{'kv_auth_secret_file': '" + secret("0123456789abcdef\n") + "'}");
        assertThat(access.admits(InetAddress.ofLiteral("192.0.2.1"))).isTrue();
        assertThat(access.mayConnect("192.0.2.1")).isFalse();
    }

    @ParameterizedTest
    @ValueSource(strings = {"0.0.0.0", "::", "192.0.2.1"})
    void aPortThatOtherHostsReachNeedsASecretOrAFlag(String host) throws IOException {
        assertThatThrownBy(() -> access("{}").requireSafe("side_channel_host", host))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(
                        "side_channel_host: is " + host, "--kv-auth-secret-file", "--kv-allow-unauthenticated");
        access("{'kv_allow_unauthenticated': true}").requireSafe("side_channel_host", host);
        access("{'kv_auth_secret_file': '" + secret("0123456789abcdef") + "'}").requireSafe("side_channel_host", host);
        for (String loopback : List.of("127.0.0.1", "::1", "localhost")) {
            access("{}").requireSafe("side_channel_host", loopback);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "short", "0123456789abcde\n\n\n   "})
    void aSecretThatCanBeGuessedIsRefused(String text) throws IOException {
        Path file = secret(text);
        assertThatThrownBy(() -> PeerSecret.read("kv_auth_secret_file", file))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("kv_auth_secret_file", file.toString(), "at least 16");
    }

    @Test
    void aFileThatIsNoSecretIsRefused() throws IOException {
        Path long_ = secret("x".repeat(5000));
        assertThatThrownBy(() -> PeerSecret.read("f", long_)).hasMessageContaining("more than 4096 bytes");
        Path none = directory.resolve("none");
        assertThatThrownBy(() -> PeerSecret.read("f", none)).hasMessageContainingAll(none.toString(), "cannot be read");
    }

    @Test
    void aMacIsOfItsSecretPurposeAndParts() throws IOException {
        PeerSecret one = PeerSecret.read("f", secret("0123456789abcdef\n"));
        PeerSecret same = PeerSecret.read("f", secret("0123456789abcdef"));
        PeerSecret other = PeerSecret.read("f", secret("0123456789abcdeF"));
        byte[] mac = one.mac("a", bytes("x"), bytes("yz"));
        assertThat(mac).hasSize(PeerSecret.MAC_BYTES);
        assertThat(same.isMac(mac, "a", bytes("x"), bytes("yz"))).isTrue();
        assertThat(other.isMac(mac, "a", bytes("x"), bytes("yz"))).isFalse();
        assertThat(one.isMac(mac, "b", bytes("x"), bytes("yz"))).isFalse();
        assertThat(one.isMac(mac, "a", bytes("xy"), bytes("z"))).isFalse();
        assertThat(one.isMac(mac, "a", bytes("xyz"))).isFalse();
        assertThat(one.isMac(new byte[0], "a", bytes("x"), bytes("yz"))).isFalse();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Test
    void refusedPeersAreCounted() {
        PeerAccess access = access("{}");
        for (int i = 0; i < 1000; i++) {
            access.refuse("stranger", "a test");
        }
        assertThat(access.takeRefused()).isEqualTo(1000);
        assertThat(access.takeRefused()).isZero();
    }
}
