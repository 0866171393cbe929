package baton.cli;

import baton.bench.disagg.DisaggBench;
import baton.bench.disagg.DisaggBench.Plan;
import baton.bench.disagg.DisaggPage;
import baton.bench.disagg.DisaggReport;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton bench disagg}: whether disaggregation pays, on this machine or for two given endpoints. */
@Command(
        name = "disagg",
        description =
                "Measures colocated prefill and decode with chunked prefill against a prefill and a decode instance on the same"
                        + " cores, over rates and lengths of prompts, and says which to take.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchDisaggCommand implements Callable<Integer> {
    @Option(names = "--short", description = "Fewer setups and loads, and no longer than three minutes.")
    private boolean brief;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory (default: a random one of 100 M parameters).")
    private @Nullable Path model;

    @Option(
            names = "--max-num-batched-tokens",
            split = ",",
            paramLabel = "N",
            description = "Budgets of colocated instances (default: 256,512,1024,2048; with --short 256,1024).")
    private List<Integer> budgets = List.of();

    @Option(
            names = "--prompt-tokens",
            split = ",",
            paramLabel = "N",
            description = "Lengths of long prompts (default: 512,2000; with --short 2000).")
    private List<Integer> promptTokens = List.of();

    @Option(
            names = "--busy",
            split = ",",
            paramLabel = "PART",
            description = "Rates of long prompts, as parts of the time that they alone keep the prefill instance busy"
                    + " (default: 0.3,0.5,0.7,0.9; with --short 0.35,0.7).")
    private List<Double> busy = List.of();

    @Option(
            names = "--rates",
            split = ",",
            paramLabel = "RATE",
            description = "Rates of long prompts a second, in place of --busy.")
    private List<Double> rates = List.of();

    @Option(
            names = "--streams",
            paramLabel = "N",
            description = "Short requests with answers that are being generated at a time (default: 4).")
    private @Nullable Integer streams;

    @Option(
            names = "--seconds",
            description = "How long requests come in each case (default: 30; with --short 20 at most).")
    private @Nullable Double seconds;

    @Option(
            names = "--connector",
            defaultValue = "NixlConnector",
            description = "How the KV cache is handed over: ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE}).")
    private LocalCluster.Connector connector;

    @Option(
            names = "--colocated-url",
            paramLabel = "URL",
            description = "A colocated server that runs already, instead of starting some; with --disagg-url.")
    private @Nullable String colocatedUrl;

    @Option(
            names = "--disagg-url",
            paramLabel = "URL",
            description = "The router of a disaggregated setup that runs already.")
    private @Nullable String disaggUrl;

    @Option(names = "--markdown", paramLabel = "FILE", description = "Write the table to this file too.")
    private @Nullable Path markdown;

    @Option(names = "--html", paramLabel = "FILE", description = "Write a page with plots to this file.")
    private @Nullable Path html;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        DisaggBench bench = new DisaggBench(plan(), output::progress);
        output.measure(_ -> bench.report().map(DisaggReport::markdown).orElse(""), figures -> {
            try {
                run(bench);
            } finally {
                bench.report().ifPresent(report -> report.writeTo(figures));
            }
        });
        DisaggReport report = bench.report().orElseThrow(() -> new CommandFailedException("nothing was measured"));
        BenchOutput.write(markdown, report.markdown());
        BenchOutput.write(html, DisaggPage.html(report));
        return 0;
    }

    private void run(DisaggBench bench) throws IOException {
        if (colocatedUrl != null && disaggUrl != null) {
            if (model != null) {
                throw new ConfigException("model", "is '" + model + "', which servers that run already do not take");
            }
            bench.run(colocatedUrl, disaggUrl);
        } else if (colocatedUrl != null || disaggUrl != null) {
            throw new ConfigException(
                    colocatedUrl == null ? "colocated-url" : "disagg-url", "is missing, both or none must be given");
        } else if (model == null) {
            bench.run(Baton.command(), connector);
        } else {
            bench.run(Baton.command(), model, connector);
        }
    }

    private Plan plan() {
        Plan plan = brief
                ? Plan.SHORT
                : new Plan(
                        List.of(512, 2000),
                        List.of(0.3, 0.5, 0.7, 0.9),
                        List.of(),
                        List.of(256, 512, 1024, 2048),
                        4,
                        30,
                        Optional.empty());
        return new Plan(
                promptTokens.isEmpty() ? plan.promptTokens() : promptTokens,
                busy.isEmpty() ? plan.busy() : busy,
                rates,
                budgets.isEmpty() ? plan.budgets() : budgets,
                streams == null ? plan.together() : streams,
                seconds == null ? plan.seconds() : seconds,
                plan.limit());
    }
}
