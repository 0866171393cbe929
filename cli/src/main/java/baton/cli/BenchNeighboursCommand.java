package baton.cli;

import baton.bench.NeighbourBench;
import baton.bench.NeighbourBench.Pair;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton bench neighbours}: throughput of two instances on the same processors against one alone. */
@Command(
        name = "neighbours",
        description = "Measures two instances on the same processors, both busy, against each of them alone.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchNeighboursCommand implements Callable<Integer> {
    @Spec
    private CommandSpec spec;

    @Option(names = "--threads", description = "Threads of each instance (default: all cores).")
    private @Nullable Integer threads;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--seconds",
            defaultValue = "2",
            description = "How long each of the 27 measurements takes (default: ${DEFAULT-VALUE}).")
    private double seconds;

    @Override
    public Integer call() throws IOException {
        int each = threads == null ? Runtime.getRuntime().availableProcessors() : threads;
        if (each < 1) {
            throw new ConfigException("threads", "is " + each + ", must be at least 1");
        }
        if (!(seconds > 0)) {
            throw new ConfigException("seconds", "is " + seconds + ", must be more than 0");
        }
        PrintWriter err = spec.commandLine().getErr();
        PrintWriter out = spec.commandLine().getOut();
        NeighbourBench bench = new NeighbourBench(each, Duration.ofNanos(Math.round(seconds * 1e9)), line -> {
            err.println(line);
            err.flush();
        });
        out.printf(
                "two instances of %d threads on %d processors; together, of one alone%n",
                each, Runtime.getRuntime().availableProcessors());
        for (Pair pair : bench.run(Models.orEmbedded(Optional.ofNullable(model)))) {
            out.printf(
                    Locale.ROOT,
                    "  %-16s beside %-16s %.2f  (%.2f to %.2f)%n",
                    NeighbourBench.label(pair.first()),
                    NeighbourBench.label(pair.second()),
                    pair.share(),
                    pair.shares().stream().min(Double::compare).orElseThrow(),
                    pair.shares().stream().max(Double::compare).orElseThrow());
        }
        out.flush();
        return 0;
    }
}
