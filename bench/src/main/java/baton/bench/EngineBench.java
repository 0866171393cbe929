package baton.bench;

import baton.bench.EngineReport.ModelReport;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Checkpoint;
import baton.engine.model.Device;
import baton.engine.model.MachineLimits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRunner;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * Measures the machine's limits, forward passes of models without scheduler, sampler and server, and then requests through the whole
 * engine.
 *
 * <p>Other programs may take the machine's time at any moment. So it measures in rounds, each of them the limits first and then
 * every case of the model, and compares the best run of a case with the best run of a limit. Medians tell how disturbed it was.
 * A prefill takes so long that no run of it is undisturbed: it is also compared with matrix products done for as long, right before
 * and after it.
 *
 * <p>All of it, making and loading checkpoints too, ends about when the budget does. Cases that do not fit are named in the report.
 *
 * @param threads to compute with; empty: one for each processor
 * @param dtype to compute in; empty: chosen by {@link DTypeChoice}
 * @param quantization of the models
 * @param budget for everything
 * @param each how long each limit and each case is measured at most, all rounds together; empty: as the budget allows
 * @param progress receives a line for each step
 */
public record EngineBench(
        OptionalInt threads,
        Optional<DType> dtype,
        Quantization quantization,
        Budget budget,
        Optional<Duration> each,
        Consumer<String> progress) {
    /** Weight of the random checkpoint in the division of the budget; any other model has 1. It is slower to make and to run. */
    private static final double RANDOM_WEIGHT = 3;

    /** @throws ConfigException if the duration is not positive */
    public EngineBench {
        each.filter(duration -> !duration.isPositive()).ifPresent(duration -> {
            throw new ConfigException("seconds", "is " + duration.toMillis() / 1e3 + ", must be positive");
        });
    }

    /**
     * Measures the checkpoints in these directories, and, if asked to, a random one of Llama-3.2-1B's shape, which it writes into
     * a temporary directory for as long as it takes to load.
     *
     * @throws ConfigException if a checkpoint does not fit
     * @throws IOException if a checkpoint cannot be read, or the random one has no room
     */
    public EngineReport run(List<Path> models, boolean random1b) throws IOException {
        for (Path model : models) {
            // The engine needs it, minutes after the forward passes that do not.
            Tokenizer.load(model).close();
        }
        Results results = new Results();
        double weights = models.size() + (random1b ? RANDOM_WEIGHT : 0);
        for (Path model : models) {
            if (results.reports.isEmpty() || !budget.left().isZero()) {
                measure(model, budget.share(1 / weights), results);
            } else {
                results.leftOut.add(model + ": nothing of the budget is left");
            }
            weights--;
        }
        if (random1b) {
            measureRandom(RandomCheckpoint.llama1b(), results);
        }
        return new EngineReport(
                Machine.here(),
                threads.orElse(Runtime.getRuntime().availableProcessors()),
                List.copyOf(results.limits),
                List.copyOf(results.reports),
                List.copyOf(results.leftOut),
                Optional.empty());
    }

    private static final class Results {
        private final List<MachineLimits> limits = new ArrayList<>();
        private final List<ModelReport> reports = new ArrayList<>();
        private final List<String> leftOut = new ArrayList<>();
    }

    private record Loaded(double loadSeconds, int positions, ForwardBench.Measured forward, ModelReport report) {}

    private void measureRandom(ModelConfig config, Results results) throws IOException {
        long start = System.nanoTime();
        try {
            RandomModel.with(config, budget.left(), progress, directory -> {
                double written = (System.nanoTime() - start) * 1e-9;
                // Loading reads as much as was written.
                if (budget.fits(written)) {
                    measure(directory, budget, results);
                } else {
                    results.leftOut.add(String.format(
                            Locale.ROOT,
                            "%s: writing its checkpoint took %.1f s, %.1f s of the budget are left",
                            config.name(),
                            written,
                            budget.leftSeconds()));
                }
                return true;
            });
        } catch (RandomModel.TooSlowException e) {
            results.leftOut.add(config.name() + ": " + e.getMessage());
        }
    }

    private void measure(Path model, Budget share, Results results) throws IOException {
        Loaded loaded = ModelBackends.on(Device.AUTO).apart(() -> {
            try (MachineLimits.Probe probe = new MachineLimits.Probe(threads)) {
                long start = System.nanoTime();
                try (ModelRunner runner = load(model)) {
                    double seconds = (System.nanoTime() - start) * 1e-9;
                    ForwardBench.Measured forward =
                            new ForwardBench(runner, probe, share, each, progress).run(quantization);
                    return new Loaded(seconds, positions(runner.config()), forward, report(runner, forward));
                }
            }
        });
        ModelReport report = loaded.report;
        results.limits.addAll(loaded.forward.limits());
        results.leftOut.addAll(loaded.forward.leftOut());
        if (share.fits(loaded.loadSeconds)) {
            progress.accept(report.name() + ": through the engine");
            ServingReport serving = new ServingBench(threads, dtype, quantization, share, each, loaded.forward)
                    .run(model, loaded.positions);
            report = report.with(serving);
            results.leftOut.addAll(serving.leftOut());
        } else {
            results.leftOut.add(String.format(
                    Locale.ROOT,
                    "%s: through the engine: loading takes about %.1f s, %.1f s of the budget are left",
                    report.name(),
                    loaded.loadSeconds,
                    share.leftSeconds()));
        }
        results.reports.add(report);
    }

    private ModelReport report(ModelRunner runner, ForwardBench.Measured forward) {
        ModelConfig config = runner.config();
        return new ModelReport(
                config.name(),
                config.parameters(),
                dtype(runner),
                quantization,
                runner.kernels(),
                runner.operatorRates(),
                forward.prefills(),
                forward.decodes(),
                Optional.empty());
    }

    /** The type that a runner made by {@link #load} computes in. */
    static DType dtype(ModelRunner runner) {
        return runner.cache().layout().dtype();
    }

    private static int positions(ModelConfig config) {
        return Math.min(config.maxPositions(), ForwardBench.LONGEST_PREFILL);
    }

    private ModelRunner load(Path directory) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            ModelBackend backend = ModelBackends.on(Device.AUTO);
            ModelConfig config = checkpoint.config();
            int positions = positions(config);
            if (positions < ServingBench.LEAST_POSITIONS) {
                throw new ConfigException(
                        "model",
                        "%s has max_position_embeddings=%d, the bench needs %d"
                                .formatted(directory, positions, ServingBench.LEAST_POSITIONS));
            }
            DType type = backend.dtype(dtype, config, quantization).dtype();
            KvLayout layout = config.kvLayout(ForwardBench.BLOCK_SIZE, type);
            int blocks = Math.max(
                    layout.blocksFor(positions),
                    layout.blocksFor(ForwardBench.DECODE_CONTEXT)
                            * IntStream.of(ForwardBench.DECODE_BATCHES).max().orElseThrow());
            return backend.load(
                            checkpoint,
                            ModelOptions.oneRank(
                                    type, quantization, ForwardBench.BLOCK_SIZE, blocks, threads, positions))
                    .first();
        }
    }
}
