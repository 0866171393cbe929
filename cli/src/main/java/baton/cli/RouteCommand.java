package baton.cli;

import baton.cluster.ServerProcess;
import baton.kv.ConfigException;
import baton.kv.ListenAddress;
import baton.kv.Require;
import baton.router.Router;
import baton.router.RouterConfig;
import baton.router.Security;
import baton.router.policy.KvEventSettings;
import baton.router.policy.LatencyGoals;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.policy.SplitPrompts;
import baton.router.role.RoleSettings;
import baton.router.upstream.Discovery;
import baton.router.upstream.Instance;
import baton.router.upstream.Registrations;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton route}: the router in front of prefill and decode instances. */
@Command(
        name = "route",
        description = "Routes requests to prefill instances and on to decode instances.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class RouteCommand implements Callable<Integer> {
    /** How long the router may warm up, with requests to stand-ins for instances. */
    static final Duration WARM_UP = Duration.ofMillis(500);

    /** Less than between two looks at the names of instances. */
    private static final String NAMES_CACHED_SECONDS = "1";

    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "Address to listen on (default: ${DEFAULT-VALUE}).")
    private String host;

    @Option(
            names = "--port",
            defaultValue = "8000",
            description = "Port to listen on, 0 for any free one (default: ${DEFAULT-VALUE}).")
    private int port;

    @Option(
            names = "--prefill",
            paramLabel = "URL",
            description =
                    "A prefill instance; repeatable. Needed unless instances register. Fields that it does not report may follow,"
                            + " as http://host:port?connector=NixlConnector.")
    private List<URI> prefill = List.of();

    @Option(
            names = "--decode",
            paramLabel = "URL",
            description = "A decode instance; repeatable. Needed unless instances register.")
    private List<URI> decode = List.of();

    @Option(
            names = "--flow",
            defaultValue = RouterConfig.DEFAULT_FLOW,
            description = "How a KV cache is handed over: content-keyed, kv_transfer_params, kv_transfer_params_push,"
                    + " p2p_nccl, mooncake, or auto: as each pair of instances can (default: ${DEFAULT-VALUE}).")
    private String flow;

    @Option(
            names = "--register-port",
            description = "Port where instances may register themselves, 0 for any free one (default: they may not).")
    private @Nullable Integer registerPort;

    @Option(names = "--register-host", description = "Address to listen on for that (default: that of --host).")
    private @Nullable String registerHost;

    @Option(
            names = "--register-ttl",
            defaultValue = "5",
            paramLabel = "SECONDS",
            description = "A registered instance is dropped when it has not said for so long that it is there"
                    + " (default: ${DEFAULT-VALUE}).")
    private double registerTtl;

    @Option(
            names = "--register-allow",
            paramLabel = "NETWORK",
            description =
                    "Network in which instances may register and be, as 10.1.0.0/16; repeatable (default: this host"
                            + " and private networks).")
    private List<String> registerAllow = Registrations.Settings.PRIVATE_NETWORKS;

    @Option(
            names = "--instances-file",
            paramLabel = "FILE",
            description =
                    "JSON file {\"prefill\": [URL, ...], \"decode\": [URL, ...]} that is followed: an instance that it names anew is"
                            + " added, one that it no longer names is removed.")
    private @Nullable Path instancesFile;

    @Option(
            names = "--prefill-dns",
            paramLabel = "NAME:PORT",
            description =
                    "DNS name of which each address is a prefill instance, as of a headless Kubernetes service, or"
                            + " _service._tcp.name, the SRV records of which have ports and weights; followed; repeatable.")
    private List<String> prefillDns = List.of();

    @Option(
            names = "--decode-dns",
            paramLabel = "NAME:PORT",
            description = "The same for decode instances; repeatable.")
    private List<String> decodeDns = List.of();

    @Option(
            names = "--dns-server",
            paramLabel = "HOST:PORT",
            description = "DNS server to ask (default: the system's).")
    private @Nullable String dnsServer;

    @Option(
            names = "--slow-start",
            defaultValue = "0",
            paramLabel = "SECONDS",
            description =
                    "For so long an instance that is new or has recovered gets less than its share of the requests:"
                            + " a tenth at first, then more and more (default: ${DEFAULT-VALUE}).")
    private double slowStart;

    @Option(
            names = "--admin-key",
            description =
                    "Key with which instances may be added, drained and removed at /v1/instances/ (default: they may"
                            + " not).")
    private @Nullable String adminKey;

    @Option(
            names = "--client-keys-file",
            paramLabel = "FILE",
            description =
                    "JSON file with the names, SHA-256 digests and limits of the keys that clients must present; followed"
                            + " (default: clients need no key).")
    private @Nullable Path clientKeysFile;

    @Mixin
    private final SslOptions ssl = new SslOptions();

    @Mixin
    private final OriginOptions origins = new OriginOptions();

    @Option(
            names = "--instance-ca",
            paramLabel = "FILE",
            description =
                    "Certificates in PEM of the authorities of instances at https:// (default: those of the JDK).")
    private @Nullable Path instanceCa;

    @Option(
            names = "--instance-cert",
            paramLabel = "FILE",
            description = "Certificate chain in PEM that the router presents to instances at https://.")
    private @Nullable Path instanceCert;

    @Option(names = "--instance-key", paramLabel = "FILE", description = "Its key in PEM, without a password.")
    private @Nullable Path instanceKey;

    @Option(
            names = "--max-requests-in-flight",
            defaultValue = "" + RouterConfig.Limits.DEFAULT_MAX_IN_FLIGHT,
            description = "Requests in flight in all; more are refused with 503 (default: ${DEFAULT-VALUE}).")
    private int maxInFlight;

    @Option(
            names = "--prefill-fallback",
            defaultValue = "error",
            description =
                    "The handling of a request that no prefill instance serves: error, or decode to let the decode"
                            + " instance compute the prompt (default: ${DEFAULT-VALUE}).")
    private String prefillFallback;

    @Option(
            names = "--local-prefill-threshold",
            defaultValue = "0",
            paramLabel = "BYTES",
            description = "A shorter prompt, as JSON, is left to the decode instance (default: ${DEFAULT-VALUE}).")
    private int localPrefillThreshold;

    @Option(
            names = "--local-prefill-uncached-threshold",
            defaultValue = "0",
            paramLabel = "BYTES",
            description =
                    "A prompt of which the decode instance lacks less, as JSON, is left to it; needs the decode policy"
                            + " prefix (default: ${DEFAULT-VALUE}).")
    private int uncachedThreshold;

    @Option(
            names = "--local-prefill-busy",
            defaultValue = "" + Integer.MAX_VALUE,
            paramLabel = "REQUESTS",
            description = "Where each prefill instance has as many requests under way, prompts are left to decode"
                    + " instances (default: never).")
    private int prefillBusy;

    @Option(
            names = "--ttft-goal",
            paramLabel = "MILLISECONDS",
            description =
                    "Time to the first token that streams should keep: a prompt is computed where the router expects that,"
                            + " from its own measurements (default: none).")
    private @Nullable Double ttftGoal;

    @Option(
            names = "--itl-goal",
            paramLabel = "MILLISECONDS",
            description =
                    "The same for the time between two tokens of a decode instance's streams while it computes a prompt.")
    private @Nullable Double itlGoal;

    @Option(
            names = "--split-prompts",
            defaultValue = "off",
            paramLabel = "SHARE",
            description =
                    "The prefill instance computes the first part of each prompt and the decode instance the rest: a share"
                            + " under 1, auto by the requests under way at both, or off (default: ${DEFAULT-VALUE}).")
    private String splitPrompts;

    @Option(
            names = "--balance-streams",
            defaultValue = "off",
            paramLabel = "MODE",
            description =
                    "Move streams from a decode instance that has half of its KV blocks in use, or more, to one that has"
                            + " much more room: off or on (default: ${DEFAULT-VALUE}).")
    private String balanceStreams;

    @Option(
            names = "--role-controller",
            defaultValue = "off",
            paramLabel = "MODE",
            description =
                    "Change the roles of instances by how --ttft-goal and --itl-goal are kept: off, dry-run (decisions are"
                            + " only told) or on (default: ${DEFAULT-VALUE}).")
    private String roleController;

    @Option(
            names = "--role-proof",
            defaultValue = "30",
            paramLabel = "SECONDS",
            description =
                    "An instance that changed its role and was sent requests has so long to serve one, else it gets its"
                            + " former role back (default: ${DEFAULT-VALUE}).")
    private double roleProof;

    @Option(
            names = "--policy",
            defaultValue = "round_robin",
            description =
                    "How instances are chosen: round_robin, least_loaded, power_of_two, session (the header X-Session-Id,"
                            + " or the field user) or prefix (the instance that was sent most of the prompt before)"
                            + " (default: ${DEFAULT-VALUE}).")
    private String policy;

    @Option(names = "--decode-policy", description = "The same for decode instances (default: that of --policy).")
    private @Nullable String decodePolicy;

    @Option(
            names = "--prefix-chunks",
            defaultValue = "" + PolicySettings.DEFAULT_RECORDED,
            description =
                    "Chunks of 256 bytes of prompts that the policy prefix remembers for each role, in about 32 bytes of"
                            + " memory each (default: ${DEFAULT-VALUE}).")
    private int prefixChunks;

    @Option(
            names = "--kv-events",
            description =
                    "The policy prefix follows the instances' caches by their KV events, where they publish any (default: by"
                            + " the requests sent to them).")
    private boolean kvEvents;

    @Option(
            names = "--kv-events-tokenize",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "With --kv-events, ask an instance at /tokenize for the tokens of a prompt that is text"
                    + " (default: on).")
    private boolean kvEventsTokenize;

    @Option(
            names = "--kv-events-blocks",
            defaultValue = "" + KvEventSettings.DEFAULT_MOST_BLOCKS,
            paramLabel = "N",
            description = "With --kv-events, blocks of all instances that are remembered, in at most 78 bytes of memory"
                    + " each (default: ${DEFAULT-VALUE}).")
    private int kvEventsBlocks;

    @Option(
            names = "--kv-events-secret-file",
            paramLabel = "FILE",
            description =
                    "With --kv-events, the --kv-auth-secret-file of instances with --kv-encryption required, which"
                            + " encrypt their events too.")
    private @Nullable Path kvEventsSecretFile;

    @Option(
            names = "--max-requests-per-instance",
            defaultValue = "" + RouterConfig.Limits.DEFAULT_MAX_PER_INSTANCE,
            description = "Requests under way to one instance; where all have as many, more are refused with 503"
                    + " (default: ${DEFAULT-VALUE}).")
    private int maxPerInstance;

    @Option(
            names = "--continue-streams",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description =
                    "Continue an answer at another decode instance when its own breaks off, if that sends token ids"
                            + " (default: on).")
    private boolean continueStreams;

    @Option(
            names = "--continue-after",
            defaultValue = "30",
            paramLabel = "SECONDS",
            description =
                    "With --continue-streams, also when its instance has sent no token for so long; one that answers no"
                            + " health probe for so long loses its requests; a request that has lost its instance waits"
                            + " three times as long for another (default: ${DEFAULT-VALUE}).")
    private double continueAfter;

    @Option(
            names = "--shadow-share",
            defaultValue = "0",
            paramLabel = "SHARE",
            description =
                    "Share of the greedy completions that the decode instance computes a second time alone, after the client has its answer; answers and times are compared (default: ${DEFAULT-VALUE}).")
    private double shadowShare;

    @Option(
            names = "--trust-client-kv-params",
            description =
                    "Pass kv_transfer_params and request ids with addresses of clients on to the instances (default: they are"
                            + " refused and replaced). They lead instances to hosts that the client names, and may take"
                            + " the prompt's place.")
    private boolean trustClientKvParams;

    @Option(
            names = "--allow-media-urls",
            description = "Pass on messages with media at URLs, which the instances fetch (default: data: URLs only).")
    private boolean mediaUrls;

    @Option(
            names = "--api-key",
            description = "Key for the instances: for clients that send none, and for the router's own requests.")
    private @Nullable String apiKey;

    @Option(
            names = "--own-api-key",
            description = "Key for the router's own requests to the instances (default: that of --api-key).")
    private @Nullable String ownApiKey;

    @Option(
            names = "--otlp-traces-endpoint",
            paramLabel = "URL",
            description = "Send spans of requests to this OpenTelemetry collector, by OTLP/HTTP in JSON, as"
                    + " http://host:4318/v1/traces (default: none are recorded).")
    private @Nullable String otlpTracesEndpoint;

    @Option(
            names = "--warmup",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Send requests to stand-ins for instances before being ready, for about half a second"
                    + " (default: on).")
    private boolean warmUp;

    @Option(
            names = "--shutdown-timeout",
            paramLabel = "SECONDS",
            defaultValue = "30",
            description = "After SIGTERM, how long running requests may take (default: ${DEFAULT-VALUE}).")
    private int shutdownSeconds;

    @Option(names = "--exit-with-parent", hidden = true, description = "Stop when standard input ends.")
    private boolean exitWithParent;

    @Option(
            names = "--instances-from-parent",
            hidden = true,
            description = "Read instances from standard input: lines of a role and a URL, up to an empty one.")
    private boolean instancesFromParent;

    @Override
    public Integer call() throws InterruptedException, IOException {
        try (LogOutput _ = LogOutput.install()) {
            return route();
        }
    }

    private int route() throws InterruptedException, IOException {
        Require.atLeast("shutdown_timeout", shutdownSeconds, 1);
        // By default the JVM answers with addresses that are up to 30 seconds old. Read when the first name is looked
        // up.
        java.security.Security.setProperty("networkaddress.cache.ttl", NAMES_CACHED_SECONDS);
        java.security.Security.setProperty("networkaddress.cache.negative.ttl", NAMES_CACHED_SECONDS);
        if (instancesFromParent) {
            // Which get ready meanwhile.
            warmUp();
            readInstances();
        }
        RouterConfig config = new RouterConfig(
                host,
                port,
                prefill,
                decode,
                flow,
                Optional.ofNullable(apiKey),
                RouterConfig.Limits.DEFAULT
                        .withMaxPerInstance(maxPerInstance)
                        .withMaxInFlight(maxInFlight)
                        .withContinueAfter(Optional.of(Duration.ofMillis((long) (continueAfter * 1000)))
                                .filter(_ -> continueStreams))
                        .withShadowShare(shadowShare)
                        .withDrain(Duration.ofSeconds(shutdownSeconds)),
                registry(),
                policy(),
                trustClientKvParams,
                sources(),
                security());
        Spans.requireEndpoint(otlpTracesEndpoint);
        ListenAddress.require("host", host, "port", port);
        config.registry()
                .ifPresent(registry ->
                        ListenAddress.require("register host", registry.host(), "register port", registry.port()));
        if (!instancesFromParent) {
            warmUp();
        }
        Router router = Router.start(config, Spans.exporter(otlpTracesEndpoint, "baton-router", host, port));
        router.registerPort()
                .ifPresent(open -> System.out.println(
                        ServerProcess.REGISTRATIONS + Service.reachable(registerHost()) + ":" + open));
        return Service.run(
                "baton route",
                config.security().scheme(),
                host,
                router.port(),
                exitWithParent,
                () -> {},
                router::close);
    }

    private void warmUp() throws InterruptedException {
        if (warmUp) {
            Router.warmUp(flow, WARM_UP);
        }
    }

    private void readInstances() throws IOException {
        // Not closed: its end is the parent's.
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<URI> prefills = new ArrayList<>();
        List<URI> decodes = new ArrayList<>();
        for (String line = lines.readLine(); line != null && !line.isEmpty(); line = lines.readLine()) {
            String[] instance = line.split(" ", 2);
            (instance[0].equals("prefill") ? prefills : decodes).add(URI.create(instance[1]));
        }
        prefill = prefills;
        decode = decodes;
    }

    private Optional<Registrations.Settings> registry() {
        // Checked without a port too.
        Registrations.Settings registry = new Registrations.Settings(
                registerHost(),
                registerPort == null ? 0 : registerPort,
                Duration.ofMillis((long) (registerTtl * 1000)),
                Registrations.Settings.DEFAULT_MAX_INSTANCES,
                registerAllow);
        return Optional.of(registry).filter(_ -> registerPort != null);
    }

    private RouterConfig.Sources sources() {
        List<Discovery.Name> names = new ArrayList<>();
        prefillDns.forEach(name -> names.add(Discovery.Name.parse("prefill dns", Instance.Role.PREFILL, name)));
        decodeDns.forEach(name -> names.add(Discovery.Name.parse("decode dns", Instance.Role.DECODE, name)));
        return new RouterConfig.Sources(
                new Discovery.Settings(
                        Optional.ofNullable(instancesFile),
                        names,
                        Discovery.Settings.DEFAULT_INTERVAL,
                        Optional.ofNullable(dnsServer).map(server -> Discovery.Settings.server("dns server", server))),
                Optional.ofNullable(adminKey),
                new RoleSettings(
                        Duration.ofMillis((long) (roleProof * 1000)),
                        RoleSettings.Mode.named(roleController),
                        RoleSettings.DEFAULT.window(),
                        balance()),
                Optional.ofNullable(ownApiKey));
    }

    private boolean balance() {
        return switch (balanceStreams) {
            case "on" -> true;
            case "off" -> false;
            default -> throw ConfigException.unsupported("balance streams", balanceStreams, "off, on");
        };
    }

    private Security security() {
        return new Security(
                Optional.ofNullable(clientKeysFile),
                ssl.tls(),
                Security.instances(
                        Optional.ofNullable(instanceCa),
                        Optional.ofNullable(instanceCert),
                        Optional.ofNullable(instanceKey)),
                mediaUrls,
                origins.allowed());
    }

    private static Optional<Duration> goal(@Nullable Double millis) {
        return Optional.ofNullable(millis).map(value -> Duration.ofNanos((long) (value * 1e6)));
    }

    private String registerHost() {
        return registerHost == null ? host : registerHost;
    }

    private PolicySettings policy() {
        boolean fallback = switch (prefillFallback) {
            case "decode" -> true;
            case "error" -> false;
            default -> throw ConfigException.unsupported("prefill fallback", prefillFallback, "error, decode");
        };
        return new PolicySettings(
                policy,
                decodePolicy == null ? policy : decodePolicy,
                prefixChunks,
                new LocalPrefill(
                        fallback,
                        localPrefillThreshold,
                        uncachedThreshold,
                        prefillBusy,
                        new LatencyGoals(goal(ttftGoal), goal(itlGoal)),
                        SplitPrompts.parse(splitPrompts)),
                Duration.ofMillis((long) (slowStart * 1000)),
                new KvEventSettings(
                        kvEvents, kvEventsTokenize, kvEventsBlocks, Optional.ofNullable(kvEventsSecretFile)));
    }
}
