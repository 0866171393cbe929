package baton.cluster;

import baton.cluster.ClusterConnector.Place;
import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.Ticker;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * A prefill instance, a decode instance and a router on this host, each a process of its own; KV caches are handed over by a connector.
 * The processes end with this one, however it ends.
 */
public final class LocalCluster implements AutoCloseable {
    /** Address that the three servers listen on: the default of their {@code --host}. */
    public static final String HOST = "127.0.0.1";

    private static final Duration START_DEADLINE = Duration.ofMinutes(2);
    private static final int SECRET_BYTES = 32;

    private final Layout layout;
    private final ProcessGroup processes;
    private final boolean warmUp;
    private final Consumer<String> progress;
    private URI prefill = URI.create("http://127.0.0.1");
    private URI decode = URI.create("http://127.0.0.1");
    private URI router = URI.create("http://127.0.0.1");

    /** Connectors of {@code up} and {@code demo}; the names are values of {@code kv_connector}. */
    public enum Connector implements ClusterConnector {
        SharedStorageConnector(
                "content-keyed",
                Ports.NONE,
                place -> List.of(SETTING + "shared_storage_path", place.shared().toString())),
        NixlConnector("kv_transfer_params_push", Ports.OWN, _ -> sideChannel()),
        NixlPushConnector("kv_transfer_params_push", Ports.OWN, _ -> sideChannel()),
        PyNcclConnector(
                "content-keyed",
                Ports.OWN,
                place -> List.of(
                        FIELD + "kv_parallel_size", "2", FIELD + "kv_port", Integer.toString(place.meetingPort()))),
        P2pNcclConnector("p2p_nccl", Ports.REGISTERED, place -> {
            URI registry = place.registry().orElseThrow();
            return List.of(
                    FIELD + "kv_port",
                    "0",
                    SETTING + "proxy_ip",
                    registry.getHost(),
                    SETTING + "proxy_port",
                    Integer.toString(registry.getPort()),
                    SETTING + "http_port",
                    Integer.toString(place.httpPort()));
        }),
        MooncakeConnector(
                "mooncake",
                Ports.OWN,
                _ -> List.of(SETTING + "mooncake_protocol", "tcp", SETTING + "bootstrap_port", "0")),
        SglangConnector("kv_transfer_params", Ports.OWN, _ -> List.of(SETTING + "bootstrap_port", "0")),
        OffloadingConnector(
                "content-keyed",
                Ports.NONE,
                place -> List.of(
                        SETTING + "cpu_bytes_to_use",
                        "1e9",
                        SETTING + "load_timeout_seconds",
                        "10",
                        SETTING + "secondary_tiers+",
                        "{\"type\": \"fs\", \"root_dir\": \"%s\"}".formatted(place.shared()))),
        LMCacheConnectorV1(
                "content-keyed",
                Ports.NONE,
                place -> List.of(
                        // As a block, so that short prompts are shared too.
                        SETTING + "chunk_size",
                        "16",
                        SETTING + "max_local_cpu_size",
                        "1",
                        SETTING + "pre_caching_hash_algorithm",
                        "sha256_cbor",
                        SETTING + "remote_url",
                        "fs://127.0.0.1:0" + place.shared())),
        /** Through a store that runs already; where it is comes from the environment or from further settings. */
        MooncakeStoreConnector("content-keyed", Ports.NONE, _ -> List.of(SETTING + "local_buffer_size", "1gb")),
        /** Hands over by NIXL, and through a directory for entries that outlive an instance. */
        MultiConnector(
                "kv_transfer_params_push",
                Ports.OWN,
                place -> List.of(
                        SETTING + "connectors+",
                        child("NixlConnector", "\"side_channel_host\": \"" + HOST + "\", \"side_channel_port\": 0"),
                        SETTING + "connectors+",
                        child("SharedStorageConnector", "\"shared_storage_path\": \"" + place.shared() + "\"")));

        private enum Ports {
            NONE,
            OWN,
            /** Its own, which it registers with the router. */
            REGISTERED
        }

        private final String flow;
        private final Ports ports;

        @SuppressWarnings("ImmutableEnumChecker") // Functions without state.
        private final Function<Place, List<String>> settings;

        Connector(String flow, Ports ports, Function<Place, List<String>> settings) {
            this.flow = flow;
            this.ports = ports;
            this.settings = settings;
        }

