package baton.router;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.Require;
import baton.kv.WebGuard;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.HandoffFlow;
import baton.router.flow.P2pFlow;
import baton.router.policy.LatencyGoals;
import baton.router.policy.PolicySettings;
import baton.router.role.RoleSettings;
import baton.router.upstream.Discovery;
import baton.router.upstream.InstanceAddress;
import baton.router.upstream.Registrations;
import java.net.URI;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * The address a router listens on, the instances behind it and its limits.
 *
 * @param host address to listen on
 * @param port port to listen on; 0 takes a free one
 * @param prefill base addresses of the prefill instances, {@code http://host:port}; may be empty where instances register
 * @param decode base addresses of the decode instances, {@code http://host:port}; may be empty where instances register
 * @param flow how the two legs of a request are tied together: {@code content-keyed}, {@code kv_transfer_params},
 *     {@code kv_transfer_params_push}, {@code p2p_nccl} or {@code mooncake}
 * @param apiKey sent as {@code Authorization: Bearer} to the instances when the client sends no such header of its own,
 *     and with connector address queries to prefill instances; registered instances get it too
 * @param limits deadlines and sizes
 * @param registry where instances register themselves; empty if registration is off
 * @param policy how instances are chosen, and which prompts a decode instance computes itself
 * @param trustClientKvParams whether a client's own {@code kv_transfer_params} are passed to the instances: with them a client makes
 *     instances connect to hosts of its choice, and may replace the prompt
 * @param sources of instances that come and go
 * @param security keys of clients
 */
@GeneratedBuilder
public record RouterConfig(
        String host,
        int port,
        List<URI> prefill,
        List<URI> decode,
        String flow,
        Optional<String> apiKey,
        Limits limits,
        Optional<Registrations.Settings> registry,
        PolicySettings policy,
        boolean trustClientKvParams,
        Sources sources,
        Security security)
        implements RouterConfigBuilder.With {

    /** The flow for connectors that find a prompt's blocks by their content. */
    public static final String DEFAULT_FLOW = ContentKeyedFlow.NAME;

    /**
     * Deadlines and sizes.
     *
     * @param connect for a connection to an instance, and for the answer to a health probe
     * @param prefill for the whole prefill leg
     * @param idle for the first byte of a decode leg, for the time between two of its bytes, and for a client to take or send bytes
     * @param probeInterval between two health probes of an instance
     * @param drain how long {@link Router#close()} waits for running requests
     * @param maxBodyBytes the largest request body, and the largest prefill answer
     * @param maxInFlight requests running at once; more are refused with 503 at once instead of queueing
     * @param maxPerInstance requests to one instance at once; where all instances have as many, requests are refused with 503
     * @param continueAfter the time without a token after which a stream continues at another instance, as it does when its instance breaks off, and without an
     *     answer to health probes after which an instance loses its requests; a request that has lost its instance waits three times as long for another; empty
     *     if streams do not continue and requests do not wait
     * @param shadowShare share of the greedy completions that are computed a second time without a hand-over, 0 to 1
     */
    @GeneratedBuilder
    public record Limits(
            Duration connect,
            Duration prefill,
            Duration idle,
            Duration probeInterval,
            Duration drain,
            int maxBodyBytes,
            int maxInFlight,
            int maxPerInstance,
            Optional<Duration> continueAfter,
            double shadowShare)
            implements RouterConfigLimitsBuilder.With {

        /** The default limit of Baton's own server. */
        public static final int DEFAULT_MAX_PER_INSTANCE = 4096;

        public static final int DEFAULT_MAX_IN_FLIGHT = 8192;

        private static final Duration MOST = Duration.ofDays(7);

        public static final Limits DEFAULT = new Limits(
                Duration.ofSeconds(5),
                Duration.ofMinutes(10),
                Duration.ofMinutes(5),
                Duration.ofSeconds(2),
                Duration.ofSeconds(30),
                32 << 20,
                DEFAULT_MAX_IN_FLIGHT,
                DEFAULT_MAX_PER_INSTANCE,
                Optional.of(Duration.ofSeconds(30)),
                0);

        /** @throws ConfigException if a value is not positive or too large for a timer */
        public Limits {
            Require.atMost("connect timeout", connect, MOST);
            Require.atMost("prefill deadline", prefill, MOST);
            Require.atMost("idle deadline", idle, MOST);
            Require.atMost("probe interval", probeInterval, MOST);
            Require.atMost("drain deadline", drain, MOST);
            Require.atLeast("max body bytes", maxBodyBytes, 1);
            Require.atLeast("max requests in flight", maxInFlight, 1);
            Require.atLeast("max requests per instance", maxPerInstance, 1);
            continueAfter.ifPresent(silence -> Require.atMost("continue after", silence, MOST));
            if (!(shadowShare >= 0 && shadowShare <= 1)) {
                throw ConfigException.unsupported("shadow share", shadowShare, "0 to 1");
            }
        }
    }

    /**
     * Sources of instances that are not given at the start and do not register.
     *
     * @param discovery files and names that are followed
     * @param adminKey lets operators add, drain and remove instances over HTTP; empty if they cannot
     * @param roles how instances change their roles
     * @param ownKey {@code Authorization: Bearer} of the router's own requests to instances; empty for that of requests without one
     */
    public record Sources(
            Discovery.Settings discovery, Optional<String> adminKey, RoleSettings roles, Optional<String> ownKey) {
        public static final Sources NONE = new Sources(Discovery.Settings.NONE, Optional.empty());

        public Sources(Discovery.Settings discovery, Optional<String> adminKey) {
            this(discovery, adminKey, RoleSettings.DEFAULT, Optional.empty());
        }

        /** @throws ConfigException if the key cannot be one */
        public Sources {
            adminKey.ifPresent(key -> requireKey("admin key", key));
            ownKey.ifPresent(key -> requireKey("own api key", key));
        }

        boolean isEmpty() {
            return discovery.isEmpty() && adminKey.isEmpty();
        }
    }

    /** The defaults: a free port of this host, instances that do not register, no keys. */
    public static RouterConfigBuilder of(List<URI> prefill, List<URI> decode) {
        return RouterConfigBuilder.builder()
                .host("127.0.0.1")
                .prefill(prefill)
                .decode(decode)
                .flow(DEFAULT_FLOW)
                .limits(Limits.DEFAULT)
                .policy(PolicySettings.DEFAULT)
                .sources(Sources.NONE)
                .security(Security.NONE);
    }

    /** @throws ConfigException naming the field and value that cannot be used */
    public RouterConfig {
        if (host.isBlank()) {
            throw ConfigException.unsupported("host", host, "a host name or address");
        }
        Require.port("port", port);
        prefill = requireAddresses("prefill", prefill, registry.isPresent() || !sources.isEmpty());
        decode = requireAddresses("decode", decode, registry.isPresent() || !sources.isEmpty());
        if (HandoffFlow.named(flow) instanceof P2pFlow && registry.isEmpty()) {
            throw new ConfigException(
                    "flow", "'" + flow + "' needs instances that register themselves, so it needs a register port");
        }
        apiKey.ifPresent(key -> requireKey("api key", key));
        LatencyGoals goals = policy.localPrefill().goals();
        if (sources.roles().mode() != RoleSettings.Mode.OFF
                && (goals.ttft().isEmpty() || goals.itl().isEmpty())) {
            throw new ConfigException("role controller", "needs a ttft goal and an itl goal");
        }
        if (sources.roles().balancesStreams() && limits.continueAfter().isEmpty()) {
            throw new ConfigException("balance streams", "needs continue streams: they move by continuing elsewhere");
        }
        WebGuard _ = webGuard(host, security);
    }

    /** The key of the router's own requests to instances. */
    Optional<String> ownKey() {
        return sources.ownKey().or(() -> apiKey);
    }

    /** Which web pages may use the router. */
    WebGuard webGuard() {
        return webGuard(host, security);
    }

    private static WebGuard webGuard(String host, Security security) {
        return WebGuard.of(host, security.tls().isPresent(), security.allowedOrigins());
    }

    private static void requireKey(String field, String key) {
        if (key.isBlank() || key.chars().anyMatch(c -> c < ' ' || c > '~')) {
            throw new ConfigException(field, "must be printable ASCII and not blank");
        }
    }

    private static List<URI> requireAddresses(String field, List<URI> addresses, boolean mayBeEmpty) {
        if (addresses.isEmpty() && !mayBeEmpty) {
            throw new ConfigException(field, "needs at least one instance, http://host:port, or a register port");
        }
        Set<String> seen = new HashSet<>();
        for (URI address : addresses) {
            InstanceAddress.require(field, address);
            if (!seen.add(address.getAuthority())) {
                throw new ConfigException(field, "'" + address + "' is given twice");
            }
        }
        return List.copyOf(addresses);
    }
}
