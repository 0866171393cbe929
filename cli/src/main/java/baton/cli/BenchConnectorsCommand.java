package baton.cli;

import baton.bench.ConnectorBench;
import baton.bench.ConnectorCase;
import baton.bench.ConnectorFigures;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.JsonNode;

/** {@code baton bench connectors}: all connectors beside each other. */
@Command(
        name = "connectors",
        description =
                "Measures all connectors that this machine has the parts for, with real instances, in one run: time to the"
                        + " first token, requests a second, and the needs of each.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchConnectorsCommand implements Callable<Integer> {
    private static final int REPETITIONS = 7;
    private static final int REPETITIONS_1B = 3;

    @Option(
            names = "--connector",
            paramLabel = "NAME",
            completionCandidates = Names.class,
            description = "Which; repeatable, and the name ahead of a slash means all of it (default: all):"
                    + " ${COMPLETION-CANDIDATES}.")
    private List<String> connectors = List.of();

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--1b",
            description =
                    "Measure with a random checkpoint of Llama-3.2-1B's shape, which takes 2.5 GB of disk and four"
                            + " times that of memory while it is measured. Prompts take seconds.")
    private boolean random1b;

    @Option(
            names = "--tokens",
            split = ",",
            paramLabel = "N",
            description = "Tokens of the prompts; the fewest are those for throughput (default: 512,2000).")
    private List<Integer> tokens = ConnectorBench.TOKENS;

    @Option(
            names = "--repetitions",
            paramLabel = "N",
            description = "Prompts of each length (default: " + REPETITIONS + ", with --1b " + REPETITIONS_1B + ").")
    private @Nullable Integer repetitions;

    @Option(
            names = "--seconds",
            defaultValue = "5",
            description = "How long requests are begun to measure throughput (default: ${DEFAULT-VALUE}).")
    private double seconds;

    @Option(names = "--markdown", paramLabel = "FILE", description = "Write the tables to this file too.")
    private @Nullable Path markdown;

    @Option(names = "--svg", paramLabel = "FILE", description = "Write a bar chart to this file.")
    private @Nullable Path svg;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    static final class Names implements Iterable<String> {
        @Override
        public Iterator<String> iterator() {
            return ConnectorCase.names().iterator();
        }
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (random1b && model != null) {
            throw new ConfigException(
                    "1b", "is given with model " + model + "; one model is measured, give one of both");
        }
        ConnectorBench bench = new ConnectorBench(
                Baton.command(),
                true,
                connectors,
                tokens,
                repetitions != null ? repetitions : random1b ? REPETITIONS_1B : REPETITIONS,
                BenchValues.seconds(seconds),
                output::progress);
        JsonNode figures = output.measure(ConnectorFigures::markdown, json -> {
            if (random1b) {
                bench.run1b(json);
            } else {
                bench.run(Models.orEmbedded(Optional.ofNullable(model)), json);
            }
        });
        BenchOutput.write(markdown, ConnectorFigures.markdown(figures));
        BenchOutput.write(svg, ConnectorFigures.svg(figures));
        return 0;
    }
}
