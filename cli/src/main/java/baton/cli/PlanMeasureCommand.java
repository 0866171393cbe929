package baton.cli;

import baton.bench.CompletionsClient;
import baton.bench.ProfileBench;
import baton.bench.plan.MachineProfile;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton plan measure}: the profile of a machine. */
@Command(
        name = "measure",
        description =
                "Measures how fast an instance of this machine, or one at a URL, computes prompts, generates tokens"
                        + " and hands over, for 'baton plan'.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class PlanMeasureCommand implements Callable<Integer> {
    @Spec
    private CommandSpec spec;

    @Option(names = "--out", required = true, paramLabel = "FILE", description = "Where the profile is written.")
    private Path out;

    @Option(
            names = "--url",
            paramLabel = "URL",
            description =
                    "An instance with OpenAI's API that does nothing else meanwhile (default: a cluster like that of"
                            + " 'baton up' is started).")
    private @Nullable String url;

    @Option(
            names = "--router",
            paramLabel = "NAME=URL",
            description = "A router before a prefill and a decode instance on such machines, and the name of their"
                    + " connector; repeatable.")
    private Map<String, String> routers = new LinkedHashMap<>();

    @Option(
            names = "--connector",
            defaultValue = "NixlConnector",
            description = "Of the cluster that is started: ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE}).")
    private LocalCluster.Connector connector;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint that is served (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(names = "--name", paramLabel = "NAME", description = "Of the machine (default: its host name).")
    private @Nullable String name;

    @Option(
            names = "--units",
            defaultValue = "1",
            paramLabel = "N",
            description =
                    "The units that the instance occupies, e.g. its tensor parallel size (default: ${DEFAULT-VALUE}).")
    private int units;

    @Option(
            names = "--max-sequences",
            defaultValue = "64",
            paramLabel = "N",
            description = "The instance's --max-num-seqs (default: ${DEFAULT-VALUE}).")
    private int maxSequences;

    @Option(
            names = "--times",
            defaultValue = "5",
            paramLabel = "N",
            description = "Measurements of each case; the median counts (default: ${DEFAULT-VALUE}).")
    private int times;

    @Option(
            names = "--timeout",
            defaultValue = "60",
            paramLabel = "SECONDS",
            description = "For each answer (default: ${DEFAULT-VALUE}).")
    private int timeout;

    @Override
    public Integer call() throws IOException, InterruptedException {
        Require.atLeast("units", units, 1);
        Require.atLeast("max_sequences", maxSequences, 1);
        Require.atLeast("times", times, 1);
        Require.atLeast("timeout", timeout, 1);
        Path served = Models.orEmbedded(Optional.ofNullable(model));
        if (url != null) {
            measure(served, url, routers);
            return 0;
        }
        if (!routers.isEmpty()) {
            throw new ConfigException("router", "is given without --url, the instance that is asked directly");
        }
        try (LocalCluster cluster = LocalCluster.start(Baton.command(), served, connector, 0, true)) {
            measure(
                    served,
                    cluster.decode().toString(),
                    Map.of(connector.kvConnector(), cluster.router().toString()));
        }
        return 0;
    }

    private void measure(Path served, String instance, Map<String, String> through) throws IOException {
        Duration deadline = Duration.ofSeconds(timeout);
        Map<String, CompletionsClient> clients = new LinkedHashMap<>();
        for (Map.Entry<String, String> router : through.entrySet()) {
            clients.put(
                    router.getKey(),
                    CompletionsClient.connect("router", router.getValue(), Optional.empty(), deadline));
        }
        MachineProfile profile = new ProfileBench(
                        CompletionsClient.connect("url", instance, Optional.empty(), deadline),
                        clients,
                        times,
                        deadline,
                        line -> {
                            spec.commandLine().getErr().println(line);
                            spec.commandLine().getErr().flush();
                        })
                .run(name == null ? InetAddress.getLocalHost().getHostName() : name, units, served, maxSequences);
        Files.writeString(out, profile.toJson().toPrettyString() + "\n");
        spec.commandLine().getOut().println("The profile is in " + out);
    }
}
