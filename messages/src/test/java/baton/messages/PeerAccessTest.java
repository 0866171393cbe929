package baton.messages;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import java.io.IOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.InterfaceAddress;
import java.net.NetworkInterface;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Assumptions;
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
    void withoutSettingsLoopbackAndHostsOfOtherSettingsAreAllowed() {
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
    void withASecretPeersOfAnyAddressAreServedButOnlyAllowedOnesConnectedTo() throws IOException {
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

    @Test
    void aPortWithoutAPlaceForASecretIsGuardedByAddressesOnly() throws IOException {
        String secret = "'kv_auth_secret_file': '" + secret("0123456789abcdef") + "'";
        assertThatThrownBy(() -> access("{" + secret + "}").requireSafeByAddress("host", "192.0.2.1"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("host: is 192.0.2.1", "allowed_peers", "--kv-allow-unauthenticated");
        access("{}").requireSafeByAddress("host", "127.0.0.1");
        access("{'kv_allow_unauthenticated': true}").requireSafeByAddress("host", "192.0.2.1");
        PeerAccess listed = access("{'allowed_peers': ['192.0.2.7'], " + secret + "}");
        listed.requireSafeByAddress("host", "192.0.2.1");
        assertThat(listed.admitsByAddress(InetAddress.ofLiteral("192.0.2.7"))).isTrue();
        assertThat(listed.admitsByAddress(InetAddress.ofLiteral("192.0.2.8"))).isFalse();
        assertThat(listed.admits(InetAddress.ofLiteral("192.0.2.8"))).isTrue();
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
    void aNameAsTheOwnHostAllowsTheNetworksOfItsAddresses() throws Exception {
        InterfaceAddress own = NetworkInterface.networkInterfaces()
                .flatMap(each -> each.getInterfaceAddresses().stream())
                .filter(each -> !each.getAddress().isLoopbackAddress() && each.getAddress() instanceof Inet4Address)
                .findFirst()
                .orElse(null);
        Assumptions.assumeTrue(own != null, "this machine has no IPv4 network but loopback");
        AllowedPeers allowed = AllowedPeers.byDefault(
                "host",
                "prefill",
                name -> {
                    assertThat(name).isEqualTo("prefill");
                    return new InetAddress[] {own.getAddress()};
                },
                Ticker.system());
        assertThat(allowed.toString()).contains(own.getAddress().getHostAddress() + "/" + own.getNetworkPrefixLength());
        assertThat(allowed.allows(own.getAddress())).isTrue();
        assertThat(allowed.allows("prefill")).isTrue();
        assertThat(allowed.allows("decode")).isFalse();
        AllowedPeers nowhere = AllowedPeers.byDefault(
                "host",
                "nowhere",
                name -> {
                    throw new UnknownHostException(name);
                },
                Ticker.system());
        assertThat(nowhere.allows("127.0.0.1")).isTrue();
        assertThat(nowhere.allows(own.getAddress())).isFalse();
    }

    @Test
    void connectionsFromAddressesOfListedNamesAreAdmitted() {
        AllowedPeers named = AllowedPeers.of("allowed_peers", List.of("localhost"));
        InetAddress there = InetAddress.ofLiteral("127.0.0.1");
        assertThat(named.allows(there)).isFalse();
        until(() -> named.admits(there));
        assertThat(named.admits(InetAddress.ofLiteral("192.0.2.1"))).isFalse();
    }

    @Test
    void noConnectionWaitsForANameServer() throws Exception {
        InetAddress first = InetAddress.ofLiteral("192.0.2.1");
        InetAddress second = InetAddress.ofLiteral("192.0.2.2");
        Semaphore answers = new Semaphore(0);
        AtomicInteger asked = new AtomicInteger();
        AtomicLong now = new AtomicLong();
        NameLookups lookups = new NameLookups(
                Set.of("node"),
                name -> {
                    int number = asked.incrementAndGet();
                    answers.acquireUninterruptibly();
                    return new InetAddress[] {number == 1 ? first : second};
                },
                now::get);
        for (int stranger = 0; stranger < 1000; stranger++) {
            assertThat(lookups.resolveTo(first)).isFalse();
        }
        answers.release();
        until(() -> lookups.resolveTo(first));
        assertThat(asked.get()).isEqualTo(1);
        // It has moved.
        until(() -> {
            now.addAndGet(Duration.ofMinutes(1).toNanos());
            answers.release();
            return lookups.resolveTo(second);
        });
        assertThat(lookups.resolveTo(first)).isFalse();
        answers.release(1000);
    }

    private static void until(BooleanSupplier condition) {
        long end = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).isLessThan(end);
            Thread.onSpinWait();
        }
    }

    @Test
    void textOfUnknownPeersIsMadeFitForALog() {
        assertThat(PeerAccess.shown("evil\r\nINFO all is well \u001b[2J")).isEqualTo("evil??INFO all is well ?[2J");
        assertThat(PeerAccess.shown("x".repeat(32 << 10))).hasSizeLessThan(320);
    }

    @Test
    void everyoneIsAdmittedWhereAccessIsNotRestricted() {
        PeerAccess everyone = PeerAccess.everyone();
        assertThat(everyone.admits(InetAddress.ofLiteral("192.0.2.1"))).isTrue();
        assertThat(everyone.admits(InetAddress.ofLiteral("2001:db8::1"))).isTrue();
        assertThat(everyone.secret()).isEmpty();
        everyone.refuse("stranger", "a test");
        assertThat(everyone.takeRefused()).isZero();
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
