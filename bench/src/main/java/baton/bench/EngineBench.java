package baton.bench;

import baton.bench.frame.Budget;
import baton.bench.frame.Layout;
import baton.bench.frame.Machine;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.MachineLimits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelRunner;
import baton.engine.model.Quantization;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.Require;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

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
 * @param device that computes the models; the shares of the processor's limits are left out for another
 * @param dtype to compute in; empty: chosen by {@link DTypeChoice}
 * @param quantization of the models
 * @param budget for everything
 * @param each how long each limit and each case is measured at most, all rounds together; empty: as the budget allows
 * @param progress receives a line for each step
 */
public record EngineBench(
        OptionalInt threads,
        Device device,
        Optional<DType> dtype,
        Quantization quantization,
        Budget budget,
        Optional<Duration> each,
        Consumer<String> progress) {
    /** Weight of a random checkpoint in the division of the budget; any other model has 1. It is slower to make and to run. */
    private static final double RANDOM_WEIGHT = 3;

    /** How the figures are shown. */
    public static final Layout FIGURES = EngineFigures.FIGURES;

    /** Where the steps' time goes, from the figures. */
    public static String profile(JsonNode figures) {
        return figures.path("models")
                .valueStream()
                .map(model -> "\n" + model.path("name").asString() + "\n"
                        + model.path("engine").path("profile").asString(""))
                .collect(Collectors.joining());
    }

    /** @throws ConfigException if the duration is not positive */
    public EngineBench {
        each.ifPresent(duration -> Require.positive("seconds", duration));
    }

    /**
     * Measures the checkpoints in these directories, and random ones of these shapes, each of which it writes into a temporary directory
     * for as long as it takes to load.
     *
     * @throws ConfigException if a checkpoint does not fit
     * @throws IOException if a checkpoint cannot be read, or a random one has no room
     */
    public void run(List<Path> models, List<ModelConfig> random, ObjectNode json) throws IOException {
        for (Path model : models) {
            // The engine needs it, minutes after the forward passes that do not.
            Tokenizer.load(model).close();
        }
        json.put("threads", threads.orElse(Runtime.getRuntime().availableProcessors()));
        Machine.here().writeTo(json.putObject("machine"));
        Results results = new Results(json, new ArrayList<>(), json.putArray("models"), json.putArray("left_out"));
        double weights = models.size() + RANDOM_WEIGHT * random.size();
        for (Path model : models) {
            if (results.models.isEmpty() || !budget.left().isZero()) {
                measure(model, budget.share(1 / weights), results);
            } else {
                results.leftOut.add(model + ": nothing of the budget is left");
            }
            weights--;
        }
        for (int i = 0; i < random.size(); i++) {
            measureRandom(random.get(i), budget.share(1.0 / (random.size() - i)), results);
        }
        json.path("against").path("left_out").forEach(results.leftOut::add);
    }

    private record Results(ObjectNode json, List<MachineLimits> limits, ArrayNode models, ArrayNode leftOut) {}

    private record Loaded(double loadSeconds, int positions, ForwardBench.Measured forward, ObjectNode figures) {}

    private void measureRandom(ModelConfig config, Budget share, Results results) throws IOException {
        long start = System.nanoTime();
        try {
            RandomModel.with(config, share.left(), progress, directory -> {
                double written = (System.nanoTime() - start) * 1e-9;
                // Loading reads as much as was written.
                if (share.fits(written)) {
                    measure(directory, share, results);
                } else {
                    results.leftOut.add(String.format(
                            Locale.ROOT,
                            "%s: writing its checkpoint took %.1f s, %.1f s of the budget are left",
                            config.name(),
                            written,
                            share.leftSeconds()));
                }
                return true;
            });
        } catch (RandomModel.TooSlowException e) {
            results.leftOut.add(config.name() + ": " + e.getMessage());
        }
    }

    private void measure(Path model, Budget share, Results results) throws IOException {
        Loaded loaded = ModelBackends.on(device).apart(() -> {
            try (MachineLimits.Probe probe = new MachineLimits.Probe(threads)) {
                long start = System.nanoTime();
                try (ModelRunner runner = load(model)) {
                    double seconds = (System.nanoTime() - start) * 1e-9;
                    ForwardBench.Measured forward =
                            new ForwardBench(runner, probe, share, each, progress).run(quantization);
                    ObjectNode figures = JsonNodeFactory.instance.objectNode();
                    EngineFigures.model(
                            figures,
                            runner.config(),
                            dtype(runner),
                            quantization,
                            runner.kernels(),
                            runner.operatorRates());
                    figures.put("on_processor", ForwardBench.computes(runner));
                    forward.write(figures);
                    return new Loaded(seconds, positions(runner.config()), forward, figures);
                }
            }
        });
        results.models.add(loaded.figures);
        results.limits.addAll(loaded.forward.limits());
        EngineFigures.limits(results.json, results.limits);
        loaded.forward.leftOut().forEach(results.leftOut::add);
        String name = loaded.figures.path("name").asString();
        if (share.fits(loaded.loadSeconds)) {
            progress.accept(name + ": through the engine");
            new ServingBench(threads, device, dtype, quantization, share, each, loaded.forward)
                    .run(model, loaded.positions, loaded.figures.putObject("engine"), results.leftOut);
        } else {
            results.leftOut.add(String.format(
                    Locale.ROOT,
                    "%s: through the engine: loading takes about %.1f s, %.1f s of the budget are left",
                    name,
                    loaded.loadSeconds,
                    share.leftSeconds()));
        }
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
            ModelConfig config = checkpoint.config();
            int positions = positions(config);
            if (positions < ServingBench.LEAST_POSITIONS) {
                throw new ConfigException(
                        "model",
                        "%s has max_position_embeddings=%d, the bench needs %d"
                                .formatted(directory, positions, ServingBench.LEAST_POSITIONS));
            }
            return ForwardBench.load(checkpoint, device, dtype, quantization, threads, positions);
        }
    }
}
