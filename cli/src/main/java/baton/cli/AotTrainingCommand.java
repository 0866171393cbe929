package baton.cli;

import baton.cluster.ClusterConnector;
import baton.cluster.LocalCluster;
import baton.engine.EngineConfig;
import baton.engine.core.HandoverWarmUp;
import baton.engine.local.LocalEngine;
import baton.grammar.FormatWarmUp;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.TemporaryDirectory;
import baton.kv.Ticker;
import baton.messages.SealedChannel;
import baton.router.Router;
import baton.router.RouterConfig;
import baton.router.flow.HandoffFlow;
import baton.server.ApiServer;
import baton.server.PrometheusMetrics;
import java.io.IOException;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/**
 * {@code baton aot-training}: an instance and a router in one process answer a few questions, and every connector that supports it runs its
 * hand-over warm-up, and the cipher of encrypted ones is used. The launcher runs it once after a build, so that the JVM can write the AOT cache of later starts.
 */
@Command(name = "aot-training", hidden = true, description = "Does a little of everything and ends.")
final class AotTrainingCommand implements Callable<Integer> {
    private static final int QUESTIONS = 8;
    /** The time of each of the router's flows but the first. */
    private static final Duration ROUTING = Duration.ofMillis(500);

    /** The time of the first flow: enough for the JVM to find the hot code of a router under load, as the AOT cache keeps that too. */
    private static final Duration LOADED = Duration.ofSeconds(4);

    private static final int CLIENTS = 16;

    private static final Duration FORMATS = Duration.ofSeconds(1);

    /** The time of each connector's hand-overs. */
    private static final Duration HANDOVERS = Duration.ofMillis(500);

    @Option(names = "--brief", description = "Load classes and little more: a tenth of each time.")
    private boolean brief;

    private Duration of(Duration time) {
        return brief ? time.dividedBy(10) : time;
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        PrometheusMetrics metrics = new PrometheusMetrics("tiny-ledger");
        try (TemporaryDirectory shared = TemporaryDirectory.create("baton-")) {
            // From a command line, as in instances of a cluster.
            ServeCommand serve = new ServeCommand();
            Baton.commandLine(serve)
                    .parseArgs(Baton.withoutConfigs(
                            serve,
                            "serve",
                            Models.embedded().toString(),
                            "--port",
                            "0",
                            "--threads",
                            "1",
                            ClusterConnector.FIELD + "kv_connector",
                            "SharedStorageConnector",
                            ClusterConnector.FIELD + "kv_role",
                            KvRole.BOTH.configName(),
                            ClusterConnector.SETTING + "shared_storage_path",
                            shared.path().toString()));
            EngineConfig config = serve.engineConfig();
            for (String flow : HandoffFlow.NAMES) {
                Duration time = flow.equals(HandoffFlow.NAMES.getFirst()) ? LOADED : ROUTING;
                Router.warmUp(flow, Integer.MAX_VALUE / 2, CLIENTS, of(time));
            }
            try (LocalEngine engine = LocalEngine.start(config, metrics);
                    ApiServer server =
                            ApiServer.start(serve.serverConfig(config).build(), engine, metrics)) {
                server.warmUp();
                FormatWarmUp.run(Deadline.after(Ticker.system(), of(FORMATS))::isOver);
                ask(URI.create("http://127.0.0.1:" + server.port()));
                // Without a profile in the cache, its methods wait behind all that have one, and records take 30 times
                // as long.
                SealedChannel.warmUp();
                for (LocalCluster.Connector connector : LocalCluster.Connector.values()) {
                    KvTransferConfig transfer = KvTransferConfig.builder(connector.name(), KvRole.PRODUCER)
                            .build();
                    HandoverWarmUp.run(
                            transfer,
                            new ModelFingerprint("tiny-ledger", "0".repeat(64)),
                            new KvLayout(6, 4, 32, config.blockSize(), DType.BF16),
                            of(HANDOVERS),
                            Ticker.system());
                }
            }
        }
        return 0;
    }

    private static void ask(URI instance) throws IOException, InterruptedException {
        try (Router router = route(instance);
                ApiClient client = new ApiClient()) {
            URI endpoint = URI.create("http://127.0.0.1:" + router.port());
            String ledger = DemoCommand.ledger();
            for (int i = 0; i < QUESTIONS; i++) {
                // A different beginning each time, so that the prefix cache has no part of it.
                String text = ledger.substring(ledger.indexOf('\n', i * 60) + 1).strip();
                client.chat(endpoint, text + "\n\nTo whom does the glass dagger belong?", 24, piece -> {});
                client.metrics(endpoint);
            }
        }
    }

    private static Router route(URI instance) {
        return Router.start(
                RouterConfig.of(List.of(instance), List.of(instance)).build());
    }
}
