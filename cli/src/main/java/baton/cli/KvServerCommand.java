package baton.cli;

import baton.kv.ListenAddress;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code baton kv-server}: one cache for many instances. */
@Command(
        name = "kv-server",
        description =
                "Keeps KV caches of many instances in its memory, and in files: a server of LMCache's lm protocol.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class KvServerCommand implements Callable<Integer> {
    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "Address to listen on (default: ${DEFAULT-VALUE}).")
    private String host;

    @Option(
            names = "--port",
            defaultValue = "8100",
            description = "Port to listen on, 0 for any free one (default: ${DEFAULT-VALUE}).")
    private int port;

    @Option(
            names = "--memory",
            required = true,
            paramLabel = "SIZE",
            converter = HumanSize.AsLong.class,
            description = "Memory for values, such as 8G.")
    private long memory;

    @Option(names = "--disk", paramLabel = "DIR", description = "Directory for values that memory has no room for.")
    private @Nullable Path disk;

    @Option(
            names = "--disk-size",
            defaultValue = "64G",
            paramLabel = "SIZE",
            converter = HumanSize.AsLong.class,
            description = "The limit of its files together (default: ${DEFAULT-VALUE}).")
    private long diskSize;

    @Option(
            names = "--metrics-port",
            paramLabel = "PORT",
            description = "Port for GET /metrics and GET /health, 0 for any free one (default: none).")
    private @Nullable Integer metricsPort;

    @Option(
            names = "--token-file",
            paramLabel = "FILE",
            description = "A secret of 16 bytes or more that clients must have too. LMCache's client has none.")
    private @Nullable Path tokenFile;

    @Option(names = "--tls-cert", paramLabel = "FILE", description = "Certificate chain in PEM: connections use TLS.")
    private @Nullable Path certificate;

    @Option(names = "--tls-key", paramLabel = "FILE", description = "Its key, PKCS #8 in PEM.")
    private @Nullable Path key;

    @Option(
            names = "--allow-unauthenticated",
            description = "Listen on an address that other hosts reach without a token.")
    private boolean unauthenticated;

    @Option(names = "--max-connections", paramLabel = "N", description = "Connections at once (default: 16384).")
    private @Nullable Integer maxConnections;

    @Option(
            names = "--max-value",
            paramLabel = "SIZE",
            converter = HumanSize.AsInt.class,
            description = "The most bytes of a value (default: a quarter of the memory).")
    private @Nullable Integer maxValue;

    @Option(
            names = "--io-timeout",
            paramLabel = "SECONDS",
            description = "A request that has begun, and a reply, must get on within so long (default: 10).")
    private @Nullable Double ioTimeout;

    @Option(names = "--exit-with-parent", hidden = true, description = "Stop when standard input ends.")
    private boolean exitWithParent;

    @Override
    public Integer call() throws IOException, InterruptedException {
        KvServerSettings.Limits limits = KvServerSettings.Limits.of(memory);
        KvServerSettings settings = new KvServerSettings(
                host,
                port,
                metricsPort == null ? OptionalInt.empty() : OptionalInt.of(metricsPort),
                memory,
                Optional.ofNullable(disk).map(directory -> new KvServerSettings.Disk(directory, diskSize)),
                new KvServerSettings.Access(
                        Optional.ofNullable(tokenFile),
                        Optional.ofNullable(certificate),
                        Optional.ofNullable(key),
                        unauthenticated),
                new KvServerSettings.Limits(
                        maxConnections == null ? limits.connections() : maxConnections,
                        maxValue == null ? limits.valueBytes() : maxValue,
                        ioTimeout == null ? limits.timeout() : Duration.ofNanos((long) (ioTimeout * 1e9)),
                        limits.leastRate()));
        ListenAddress.require("host", host, "port", port);
        if (metricsPort != null) {
            ListenAddress.require("host", host, "metrics port", metricsPort);
        }
        KvServer server = KvServer.start(settings);
        server.metricsPort()
                .ifPresent(open -> System.out.println("Metrics at http://" + Service.reachable(host) + ":" + open));
        return Service.run(
                "baton kv-server",
                certificate == null ? "lm" : "lms",
                host,
                server.port(),
                exitWithParent,
                () -> {},
                server::close);
    }
}
