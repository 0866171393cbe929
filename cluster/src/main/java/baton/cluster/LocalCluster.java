package baton.cluster;

import baton.kv.FreePorts;
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
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/**
 * A prefill instance, a decode instance and a router on this host, each a process of its own; KV caches are handed over by a connector.
 * The processes end with this one, however it ends.
 */
public final class LocalCluster implements AutoCloseable {
    /** Address that the three servers listen on: the default of their {@code --host}. */
    public static final String HOST = "127.0.0.1";

    private static final Duration START_DEADLINE = Duration.ofMinutes(2);
    private static final Duration STOP_DEADLINE = Duration.ofSeconds(10);
    private static final int SECRET_BYTES = 32;
    private static final int PROCESSORS_TO_START_TOGETHER = 4;

    private final JavaCommand baton;
    private final TemporaryDirectory directory;
    private final boolean warmUp;
    private final List<ChildProcess> members = new CopyOnWriteArrayList<>();
    private final AtomicBoolean closed = new AtomicBoolean();
    private final Thread onSignal = Thread.ofPlatform().name("stop-cluster").unstarted(this::stop);
    private URI prefill = URI.create("http://127.0.0.1");
    private URI decode = URI.create("http://127.0.0.1");
    private URI router = URI.create("http://127.0.0.1");

    /** Connectors that can be used by a cluster on one host; the names are values of {@code kv_connector}. */
    public enum Connector {
        SharedStorageConnector("content-keyed") {
            @Override
            List<String> settings(Place place) {
                return List.of(EXTRA + "shared_storage_path", place.shared.toString());
            }

            @Override
            boolean listens() {
                return false;
            }
        },
        NixlConnector("kv_transfer_params_push") {
            @Override
            List<String> settings(Place place) {
                return SIDE_CHANNEL;
            }
        },
        NixlPushConnector("kv_transfer_params_push") {
            @Override
            List<String> settings(Place place) {
                return SIDE_CHANNEL;
            }
        },
        PyNcclConnector("content-keyed") {
            @Override
            List<String> settings(Place place) {
                return List.of(
                        CONFIG + "kv_parallel_size", "2", CONFIG + "kv_port", Integer.toString(place.meetingPort));
            }
        },
        P2pNcclConnector("p2p_nccl") {
            @Override
            List<String> settings(Place place) {
                URI registry = place.registry.orElseThrow();
                return List.of(
                        CONFIG + "kv_port",
                        "0",
                        EXTRA + "proxy_ip",
                        registry.getHost(),
                        EXTRA + "proxy_port",
                        Integer.toString(registry.getPort()),
                        EXTRA + "http_port",
                        Integer.toString(place.httpPort));
            }

            @Override
            boolean registers() {
                return true;
            }
        };

        private static final String CONFIG = "--kv-transfer-config.";
        private static final String EXTRA = CONFIG + "kv_connector_extra_config.";
        /** Any free port: both instances are on this host, so the default port would collide. */
        private static final List<String> SIDE_CHANNEL =
                List.of(EXTRA + "side_channel_host", "127.0.0.1", EXTRA + "side_channel_port", "0");

        private final String flow;

        Connector(String flow) {
            this.flow = flow;
        }

        /** Options of {@code serve} that are specific to the connector. */
        abstract List<String> settings(Place place);

        /** Whether the connector listens on a port. */
        boolean listens() {
            return true;
        }

        /** Whether instances register with the router. */
        boolean registers() {
            return false;
        }
    }

    /**
     * Addresses of one instance.
     *
     * @param shared directory of shared storage, the same for both instances
     * @param meetingPort port where the instances connect to each other; this one and the next were free
     * @param registry the router's address for registrations
     * @param httpPort the instance's HTTP port, 0 for any free one
     */
    record Place(Path shared, int meetingPort, Optional<URI> registry, int httpPort) {}

    private LocalCluster(JavaCommand baton, TemporaryDirectory directory, boolean warmUp) {
        this.baton = baton;
        this.directory = directory;
        this.warmUp = warmUp;
    }

