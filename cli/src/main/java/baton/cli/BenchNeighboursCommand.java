package baton.cli;

import baton.bench.NeighbourBench;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton bench neighbours}: throughput of two instances on the same processors against one alone. */
@Command(
        name = "neighbours",
        description = "Measures two instances on the same processors, both busy, against each of them alone.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchNeighboursCommand implements Callable<Integer> {
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

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        NeighbourBench bench = new NeighbourBench(
                threads == null ? Runtime.getRuntime().availableProcessors() : threads,
                BenchValues.seconds(seconds),
                output::progress);
        output.measure(
                NeighbourBench.FIGURES, figures -> bench.run(Models.orEmbedded(Optional.ofNullable(model)), figures));
        return 0;
    }
}