        /** Any free port: both instances are on this host, so the default port would collide. */
        private static List<String> sideChannel() {
            return List.of(SETTING + "side_channel_host", HOST, SETTING + "side_channel_port", "0");
        }

        private static String child(String connector, String settings) {
            return "{\"kv_connector\": \"%s\", \"kv_connector_extra_config\": {%s}}".formatted(connector, settings);
        }

        @Override
        public String kvConnector() {
            return name();
        }

        @Override
        public String flow() {
            return flow;
        }

        @Override
        public List<String> settings(KvRole role, Place place) {
            return settings.apply(place);
        }

        @Override
        public boolean listens() {
            return ports != Ports.NONE;
        }

        @Override
        public boolean registers() {
            return ports == Ports.REGISTERED;
        }
    }

    /**
     * The settings of the processes.
     *
     * @param prefill runs Baton for the prefill instance
     * @param decode runs Baton for the decode instance
     * @param router runs Baton for the router
     * @param threads that each instance computes with
     * @param routing options of the router
     */
    public record Layout(
            JavaCommand prefill, JavaCommand decode, JavaCommand router, int threads, List<String> routing) {
        public Layout {
            routing = List.copyOf(routing);
        }

        /** One command for all, the router with its collector, and half of the processors for each instance. */
        public static Layout of(JavaCommand baton) {
            return new Layout(baton, baton, baton.forRouter(), LocalCluster.threads(), List.of());
        }

        private JavaCommand instance(KvRole role) {
            return role == KvRole.PRODUCER ? prefill : decode;
        }
    }

    private LocalCluster(Layout layout, ProcessGroup processes, boolean warmUp, Consumer<String> progress) {
        this.layout = layout;
        this.processes = processes;
        this.warmUp = warmUp;
        this.progress = progress;
    }

    /**
     * Starts all three and waits until they are ready and, if they warm up, have handed over a small prompt.
     *
     * @param baton runs Baton
     * @param connector how KV caches are handed over
     * @param routerPort port of the router, 0 for any free one
     * @param warmUp whether the servers warm up before they are ready
     * @throws IOException with the end of a server's log if one is not ready within two minutes; or if the first hand-over fails
     */
    public static LocalCluster start(
            JavaCommand baton, Path model, ClusterConnector connector, int routerPort, boolean warmUp)
            throws IOException, InterruptedException {
        return start(Layout.of(baton), model, connector, routerPort, warmUp);
    }

    /** The same with another layout. */
    public static LocalCluster start(
            Layout layout, Path model, ClusterConnector connector, int routerPort, boolean warmUp)
            throws IOException, InterruptedException {
        return start(layout, model, connector, routerPort, warmUp, _ -> {});
    }

    /**
     * The same.
     *
     * @param progress gets a text about each step that is done
     */
    public static LocalCluster start(
            Layout layout,
            Path model,
            ClusterConnector connector,
            int routerPort,
            boolean warmUp,
            Consumer<String> progress)
            throws IOException, InterruptedException {
        LocalCluster cluster = new LocalCluster(layout, ProcessGroup.create(), warmUp, progress);
        try {
            Path shared = Files.createDirectory(cluster.directory().resolve("kv"));
            List<String> route = new ArrayList<>(
                    List.of("route", "--port", Integer.toString(routerPort), "--flow", connector.flow()));
            route.addAll(layout.routing);
            int meetingPort = FreePorts.inARow(2);
            if (connector.registers()) {
                ServerProcess router = cluster.spawn("router", layout.router, with(route, "--register-port", "0"));
                cluster.router = router.awaitReady(START_DEADLINE);
                Optional<URI> registry = Optional.of(router.awaitRegistrations(START_DEADLINE));
                progress.accept("router is ready");
                int ports = FreePorts.inARow(2);
                cluster.serveBoth(
                        model,
                        connector,
                        new Place(shared, meetingPort, registry, ports),
                        new Place(shared, meetingPort, registry, ports + 1));
                awaitHealthy(cluster.router);
                progress.accept("both instances are registered with the router");
            } else {
                Place place = new Place(shared, meetingPort, Optional.empty(), 0);
                // Gets ready beside the instances.
                ServerProcess router =
                        cluster.spawn("router", layout.router, with(route, ServerProcess.INSTANCES_FROM_PARENT));
                cluster.serveBoth(model, connector, place, place);
                router.tellInstances(cluster.prefill, cluster.decode);
                cluster.router = router.awaitReady(START_DEADLINE);
                progress.accept("router is ready");
            }
            if (warmUp) {
                FirstHandovers.send(cluster.router);
                progress.accept("first prompts have been handed over");
            }
            return cluster;
        } catch (IOException | InterruptedException | RuntimeException e) {
            cluster.close();
            throw e;
        }
    }

