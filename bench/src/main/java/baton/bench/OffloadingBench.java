package baton.bench;

import baton.cluster.TemporaryDirectory;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.local.LocalEngine;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;

/**
 * Measures what OffloadingConnector gains and costs, by the time to the first token of a prompt, in one process: computed by an engine
 * without a connector; computed by one with it, which stores what it computes (the price of a miss), in turns with the former; loaded from
 * host memory; and loaded from files by an engine that has just been started. The engines keep no prefix cache of their own.
 *
 * @param threads that each engine computes with; empty: one for each processor
 * @param tokens of the prompts
 * @param repetitions prompts; each is computed and loaded once
 * @param directory for the files; empty: a temporary one
 * @param progress receives a line for each step
 */
public record OffloadingBench(
        OptionalInt threads, int tokens, int repetitions, Optional<Path> directory, Consumer<String> progress) {
    private static final int BLOCK_SIZE = 16;
    private static final int WARM_UPS = 2;
    private static final Duration DEADLINE = Duration.ofMinutes(5);

    /** @throws ConfigException if a number makes no sense */
    public OffloadingBench {
        if (repetitions <= 0) {
            throw new ConfigException("repetitions", "is " + repetitions + ", must be positive");
        }
        TokenCounts.require(List.of(tokens), BLOCK_SIZE);
    }

    /**
     * Measures with a checkpoint, or with a random one of Llama-3.2-1B's shape, which it writes into a temporary directory.
     *
     * @throws ConfigException if the prompts do not fit the model
     * @throws IOException if the checkpoint cannot be read, or a request fails
     */
    public OffloadingReport run(Optional<Path> model) throws IOException {
        return model.isPresent()
                ? measure(model.get())
                : RandomModel.with(RandomCheckpoint.llama1b(), DEADLINE, progress, this::measure);
    }

    private OffloadingReport measure(Path model) throws IOException {
        if (directory.isPresent()) {
            return measure(model, directory.get());
        }
        try (TemporaryDirectory files = TemporaryDirectory.create("baton-bench")) {
            return measure(model, files.path());
        }
    }

    private OffloadingReport measure(Path model, Path files) throws IOException {
        List<Double> computed = new ArrayList<>();
        List<Double> missed = new ArrayList<>();
        List<Double> fromMemory = new ArrayList<>();
        List<Double> fromFiles = new ArrayList<>();
        String name;
        long bytes;
        try (LocalEngine alone = LocalEngine.start(config(model, Optional.empty()), EngineListener.NONE);
                LocalEngine offloading =
                        LocalEngine.start(config(model, Optional.of(Optional.empty())), EngineListener.NONE)) {
            name = alone.model().name();
            bytes = tokens
                    / BLOCK_SIZE
                    * alone.model().kvLayout(BLOCK_SIZE, alone.model().dtype()).blockBytes();
            for (int i = -WARM_UPS; i < repetitions; i++) {
                boolean first = i % 2 == 0;
                double a = first ? seconds(alone, "computed", i, 0) : 0;
                double miss = seconds(offloading, "computed, with the connector", i, 0);
                double b = first ? a : seconds(alone, "computed", i, 0);
                double hit = seconds(offloading, "loaded from memory", i, tokens - 1);
                if (i >= 0) {
                    computed.add(b);
                    missed.add(miss);
                    fromMemory.add(hit);
                }
            }
        }
        Optional<Optional<Path>> withFiles = Optional.of(Optional.of(files));
        try (LocalEngine writer = LocalEngine.start(config(model, withFiles), EngineListener.NONE)) {
            // One more than is read: files are written behind the answer, and what is not written when an engine ends
            // is lost.
            for (int i = -WARM_UPS; i <= repetitions; i++) {
                seconds(writer, "computed and written to files", i, 0);
            }
        }
        try (LocalEngine reader = LocalEngine.start(config(model, withFiles), EngineListener.NONE)) {
            for (int i = -WARM_UPS; i < repetitions; i++) {
                double hit = seconds(reader, "loaded from files", i, tokens - 1);
                if (i >= 0) {
                    fromFiles.add(hit);
                }
            }
        }
        return new OffloadingReport(
                name,
                tokens,
                bytes,
                Timing.of(computed),
                Timing.of(missed),
                Timing.of(fromMemory),
                Timing.of(fromFiles));
    }

    /** @param offloading with a connector, and perhaps files */
    private EngineConfig config(Path model, Optional<Optional<Path>> offloading) {
        EngineConfig.Builder config = EngineConfig.of(model)
                .maxModelLen(tokens + 1)
                .maxNumBatchedTokens(2048)
                .blockSize(BLOCK_SIZE)
                .enablePrefixCaching(false)
                .numBlocks(3 * Math.ceilDiv(tokens + 1, BLOCK_SIZE));
        threads.ifPresent(config::threads);
        if (offloading.isPresent()) {
            KvTransferConfig.Builder transfer = KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                    // Room for all prompts of a model of some billion parameters.
                    .extra("cpu_bytes_to_use", (repetitions + WARM_UPS) * (long) tokens * 128 * 1024);
            offloading
                    .get()
                    .ifPresent(root -> transfer.extra(
                            "secondary_tiers", List.of(Map.of("type", "fs", "root_dir", root.toString()))));
            config.kvTransfer(transfer.build());
        }
        return config.build();
    }

    /**
     * Seconds to the first token.
     *
     * @param atLeast tokens that must come from the connector; with 0 none may
     */
    private double seconds(LocalEngine engine, String what, int which, int atLeast) throws IOException {
        int[] prompt = new Random((long) which << 32 | tokens)
                .ints(tokens, 5, engine.model().vocabularySize())
                .toArray();
        BlockingQueue<GenerationEvent.Finished> ends = new LinkedBlockingQueue<>();
        long[] first = new long[1];
        long start = System.nanoTime();
        engine.submit(
                new GenerationRequest(
                        what + " " + which,
                        prompt,
                        SamplingParams.builder()
                                .temperature(0)
                                .ignoreEos(true)
                                .maxTokens(1)
                                .build(),
                        Optional.empty(),
                        Optional.empty(),
                        0),
                event -> {
                    if (event instanceof GenerationEvent.Output && first[0] == 0) {
                        first[0] = System.nanoTime();
                    }
                    if (event instanceof GenerationEvent.Finished end) {
                        ends.add(end);
                    }
                });
        GenerationEvent.Finished end = RequestEnd.await(ends, DEADLINE);
        int cached = end.usage().cachedTokens();
        if (atLeast == 0 ? cached > 0 : cached < atLeast / BLOCK_SIZE * BLOCK_SIZE) {
            throw new IOException("%s: %d of %d tokens were cached".formatted(what, cached, tokens));
        }
        double seconds = (first[0] - start) / 1e9;
        progress.accept("%s: %.1f ms".formatted(what, seconds * 1e3));
        return seconds;
    }
}