    /**
     * Starts all three and waits until they are ready.
     *
     * @param baton runs Baton
     * @param connector how KV caches are handed over
     * @param routerPort port of the router, 0 for any free one
     * @param warmUp whether the servers warm up before they are ready
     * @throws IOException with the end of a server's log if one is not ready within two minutes
     */
    public static LocalCluster start(JavaCommand baton, Path model, Connector connector, int routerPort, boolean warmUp)
            throws IOException, InterruptedException {
        LocalCluster cluster = new LocalCluster(baton, TemporaryDirectory.create("baton-"), warmUp);
        Runtime.getRuntime().addShutdownHook(cluster.onSignal);
        try {
            Path shared = Files.createDirectory(cluster.directory.path().resolve("kv"));
            List<String> route = List.of("route", "--port", Integer.toString(routerPort), "--flow", connector.flow);
            int meetingPort = FreePorts.inARow(2);
            if (connector.registers()) {
                ServerProcess router = cluster.spawn("router", with(route, "--register-port", "0"));
                cluster.router = router.awaitReady(START_DEADLINE);
                Optional<URI> registry = Optional.of(router.awaitRegistrations(START_DEADLINE));
                int ports = FreePorts.inARow(2);
                cluster.serveBoth(
                        model,
                        connector,
                        new Place(shared, meetingPort, registry, ports),
                        new Place(shared, meetingPort, registry, ports + 1));
                awaitHealthy(cluster.router);
            } else {
                Place place = new Place(shared, meetingPort, Optional.empty(), 0);
                cluster.serveBoth(model, connector, place, place);
                cluster.router = cluster.spawn(
                                "router",
                                with(
                                        route,
                                        "--prefill",
                                        cluster.prefill.toString(),
                                        "--decode",
                                        cluster.decode.toString()))
                        .awaitReady(START_DEADLINE);
            }
            return cluster;
        } catch (IOException | InterruptedException | RuntimeException e) {
            cluster.close();
            throw e;
        }
    }

    private void serveBoth(Path model, Connector connector, Place ofPrefill, Place ofDecode)
            throws IOException, InterruptedException {
        ServerProcess decodeProcess = serve("decode", model, "kv_consumer", connector, ofDecode);
        if (warmUp && Runtime.getRuntime().availableProcessors() < PROCESSORS_TO_START_TOGETHER) {
            // A warm-up ends after a fixed time: two at once on few cores would each do half as much.
            decode = decodeProcess.awaitReady(START_DEADLINE);
        }
        prefill = serve("prefill", model, "kv_producer", connector, ofPrefill).awaitReady(START_DEADLINE);
        decode = decodeProcess.awaitReady(START_DEADLINE);
    }

    private static List<String> with(List<String> arguments, String... more) {
        return Stream.concat(arguments.stream(), Stream.of(more)).toList();
    }

    /** Waits until the router knows a healthy instance of each role. */
    private static void awaitHealthy(URI router) throws IOException, InterruptedException {
        long end = System.nanoTime() + START_DEADLINE.toNanos();
        HttpRequest health = HttpRequest.newBuilder(router.resolve("/health"))
                .timeout(START_DEADLINE)
                .build();
        try (HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(START_DEADLINE)
                .build()) {
            while (client.send(health, BodyHandlers.discarding()).statusCode() != 200) {
                if (System.nanoTime() - end > 0) {
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
        return directory.path();
    }

    /** Completes with a description when one of the processes ends. */
    public CompletableFuture<String> anyExit() {
        List<CompletableFuture<String>> exits =
                members.stream().map(ChildProcess::onExit).toList();
        return CompletableFuture.anyOf(exits.toArray(CompletableFuture[]::new)).thenApply(String::valueOf);
    }

    private ServerProcess serve(String name, Path model, String role, Connector connector, Place place)
            throws IOException {
        List<String> arguments = new ArrayList<>(List.of(
                "serve",
                model.toString(),
                "--port",
                Integer.toString(place.httpPort),
                "--threads",
                // Instances that share cores slow each other down when each computes on all of them.
                Integer.toString(Math.max(1, Runtime.getRuntime().availableProcessors() / 2)),
                "--kv-transfer-config.kv_connector",
                connector.name(),
                "--kv-transfer-config.kv_role",
                role,
                "--kv-transfer-config.kv_load_failure_policy",
                "recompute"));
        arguments.addAll(connector.settings(place));
        if (connector.listens()) {
            arguments.addAll(List.of("--kv-auth-secret-file", secret().toString()));
        }
        return spawn(name, arguments);
    }

    /** A file with a new secret for this cluster, readable by this user only. */
    private synchronized Path secret() throws IOException {
        Path file = directory.path().resolve("secret");
        if (!Files.exists(file)) {
            byte[] secret = new byte[SECRET_BYTES];
            new SecureRandom().nextBytes(secret);
            Files.createFile(file, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
            Files.writeString(file, HexFormat.of().formatHex(secret));
        }
        return file;
    }

    private ServerProcess spawn(String name, List<String> arguments) throws IOException {
        List<String> all = warmUp ? arguments : with(arguments, "--no-warmup");
        ServerProcess server =
                ServerProcess.start(name, baton, all, directory.path().resolve(name + ".log"));
        members.add(server.process());
        return server;
    }

    /** Whether the processes have been told to stop, by {@link #close()} or because this process was. */
    public boolean isStopping() {
        return closed.get();
    }

    @Override
    public void close() {
        stop();
        try {
            Runtime.getRuntime().removeShutdownHook(onSignal);
        } catch (IllegalStateException e) {
            // This process is ending: the hook runs too, and only one of both stops the processes.
        }
    }

    private void stop() {
        if (closed.getAndSet(true)) {
            return;
        }
        members.reversed().forEach(ChildProcess::askToStop);
        members.forEach(member -> member.awaitEnd(STOP_DEADLINE));
        directory.close();
    }
}
