package baton.cli;

import baton.bench.OffloadingBench;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton bench offloading}: hits in memory and files against computing, and the price of a miss. */
@Command(
        name = "offloading",
        description = "Measures prompts loaded by OffloadingConnector against computing them, and the cost of a miss.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchOffloadingCommand implements Callable<Integer> {
    @Option(names = "--threads", description = "Threads that each engine computes with (default: all cores).")
    private @Nullable Integer threads;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description =
                    "Checkpoint directory (default: a random one of Llama-3.2-1B's shape, which takes 2.5 GB of disk"
                            + " and four times that of memory while it is measured).")
    private @Nullable Path model;

    @Option(
            names = "--directory",
            paramLabel = "DIR",
            description = "For the files, which stay (default: a temporary one).")
    private @Nullable Path directory;

    @Option(
            names = "--tokens",
            paramLabel = "N",
            defaultValue = "2000",
            description = "Tokens of the prompts (default: ${DEFAULT-VALUE}).")
    private int tokens;

    @Option(
            names = "--repetitions",
            paramLabel = "N",
            defaultValue = "7",
            description = "Prompts (default: ${DEFAULT-VALUE}).")
    private int repetitions;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        OffloadingBench bench = new OffloadingBench(
                BenchValues.optional(threads), tokens, repetitions, Optional.ofNullable(directory), output::progress);
        output.measure(OffloadingBench.FIGURES, figures -> bench.run(Optional.ofNullable(model), figures));
        return 0;
    }
}
