package baton.cli;

import baton.bench.HandoverBench;
import baton.bench.HandoverReport;
import baton.bench.TransferBench;
import baton.bench.TransferReport;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
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
            BenchEngineCommand.class,
            BenchFirstTokenCommand.class,
            BenchNeighboursCommand.class,
            BenchCommand.TransferCommand.class,
            BenchCommand.HandoverCommand.class
        })
final class BenchCommand {
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
}
