package baton.cli;

import baton.bench.AgainstBench;
import baton.bench.CompletionsClient;
import baton.bench.EngineBench;
import baton.bench.frame.Budget;
import baton.cluster.ProcessGroup;
import baton.cluster.ServerProcess;
import baton.engine.model.Checkpoint;
import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.DType;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton bench engine}: forward passes against the machine's limits, requests against forward passes, and against another server. */
@Command(
        name = "engine",
        description = "Measures prefill and decode of models against this machine's limits, both in one run.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchEngineCommand implements Callable<Integer> {
    /** The share of the budget for the comparison; the rest is for the engine. */
    private static final double AGAINST_SHARE = 0.5;

    private static final Duration MODELS_DEADLINE = Duration.ofSeconds(10);

    @Option(names = "--threads", description = "Threads to compute with (default: all cores).")
    private @Nullable Integer threads;

    @Option(
            names = "--model",
            paramLabel = "DIR",
            description = "Checkpoint directory; repeatable (default: the embedded tiny-ledger).")
    private List<Path> models = List.of();

    @Option(
            names = "--device",
            defaultValue = "cpu",
            description = "auto, cpu, cuda or cuda:N; shares of the processor's limits are left out for a GPU"
                    + " (default: ${DEFAULT-VALUE}).")
    private String device;

    @Option(
            names = "--dtype",
            defaultValue = "auto",
            description = "auto (as serve takes it), bfloat16, float16 or float32 (default: ${DEFAULT-VALUE}).")
    private String dtype;

    @Option(
            names = {"--quantization", "-q"},
            defaultValue = "none",
            description = "Of the models: none or int8 (default: ${DEFAULT-VALUE}).")
    private String quantization;

    @Option(
            names = "--skip-1b",
            description = "Leave out the random checkpoint of Llama-3.2-1B's shape, which takes 2.5 GB of disk and of"
                    + " memory while it is measured.")
    private boolean skip1b;

    @Option(
            names = "--experts",
            description =
                    "Measure a random checkpoint with 8 of 64 experts for each token too, which takes 3.5 GB of disk"
                            + " and of memory while it is measured.")
    private boolean experts;

    @Option(
            names = "--budget",
            paramLabel = "SECONDS",
            defaultValue = "240",
            description =
                    "The time limit of all cases; omitted cases are named at the end (default: ${DEFAULT-VALUE}).")
    private double budget;

    @Option(
            names = "--seconds",
            description = "How long to measure each limit and each case at most (default: its share of the budget).")
    private @Nullable Double seconds;

    @Option(
            names = "--against",
            paramLabel = "URL",
            description = "Another server that serves the model, to be sent the same requests as Baton's own server;"
                    + " the random checkpoint is left out.")
    private @Nullable String against;

    @Option(
            names = "--against-model",
            paramLabel = "NAME",
            description = "The model's name there (default: the first of /v1/models).")
    private @Nullable String againstModel;

    @Option(names = "--profile", description = "Print where the engine's steps spend their time too.")
    private boolean profile;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        Budget all = Budget.of(BenchValues.seconds(budget));
        Optional<Duration> each = Optional.ofNullable(seconds).map(BenchValues::seconds);
        List<Path> measured = models.isEmpty() ? List.of(Models.embedded()) : models;
        EngineBench bench = new EngineBench(
                BenchValues.optional(threads),
                Device.parse("device", device),
                dtype.equals("auto") ? Optional.empty() : Optional.of(DType.parse("dtype", dtype)),
                Quantization.parse("quantization", quantization),
                all,
                each,
                output::progress);
        output.measure(
                figures -> EngineBench.FIGURES.text(figures) + (profile ? EngineBench.profile(figures) : ""),
                figures -> {
                    // First, as it fails early if the other server does not answer as expected.
                    if (against != null) {
                        compare(against, measured, all, each, figures);
                    }
                    List<ModelConfig> random = new ArrayList<>();
                    if (!skip1b && against == null) {
                        random.add(RandomCheckpoint.llama1b());
                    }
                    if (experts) {
                        random.add(RandomCheckpoint.experts());
                    }
                    bench.run(measured, random, figures);
                });
        return 0;
    }

    private void compare(String url, List<Path> measured, Budget all, Optional<Duration> each, ObjectNode figures)
            throws IOException, InterruptedException {
        if (measured.size() != 1) {
            throw new ConfigException(
                    "against",
                    "compares one model, --model is given " + measured.size() + " times; give the one of both");
        }
        Path model = measured.getFirst();
        Budget share = all.share(AGAINST_SHARE);
        CompletionsClient other = CompletionsClient.connect(
                "against", url, Optional.ofNullable(againstModel), atMost(MODELS_DEADLINE, share));
        output.progress("starting Baton's server");
        try (ProcessGroup processes = ProcessGroup.create()) {
            ServerProcess server = processes.serve("serve", Baton.command(), serve(model));
            try {
                URI ready = server.awaitReady(share.left());
                CompletionsClient baton = CompletionsClient.connect(
                        "baton", ready.toString(), Optional.empty(), atMost(MODELS_DEADLINE, share));
                new AgainstBench(share, each, output::progress).run(model, baton, other, figures.putObject("against"));
            } catch (IOException e) {
                if (!server.process().isAlive()) {
                    throw new CommandFailedException(server.process().describeExit());
                }
                throw e;
            }
        }
    }

    /** Arguments of {@code baton serve}, on any free port. */
    private List<String> serve(Path model) throws IOException {
        int positions;
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            positions = Math.min(checkpoint.config().maxPositions(), AgainstBench.positions());
        }
        List<String> arguments = new ArrayList<>(List.of(
                "serve",
                model.toString(),
                "--port",
                "0",
                "--max-model-len",
                Integer.toString(positions),
                "--dtype",
                dtype,
                "--quantization",
                quantization,
                "--disable-uvicorn-access-log"));
        if (threads != null) {
            arguments.addAll(List.of("--threads", threads.toString()));
        }
        return arguments;
    }

    private static Duration atMost(Duration most, Budget budget) {
        return most.compareTo(budget.left()) < 0 ? most : budget.left();
    }
}
