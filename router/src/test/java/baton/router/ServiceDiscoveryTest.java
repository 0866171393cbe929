package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.StandInDns.Target;
import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Discovery;
import baton.router.upstream.Instance;
import baton.testkit.Await;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Instances by DNS, of a server of the test's own, and how those that come get their share. */
@Timeout(300)
class ServiceDiscoveryTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String SERVICE = "_baton._tcp.prefill.test";

    private final StandInDns dns = new StandInDns();
    private final RouterFixture fixture = new RouterFixture();
    private final FakeInstance first = fixture.instance();
    private final FakeInstance second = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
        dns.close();
    }

    private Router router(List<URI> prefills, PolicySettings policy, String... names) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                prefills,
                List.of(decode.uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                policy,
                false,
                new RouterConfig.Sources(
                        new Discovery.Settings(
                                Optional.empty(),
                                List.of(names).stream()
                                        .map(name -> Discovery.Name.parse("dns", Instance.Role.PREFILL, name))
                                        .toList(),
                                Duration.ofMillis(50),
                                Optional.of(dns.address())),
                        Optional.empty())));
    }

    private void awaitUp(Router router, int count) {
        fixture.awaitMetric(router, "baton:router_instances_by_state{role=\"prefill\",state=\"up\"}", count);
    }

    private Target target(int priority, int weight, FakeInstance instance) {
        return new Target(priority, weight, instance.uri().getPort(), "pod.prefill.test");
    }

    private void ask(Router router, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
    }

    @Test
    void aServicesTargetsAreInstancesWithTheirPortsAndWeights() throws Exception {
        dns.address("pod.prefill.test", "127.0.0.1");
        dns.service(SERVICE, target(10, 30, first), target(10, 10, second), target(20, 10, decode));
        Router router = router(List.of(), PolicySettings.DEFAULT, SERVICE);
        awaitUp(router, 2);
        ask(router, 80);
        assertThat(first.received).hasSizeBetween(56, 64);
        assertThat(second.received).hasSizeBetween(16, 24);

        dns.service(SERVICE, target(10, 10, second));
        awaitUp(router, 1);
        int before = first.received.size();
        ask(router, 5);
        assertThat(first.received).hasSize(before);

        // A name that is not found, as while a DNS server restarts, changes nothing.
        dns.service(SERVICE);
        dns.service("_other._tcp.prefill.test", target(1, 1, first));
        ask(router, 5);
        assertThat(fixture.get(router, "/v1/instances").body())
                .contains(second.uri().toString());
    }

    @Test
    void weightsThatChangeCountFromThenOn() throws Exception {
        dns.address("pod.prefill.test", "127.0.0.1");
        dns.service(SERVICE, target(0, 0, first), target(0, 0, second));
        Router router = router(List.of(), PolicySettings.DEFAULT, SERVICE);
        awaitUp(router, 2);
        ask(router, 20);
        assertThat(first.received).hasSize(10);
        dns.service(SERVICE, target(0, 100, first), target(0, 0, second));
        Await.until(
                "the weight is known",
                RouterFixture.SOON,
                () -> fixture.get(router, "/v1/instances").body().contains("\"share\":100.0"));
        ask(router, 40);
        assertThat(first.received).hasSizeGreaterThan(45);
    }

    @Test
    void addressesOfANameAreAskedOfTheServerToo() throws Exception {
        dns.address("pods.prefill.test", "127.0.0.1");
        Router router = router(
                List.of(),
                PolicySettings.DEFAULT,
                "pods.prefill.test:" + first.uri().getPort());
        awaitUp(router, 1);
        ask(router, 1);
        assertThat(first.received).hasSize(1);
    }

    @Test
    void anInstanceThatComesLaterGetsItsShareGradually() throws Exception {
        dns.address("pod.prefill.test", "127.0.0.1");
        dns.service(SERVICE, target(0, 1, second));
        // So long that it is far from over while the test runs.
        PolicySettings slow = PolicySettings.DEFAULT.withSlowStart(Duration.ofHours(1));
        Router router = router(List.of(first.uri()), slow, SERVICE);
        awaitUp(router, 2);
        ask(router, 66);
        // A tenth of the other's share, not the half.
        assertThat(second.received).hasSizeBetween(3, 9);
        assertThat(first.received).hasSizeBetween(57, 63);
    }

    @Test
    void anInstanceThatHasRecoveredGetsItsShareGradually() throws Exception {
        PolicySettings slow = PolicySettings.DEFAULT.withSlowStart(Duration.ofHours(1));
        Router router = router(List.of(first.uri(), second.uri()), slow);
        awaitUp(router, 2);
        ask(router, 10);
        assertThat(second.received).hasSize(5);
        second.health = 503;
        awaitUp(router, 1);
        second.health = 200;
        awaitUp(router, 2);
        ask(router, 66);
        assertThat(second.received).hasSizeBetween(8, 14);
    }

    @Test
    void theShareGrowsUntilTheWindowIsOver() throws Exception {
        PolicySettings slow = PolicySettings.DEFAULT.withSlowStart(Duration.ofMillis(200));
        Router router = router(List.of(first.uri(), second.uri()), slow);
        awaitUp(router, 2);
        second.health = 503;
        awaitUp(router, 1);
        second.health = 200;
        awaitUp(router, 2);
        Await.until(
                "it has all of its share",
                RouterFixture.SOON,
                () -> !fixture.get(router, "/v1/instances").body().contains("\"share\":0."));
        first.received.clear();
        second.received.clear();
        ask(router, 20);
        assertThat(second.received).hasSize(10);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "name",
                "a:b:80",
                "name:0",
                "name:70000",
                "_service.name",
                "_service._sctp.name",
                ":80",
                "_a._tcp."
            })
    void namesThatAreNeitherAreRefused(String name) {
        assertThatThrownBy(() -> Discovery.Name.parse("prefill dns", Instance.Role.PREFILL, name))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("prefill dns")
                .hasMessageContaining("'" + name + "'")
                .hasMessageContaining("_service._tcp.name");
    }

    @ParameterizedTest
    @ValueSource(strings = {"[::1]:53", "::1:53", "0:0:0:0:0:0:0:1:53"})
    void aDnsServerMayHaveAnIpv6Address(String server) {
        assertThat(Discovery.Settings.server("dns server", server))
                .isEqualTo(new InetSocketAddress(InetAddress.ofLiteral("::1"), 53));
    }

    @ParameterizedTest
    @ValueSource(strings = {"127.0.0.1", "127.0.0.1:0", ":53", "127.0.0.1:x", "fd00::10", "1:2:3:4:5:6:7:8"})
    void aDnsServerThatIsNoAddressIsRefused(String server) {
        assertThatThrownBy(() -> Discovery.Settings.server("dns server", server))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("dns server")
                .hasMessageContaining("'" + server + "'");
    }
}
