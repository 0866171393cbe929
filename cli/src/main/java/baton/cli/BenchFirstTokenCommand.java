package baton.cli;

import baton.bench.frame.Timing;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton bench first-token}: what the first requests after the start take. */
@Command(
        name = "first-token",
        description = "Measures the time to the first token of the first requests to an endpoint, one after the other.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchFirstTokenCommand implements Callable<Integer> {
    @Spec
    private CommandSpec spec;

    @Option(
            names = "--url",
            description = "Where an instance or a router listens that has just been started (default: a cluster like"
                    + " that of 'baton up' is started).")
    private @Nullable URI url;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory of that cluster (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--connector",
            defaultValue = "SharedStorageConnector",
            description = "Of that cluster: ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE}).")
    private LocalCluster.Connector connector;

    @Option(names = "--requests", defaultValue = "10", description = "How many (default: ${DEFAULT-VALUE}).")
    private int requests;

    @Option(
            names = "--rounds",
            defaultValue = "1",
            description = "How many clusters, one after the other; not with --url (default: ${DEFAULT-VALUE}).")
    private int rounds;

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (requests < 1) {
            throw new ConfigException("requests", "is " + requests + ", must be at least 1");
        }
        if (rounds < 1) {
            throw new ConfigException("rounds", "is " + rounds + ", must be at least 1");
        }
        if (rounds > 1 && requests < 2) {
            throw new ConfigException("requests", "is 1, must be at least 2 with --rounds");
        }
        PrintWriter out = spec.commandLine().getOut();
        if (url != null) {
            if (rounds > 1) {
                throw new ConfigException(
                        "rounds", "is " + rounds + ", must be 1 with --url, whose server this command does not start");
            }
            var _ = new FirstTokens(url).run(requests, out);
            return 0;
        }
        List<Double> ratios = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            ratios.add(ofNewCluster(out));
        }
        if (rounds > 1) {
            out.printf(
                    Locale.ROOT,
                    "%s, first token of the first request to that of the last, median (range) of %d clusters: %.2f (%.2f to %.2f) times%n",
                    connector,
                    rounds,
                    Timing.median(ratios),
                    Collections.min(ratios),
                    Collections.max(ratios));
        }
        return 0;
    }

    private double ofNewCluster(PrintWriter out) throws IOException, InterruptedException {
        long start = System.nanoTime();
        try (LocalCluster cluster = LocalCluster.start(
                Baton.command(), Models.orEmbedded(Optional.ofNullable(model)), connector, 0, true)) {
            out.printf(Locale.ROOT, "%s, ready after %.1f s%n", connector, (System.nanoTime() - start) / 1e9);
            return new FirstTokens(cluster.router()).run(requests, out);
        }
    }
}
