package baton.bench;

import baton.bench.EngineReport.Beside;
import baton.bench.EngineReport.Decode;
import baton.bench.EngineReport.ModelReport;
import baton.bench.EngineReport.Prefill;
import baton.engine.model.Checkpoint;
import baton.engine.model.MachineLimits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.engine.model.TorchModels;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures what the machine allows, forward passes of models, without scheduler, sampler and server, and then requests through
 * the whole engine.
 *
 * <p>Other programs may take the machine's time at any moment. So it measures in rounds, each of them the limits first and then
 * every case of the model, and compares the best run of a case with the best run of a limit. Medians tell how disturbed it was.
 * A prefill takes so long that no run of it is undisturbed: it is also compared with matrix products done for as long, right before
 * and after it.
 *
 * @param threads to compute with; empty: one for each processor
 * @param quantization of the models
 * @param each how long each limit and each case is measured, all rounds together, and as long again a prefill beside products
 * @param rounds rounds for each model
 * @param progress told what is being done, line by line
 */
public record EngineBench(
        OptionalInt threads, Quantization quantization, Duration each, int rounds, Consumer<String> progress) {
    static final int LONGEST_PREFILL = 2048;
    static final int DECODE_CONTEXT = 128;
    private static final int[] PREFILL_TOKENS = {512, LONGEST_PREFILL};
    private static final int[] DECODE_BATCHES = {1, 8, 32};
    private static final int BLOCK_SIZE = 16;
    private static final int WARM_UPS = 2;

    /** @throws ConfigException if rounds or duration are not positive */
    public EngineBench {
        if (rounds <= 0) {
            throw new ConfigException("rounds", "is " + rounds + ", must be positive");
        }
        if (!each.isPositive()) {
            throw new ConfigException("seconds", "is " + each.toMillis() / 1e3 + ", must be positive");
        }
    }

    /**
     * Measures the checkpoints in these directories, and, if asked to, a random one of Llama-3.2-1B's shape, which it writes into
     * a temporary directory for as long as it takes to load.
     *
     * @throws ConfigException if a checkpoint does not fit
     * @throws IOException if a checkpoint cannot be read, or the random one has no room
     */
    public EngineReport run(List<Path> models, boolean random1b) throws IOException {
        List<MachineLimits> limits = new ArrayList<>();
        List<ModelReport> reports = new ArrayList<>();
        for (Path model : models) {
            reports.add(measure(model, limits));
        }
        if (random1b) {
            reports.add(measureRandom(RandomCheckpoint.llama1b(), limits));
        }
        return new EngineReport(
                threads.orElse(Runtime.getRuntime().availableProcessors()), List.copyOf(limits), List.copyOf(reports));
    }

    private ModelReport measure(Path model, List<MachineLimits> limits) throws IOException {
        ModelReport report = TorchModels.apart(() -> {
            try (MachineLimits.Probe probe = new MachineLimits.Probe(threads);
                    ModelRunner runner = load(model)) {
                return measure(runner, probe, limits);
            }
        });
        progress.accept(report.name() + ": through the engine");
        return report.with(new ServingBench(threads, each).run(model));
    }

    private ModelRunner load(Path directory) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            ModelConfig config = checkpoint.config();
            int positions = LONGEST_PREFILL;
            if (config.maxPositions() < positions) {
                throw new ConfigException(
                        "model",
                        "%s has max_position_embeddings=%d, the bench prefills %d tokens"
                                .formatted(directory, config.maxPositions(), positions));
            }
            DType dtype = config.dtype();
            KvLayout layout = config.kvLayout(BLOCK_SIZE, dtype);
            int blocks = Math.max(
                    layout.blocksFor(positions),
                    layout.blocksFor(DECODE_CONTEXT)
                            * IntStream.of(DECODE_BATCHES).max().orElseThrow());
            return TorchModels.load(checkpoint, dtype, quantization, layout, blocks, threads, positions);
        }
    }

    private ModelReport measureRandom(ModelConfig config, List<MachineLimits> limits) throws IOException {
        return withRandomCheckpoint(config, progress, directory -> measure(directory, limits));
    }

    /** What is done with a checkpoint. */
    interface Use<T> {
        T with(Path directory) throws IOException;
    }

    /** Writes a random checkpoint into a temporary directory, for as long as it is used. */
    static <T> T withRandomCheckpoint(ModelConfig config, Consumer<String> progress, Use<T> use) throws IOException {
        Path temporary = Files.createTempDirectory("baton-bench");
        try {
            requireRoom(temporary, config);
            // A checkpoint is named after its directory.
            Path directory = temporary.resolve(config.name());
            progress.accept("writing a random checkpoint of Llama-3.2-1B's shape to " + directory);
            RandomCheckpoint.write(directory, config, 1);
            writeTokenizer(directory.resolve("tokenizer.json"), config.vocabularySize());
            return use.with(directory);
        } finally {
            delete(temporary);
        }
    }

    /** A byte-level vocabulary of as many words; nobody encodes text with it. */
    private static void writeTokenizer(Path file, int vocabularySize) throws IOException {
        JsonMapper json = JsonMapper.builder().build();
        ObjectNode root = json.createObjectNode().put("version", "1.0");
        root.putArray("added_tokens");
        for (String part : List.of("pre_tokenizer", "decoder")) {
            root.putObject(part)
                    .put("type", "ByteLevel")
                    .put("add_prefix_space", false)
                    .put("trim_offsets", false);
        }
        ObjectNode model = root.putObject("model").put("type", "BPE");
        ObjectNode vocabulary = model.putObject("vocab");
        for (int id = 0; id < vocabularySize; id++) {
            vocabulary.put("\u0120" + id, id);
        }
        model.putArray("merges");
        Files.writeString(file, json.writeValueAsString(root));
    }

    private static void requireRoom(Path directory, ModelConfig config) throws IOException {
        long needed = config.parameters() * config.dtype().bytes() + (64L << 20);
        long free = Files.getFileStore(directory).getUsableSpace();
        if (free < needed) {
            throw new IOException(
                    "the random checkpoint needs %.1f GB for a moment, %s has %.1f GB free; set java.io.tmpdir to another directory, or leave the model out"
                            .formatted(needed / 1e9, directory.getParent(), free / 1e9));
        }
    }

    private static void delete(Path directory) throws IOException {
        try (Stream<Path> paths = Files.walk(directory)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    private ModelReport measure(ModelRunner runner, MachineLimits.Probe probe, List<MachineLimits> limits) {
        ModelConfig config = runner.config();
        List<Case> prefills = IntStream.of(PREFILL_TOKENS)
                .mapToObj(tokens -> new Case(List.of(slice(0, 0, tokens))))
                .toList();
        List<Case> decodes = IntStream.of(DECODE_BATCHES)
                .mapToObj(batch -> new Case(IntStream.range(0, batch)
                        .mapToObj(sequence -> slice(sequence, DECODE_CONTEXT - 1, 1))
                        .toList()))
                .toList();
        Duration once = each.dividedBy(rounds);
        for (int round = 1; round <= rounds; round++) {
            progress.accept("%s: round %d of %d".formatted(config.name(), round, rounds));
            limits.add(probe.measure(once));
            prefills.forEach(measured -> {
                measured.run(runner, once);
                measured.runBeside(runner, probe, once);
            });
            decodes.forEach(measured -> measured.run(runner, once));
        }
        int elementBytes = config.dtype().bytes();
        int weightBytes = quantization == Quantization.INT8 ? 1 : elementBytes;
        return new ModelReport(
                config.name(),
                config.parameters(),
                config.dtype(),
                quantization,
                IntStream.range(0, prefills.size())
                        .mapToObj(i -> Prefill.of(
                                PREFILL_TOKENS[i],
                                Work.prefillFlops(config, PREFILL_TOKENS[i]),
                                prefills.get(i).seconds,
                                prefills.get(i).beside))
                        .toList(),
                IntStream.range(0, decodes.size())
                        .mapToObj(i -> new Decode(
                                DECODE_BATCHES[i],
                                DECODE_CONTEXT,
                                Timing.of(decodes.get(i).seconds),
                                Work.decodeBytes(config, DECODE_BATCHES[i], DECODE_CONTEXT, weightBytes, elementBytes)))
                        .toList(),
                Optional.empty());
    }

    /** Sequence number {@code sequence} has blocks of its own, enough for the decode context or, being the first, for all. */
    private static SequenceSlice slice(int sequence, int start, int length) {
        int blocks = Math.ceilDiv(start + length, BLOCK_SIZE);
        return new SequenceSlice(
                IntStream.range(0, length).map(i -> 5 + i % 1000).toArray(),
                start,
                IntStream.range(blocks * sequence, blocks * (sequence + 1)).toArray(),
                1);
    }

    private static final class Case {
        private final List<SequenceSlice> slices;
        private final List<Double> seconds = new ArrayList<>();
        private final List<Beside> beside = new ArrayList<>();

        Case(List<SequenceSlice> slices) {
            this.slices = slices;
        }

        void run(ModelRunner runner, Duration once) {
            for (int i = 0; i < WARM_UPS; i++) {
                forward(runner);
            }
            long end = System.nanoTime() + once.toNanos();
            do {
                seconds.add(forward(runner));
            } while (System.nanoTime() < end);
        }

        /** Before and after each pass, products for as long as the last pass took. */
        void runBeside(ModelRunner runner, MachineLimits.Probe probe, Duration once) {
            long end = System.nanoTime() + once.toNanos();
            double before = probe.sustainedGemmFlops(lasting(seconds.getLast()));
            do {
                double pass = forward(runner);
                double after = probe.sustainedGemmFlops(lasting(pass));
                beside.add(new Beside(pass, (before + after) / 2));
                before = after;
            } while (System.nanoTime() < end);
        }

        private double forward(ModelRunner runner) {
            long start = System.nanoTime();
            runner.forward(slices, LayerHooks.NONE).close();
            return (System.nanoTime() - start) * 1e-9;
        }

        private static Duration lasting(double seconds) {
            return Duration.ofNanos((long) (seconds * 1e9));
        }
    }
}
