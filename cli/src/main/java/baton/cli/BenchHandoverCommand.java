package baton.cli;

import baton.bench.HandoverBench;
import baton.bench.PairBench;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton bench handover}: from prefill's last token to decode's first step. */
@Command(
        name = "handover",
        description = "Measures handing prompts over between two engines against the transfer alone, in one run.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchHandoverCommand implements Callable<Integer> {
    @Option(names = "--threads", description = "Threads that each engine computes with (default: all cores).")
    private @Nullable Integer threads;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory; repeatable (default: the embedded tiny-ledger).")
    private List<Path> models = List.of();

    @Option(
            names = "--skip-1b",
            description =
                    "Leave out the random checkpoint of Llama-3.2-1B's shape, which takes 2.5 GB of disk and twice"
                            + " that of memory while it is measured.")
    private boolean skip1b;

    @Option(
            names = "--connector",
            split = ",",
            paramLabel = "NAME",
            description = "NixlConnector (both legs of a request at once, and one after the other), NixlPushConnector"
                    + " (default: both).")
    private List<String> connectors = HandoverBench.CONNECTORS;

    @Option(
            names = "--tokens",
            split = ",",
            paramLabel = "N",
            description = "Tokens of the prompts (default: 128,512,2048).")
    private List<Integer> tokens = HandoverBench.TOKENS;

    @Option(
            names = "--repetitions",
            paramLabel = "N",
            defaultValue = "7",
            description = "Hand-overs of each length (default: ${DEFAULT-VALUE}).")
    private int repetitions;

    @Option(
            names = "--pair",
            paramLabel = "NAME=PREFILL_URL,DECODE_URL",
            description =
                    "Instances that run already, of Baton or vLLM, with NixlConnector; repeatable: they are measured in"
                            + " turns, and no engine is started. --model is the checkpoint that they serve.")
    private List<String> pairs = List.of();

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        List<Path> measured = models.isEmpty() ? List.of(Models.embedded()) : models;
        if (!pairs.isEmpty()) {
            PairBench bench = new PairBench(
                    pairs.stream().map(PairBench.Pair::parse).toList(), tokens, repetitions, output::progress);
            output.measure(PairBench.FIGURES, figures -> bench.run(measured.getFirst(), figures));
            return 0;
        }
        HandoverBench bench =
                new HandoverBench(connectors, BenchValues.optional(threads), tokens, repetitions, output::progress);
        output.measure(HandoverBench.FIGURES, figures -> bench.run(measured, !skip1b, figures));
        return 0;
    }
}
