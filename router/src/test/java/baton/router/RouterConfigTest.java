package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.messages.Network;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Registrations;
import java.net.InetAddress;
import java.net.URI;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class RouterConfigTest {
    private static final List<URI> GOOD = List.of(URI.create("http://a:1"), URI.create("http://b/"));

    private static RouterConfig config(String host, int port, List<URI> prefill, String flow, String apiKey) {
        return TestConfigs.router(host, port, prefill, GOOD, flow, Optional.of(apiKey), RouterConfig.Limits.DEFAULT);
    }

    private static List<URI> uris(String spaced) {
        return Arrays.stream(spaced.split(" "))
                .filter(s -> !s.isEmpty())
                .map(URI::create)
                .toList();
    }

    @Test
    void defaults() {
        RouterConfig.Limits limits = RouterConfig.Limits.DEFAULT;
        assertThat(limits.connect()).hasSeconds(5);
        assertThat(limits.prefill()).hasMinutes(10);
        assertThat(limits.idle()).hasMinutes(5);
        assertThat(limits.probeInterval()).hasSeconds(2);
        assertThat(limits.drain()).hasSeconds(30);
        assertThat(limits.maxBodyBytes()).isEqualTo(32 << 20);
        assertThat(limits.maxInFlight()).isEqualTo(8192);
        assertThat(RouterConfig.DEFAULT_FLOW).isEqualTo("content-keyed");
        assertThat(config("127.0.0.1", 0, GOOD, "content-keyed", "k").prefill()).isEqualTo(GOOD);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "http://a:1?x=1 | has the unknown setting x; there are connector, engine, kv_address, version, stream, kv_events, kv_events_replay",
                "http://a:1?stream=yes | unsupported value 'yes'; allowed: true, false",
                "http://a:1?kv_events_replay=tcp://a:2 | has kv_events_replay without kv_events",
                "http://a:1?kv_events=tcp://a:2&kv_events=tcp://a:3 | has kv_events twice",
                "http://a:1?engine=baton | has engine without connector",
                "http://a:1?connector=NixlConnector&engine=sglang | unsupported value 'sglang'; allowed: vllm, baton",
                "http://a:1?kv_events=ipc://x | must be tcp://HOST:PORT"
            })
    void invalidSettingsOfInstancesAreNamed(String address, String message) {
        assertThatThrownBy(() -> config("h", 1, uris(address), "content-keyed", "k"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(message);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {"ftp://a:1", "a:1", "http://a:1/v1", "http://a:1#f", "http://u@a:1", "http:///x", "http://a:0"})
    void invalidInstanceAddressesAreNamed(String address) {
        assertThatThrownBy(() -> config("h", 1, uris(address), "content-keyed", "k"))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "prefill: unsupported value '" + address + "'; allowed: http://host:port, https://host:port");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "' '|1|http://a:1|content-keyed|k|host: unsupported value ' '",
                "h|-1|http://a:1|content-keyed|k|port: is -1, must be 0 to 65535",
                "h|65536|http://a:1|content-keyed|k|port: is 65536",
                "h|1|''|content-keyed|k|prefill: needs at least one instance",
                "h|1|http://a:1 http://a:1|content-keyed|k|prefill: 'http://a:1' is given twice",
                "h|1|http://a:1|x|k|flow: unsupported value 'x'",
                "h|1|http://a:1|content-keyed|' '|api key: must be printable"
            })
    void invalidSettingsAreNamed(String host, int port, String prefill, String flow, String apiKey, String message) {
        assertThatThrownBy(() -> config(host, port, uris(prefill), flow, apiKey))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }

    @Test
    void invalidLimitsAreNamed() {
        Duration second = Duration.ofSeconds(1);
        assertThatThrownBy(() -> TestConfigs.limits(second, Duration.ZERO, second, second, second, 1, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessage("prefill deadline: is PT0S, must be 1 ms to 604800 s");
        assertThatThrownBy(() -> TestConfigs.limits(second, second, second, second, second, 0, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessage("max body bytes: is 0, must be at least 1");
    }

    private static Registrations.Settings registry(String host, int port, Duration ttl, int most, String... networks) {
        return new Registrations.Settings(host, port, ttl, most, List.of(networks));
    }

    private static RouterConfig registering(String flow, Optional<Registrations.Settings> registry) {
        return TestConfigs.router(
                "h",
                1,
                List.of(),
                List.of(),
                flow,
                Optional.empty(),
                RouterConfig.Limits.DEFAULT,
                registry,
                PolicySettings.DEFAULT);
    }

    @Test
    void withRegistrationNoInstanceNeedsToBeConfigured() {
        Duration second = Duration.ofSeconds(1);
        assertThat(registering("p2p_nccl", Optional.of(registry("h", 0, second, 1, "10.0.0.0/8")))
                        .prefill())
                .isEmpty();
        assertThatThrownBy(() -> registering("content-keyed", Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("prefill: needs at least one instance");
        assertThatThrownBy(() -> config("h", 1, GOOD, "p2p_nccl", "k"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("needs a register port");
    }

    @Test
    void invalidRegistrationSettingsAreNamed() {
        Duration second = Duration.ofSeconds(1);
        assertThatThrownBy(() -> registry(" ", 0, second, 1)).hasMessageStartingWith("register host: ");
        assertThatThrownBy(() -> registry("h", 65536, second, 1)).hasMessageStartingWith("register port: ");
        assertThatThrownBy(() -> registry("h", 0, Duration.ZERO, 1)).hasMessageStartingWith("register ttl: ");
        assertThatThrownBy(() -> registry("h", 0, second, 0)).hasMessageStartingWith("max registered instances: ");
        for (String wrong : List.of("10.0.0.0/33", "10.0.0.0/x", "10.0.0.0/-1", "host", "", "fd00::/129", "/8")) {
            assertThatThrownBy(() -> registry("h", 0, second, 1, wrong))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("register allow: unsupported value '" + wrong + "'");
        }
        assertThatThrownBy(() -> new LocalPrefill(false, -1, 0, Integer.MAX_VALUE))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("local prefill threshold: ");
    }

    @ParameterizedTest
    @CsvSource({
        "10.1.0.0/16,10.1.255.3,true",
        "10.1.0.0/16,10.2.0.0,false",
        "10.1.2.128/25,10.1.2.129,true",
        "10.1.2.128/25,10.1.2.127,false",
        "10.1.2.3,10.1.2.3,true",
        "10.1.2.3,10.1.2.2,false",
        "0.0.0.0/0,1.2.3.4,true",
        "0.0.0.0/0,::1,false",
        "fd00::/8,fd12::1,true",
        "fd00::/8,fe80::1,false"
    })
    void networksContainTheirAddresses(String network, String address, boolean contained) {
        assertThat(Network.parse("f", network).contains(InetAddress.ofLiteral(address)))
                .isEqualTo(contained);
    }
}