    private void serveBoth(Path model, ClusterConnector connector, Place ofPrefill, Place ofDecode)
            throws IOException, InterruptedException {
        ServerProcess decodeProcess = serve("decode", model, KvRole.CONSUMER, connector, ofDecode);
        ServerProcess prefillProcess = serve("prefill", model, KvRole.PRODUCER, connector, ofPrefill);
        decode = decodeProcess.awaitReady(START_DEADLINE);
        progress.accept("decode instance is ready");
        prefill = prefillProcess.awaitReady(START_DEADLINE);
        progress.accept("prefill instance is ready");
    }

    private static List<String> with(List<String> arguments, String... more) {
        return Stream.concat(arguments.stream(), Stream.of(more)).toList();
    }

    /** Waits until the router knows a healthy instance of each role. */
    private static void awaitHealthy(URI router) throws IOException, InterruptedException {
        Deadline deadline = Deadline.after(Ticker.system(), START_DEADLINE);
        HttpRequest health = HttpRequest.newBuilder(router.resolve("/health"))
                .timeout(START_DEADLINE)
                .build();
        try (HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(START_DEADLINE)
                .build()) {
            while (client.send(health, BodyHandlers.discarding()).statusCode() != 200) {
                if (deadline.isOver()) {
                    throw new IOException(
                            "the instances have not registered within " + START_DEADLINE.toSeconds() + " s");
                }
                TimeUnit.MILLISECONDS.sleep(50);
            }
        }
    }

    public URI prefill() {
        return prefill;
    }

    public URI decode() {
        return decode;
    }

    public URI router() {
        return router;
    }

    /** Directory of the processes' logs; removed when the cluster is closed. */
    public Path directory() {
        return processes.directory();
    }

    /** Completes with a description when one of the processes ends. */
    public CompletableFuture<String> anyExit() {
        return processes.anyExit();
    }

    /** Threads that each instance computes with: instances that share cores slow each other down when each computes on all of them. */
    public static int threads() {
        return Math.max(1, Runtime.getRuntime().availableProcessors() / 2);
    }

    /** The processes: the two instances and the router. */
    public ProcessGroup processes() {
        return processes;
    }

    private ServerProcess serve(String name, Path model, KvRole role, ClusterConnector connector, Place place)
            throws IOException {
        List<String> arguments = new ArrayList<>(List.of(
                "serve",
                model.toString(),
                "--port",
                Integer.toString(place.httpPort()),
                "--threads",
                Integer.toString(layout.threads),
                ClusterConnector.FIELD + "kv_connector",
                connector.kvConnector(),
                ClusterConnector.FIELD + "kv_role",
                role.configName(),
                ClusterConnector.FIELD + "kv_load_failure_policy",
                "recompute"));
        arguments.addAll(connector.settings(role, place));
        if (connector.listens()) {
            arguments.addAll(List.of("--kv-auth-secret-file", secret().toString()));
        }
        return spawn(name, layout.instance(role), arguments);
    }

    /** A file with a new secret for this cluster, readable by this user only. */
    private synchronized Path secret() throws IOException {
        Path file = directory().resolve("secret");
        if (!Files.exists(file)) {
            byte[] secret = new byte[SECRET_BYTES];
            new SecureRandom().nextBytes(secret);
            Files.createFile(file, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
            Files.writeString(file, HexFormat.of().formatHex(secret));
        }
        return file;
    }

    private ServerProcess spawn(String name, JavaCommand baton, List<String> arguments) throws IOException {
        List<String> all = warmUp ? arguments : with(arguments, "--no-warmup");
        return processes.serve(name, baton, all);
    }

    /** Whether the processes have been asked to stop, by {@link #close()} or because this process ends. */
    public boolean isStopping() {
        return processes.isStopping();
    }

    @Override
    public void close() {
        processes.close();
    }
}
