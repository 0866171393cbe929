package baton.cli;

import baton.bench.EngineBench;
import baton.bench.EngineReport;
import baton.bench.HandoverBench;
import baton.bench.HandoverReport;
import baton.bench.TransferBench;
import baton.bench.TransferReport;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton bench}: measurements. */
@Command(
        name = "bench",
        description = "Measures how fast Baton is.",
        mixinStandardHelpOptions = true,
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            BenchCommand.EngineCommand.class,
            BenchCommand.TransferCommand.class,
            BenchCommand.HandoverCommand.class,
            BenchCommand.FirstTokenCommand.class
        })
final class BenchCommand {
    /** {@code baton bench engine}: forward passes against the machine's limits, requests against forward passes. */
    @Command(
            name = "engine",
            description = "Measures prefill and decode of models against this machine's limits, both in one run.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class EngineCommand implements Callable<Integer> {
        private static final int ROUNDS = 3;

        @Spec
        private CommandSpec spec;

        @Option(names = "--threads", description = "Threads to compute with (default: all cores).")
        private @Nullable Integer threads;

        @Option(
                names = "--model",
                paramLabel = "DIR",
                description = "Checkpoint directory; repeatable (default: the embedded tiny-ledger).")
        private List<Path> models = List.of();

        @Option(
                names = {"--quantization", "-q"},
                defaultValue = "none",
                description = "Of the models: none or int8 (default: ${DEFAULT-VALUE}).")
        private String quantization;

        @Option(
                names = "--skip-1b",
                description =
                        "Leave out the random checkpoint of Llama-3.2-1B's shape, which takes 2.5 GB of disk and of"
                                + " memory while it is measured.")
        private boolean skip1b;

        @Option(
                names = "--seconds",
                defaultValue = "6",
                description = "How long to measure each limit and each case (default: ${DEFAULT-VALUE}).")
        private double seconds;

        @Option(names = "--profile", description = "Print where the engine's steps spend their time too.")
        private boolean profile;

        @Option(names = "--json", paramLabel = "FILE", description = "Write the figures to this file too.")
        private @Nullable Path json;

        @Override
        public Integer call() throws IOException {
            PrintWriter out = spec.commandLine().getOut();
            PrintWriter err = spec.commandLine().getErr();
            EngineBench bench = new EngineBench(
                    threads == null ? OptionalInt.empty() : OptionalInt.of(threads),
                    Quantization.parse("quantization", quantization),
                    Duration.ofNanos(Math.round(seconds * 1e9)),
                    ROUNDS,
                    line -> {
                        err.println(line);
                        err.flush();
                    });
            EngineReport report = bench.run(models.isEmpty() ? List.of(Models.embedded()) : models, !skip1b);
            report.print(out);
            if (profile) {
                report.printProfile(out);
            }
            if (json != null) {
                Files.writeString(json, report.toJson().toPrettyString() + "\n");
            }
            return 0;
        }
    }

    /** {@code baton bench transfer}: transfer agents between two processes. */
    @Command(
            name = "transfer",
            description =
                    "Measures reading KV blocks of another process against copying and plain TCP, all in one run.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class TransferCommand implements Callable<Integer> {
        @Spec
        private CommandSpec spec;

        @Option(names = "--threads", description = "Threads to copy with (default: all cores, at most 4).")
        private @Nullable Integer threads;

        @Option(
                names = "--tokens",
                split = ",",
                paramLabel = "N",
                description = "Tokens of a transfer, of Llama-3.2-1B's shape (default: 128,512,2048,8192,32768).")
        private List<Integer> tokens = TransferBench.TOKENS;

        @Option(
                names = "--seconds",
                defaultValue = "1",
                description = "How long to measure each case of each size (default: ${DEFAULT-VALUE}).")
        private double seconds;

        @Option(names = "--json", paramLabel = "FILE", description = "Write the figures to this file too.")
        private @Nullable Path json;

        @Override
        public Integer call() throws IOException {
            PrintWriter err = spec.commandLine().getErr();
            TransferBench bench = new TransferBench(
                    threads == null ? Math.min(4, Runtime.getRuntime().availableProcessors()) : threads,
                    tokens,
                    Duration.ofNanos(Math.round(seconds * 1e9)),
                    line -> {
                        err.println(line);
                        err.flush();
                    });
            TransferReport report = bench.run();
            report.print(spec.commandLine().getOut());
            if (json != null) {
                Files.writeString(json, report.toJson().toPrettyString() + "\n");
            }
            return 0;
        }
    }

    /** {@code baton bench handover}: from prefill's last token to decode's first step. */
    @Command(
            name = "handover",
            description = "Measures handing prompts over between two engines against the transfer alone, in one run.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class HandoverCommand implements Callable<Integer> {
        @Spec
        private CommandSpec spec;

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
                description =
                        "NixlConnector (both legs of a request at once, and one after the other), NixlPushConnector"
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

        @Option(names = "--json", paramLabel = "FILE", description = "Write the figures to this file too.")
        private @Nullable Path json;

        @Override
        public Integer call() throws IOException {
            PrintWriter err = spec.commandLine().getErr();
            HandoverBench bench = new HandoverBench(
                    connectors,
                    threads == null ? OptionalInt.empty() : OptionalInt.of(threads),
                    tokens,
                    repetitions,
                    line -> {
                        err.println(line);
                        err.flush();
                    });
            HandoverReport report = bench.run(models.isEmpty() ? List.of(Models.embedded()) : models, !skip1b);
            report.print(spec.commandLine().getOut());
            if (json != null) {
                Files.writeString(json, report.toJson().toPrettyString() + "\n");
            }
            return 0;
        }
    }

    /** {@code baton bench first-token}: what the first requests after the start take. */
    @Command(
            name = "first-token",
            description =
                    "Measures the time to the first token of the first requests to an endpoint, one after the other.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class FirstTokenCommand implements Callable<Integer> {
        @Spec
        private CommandSpec spec;

        @Option(
                names = "--url",
                description =
                        "Where an instance or a router listens that has just been started (default: a cluster like"
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

        @Override
        public Integer call() throws IOException, InterruptedException {
            if (requests < 1) {
                throw new ConfigException("requests", "is " + requests + ", must be at least 1");
            }
            PrintWriter out = spec.commandLine().getOut();
            if (url != null) {
                new FirstTokens(url).run(requests, out);
                return 0;
            }
            long start = System.nanoTime();
            try (LocalCluster cluster =
                    LocalCluster.start(Models.orEmbedded(Optional.ofNullable(model)), connector, 0)) {
                out.printf(Locale.ROOT, "%s, ready after %.1f s%n", connector, (System.nanoTime() - start) / 1e9);
                new FirstTokens(cluster.router()).run(requests, out);
            }
            return 0;
        }
    }
}
