package baton.cli;

import baton.bench.GrammarBench;
import baton.bench.HostileFormats;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code baton bench grammar}: masks of structured outputs. */
@Command(
        name = "grammar",
        description = "Measures masks of structured outputs, beside xgrammar's and llguidance's in the same run.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchGrammarCommand implements Callable<Integer> {
    @Parameters(paramLabel = "MODEL", description = "Model directory, of which the tokenizer is used.")
    private Path model;

    @Option(
            names = "--python",
            paramLabel = "PROGRAM",
            description = "Python with transformers, xgrammar and llguidance, which are measured too.")
    private @Nullable String python;

    @Option(
            names = "--texts",
            paramLabel = "N",
            defaultValue = "20",
            description = "Random texts of each schema (default: ${DEFAULT-VALUE}).")
    private int texts;

    @Option(
            names = "--hostile",
            paramLabel = "N",
            description =
                    "Measure formats that are made to take long instead, each as the first one of N new JVMs that have"
                            + " warmed up.")
    private int hostile;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (hostile > 0) {
            output.measure(HostileFormats.FIGURES, new HostileFormats(hostile, output::progress)::run);
            return 0;
        }
        GrammarBench bench =
                new GrammarBench(model.toAbsolutePath(), Optional.ofNullable(python), texts, output::progress);
        output.measure(GrammarBench.FIGURES, bench::run);
        return 0;
    }
}
