package baton.bench;

import baton.bench.frame.Layout;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationEvent;
import baton.engine.local.LocalEngine;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.Require;
import baton.kv.TemporaryDirectory;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures OffloadingConnector's gain and cost, by the time to the first token of a prompt, in one process: computed by an engine
 * without a connector; computed by one with it, which stores the computed blocks (the price of a miss), in turns with the former; loaded
 * from host memory; and loaded from files by an engine that has just been started. The engines keep no prefix cache of their own.
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

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head(
                    "{model}, prompts of {tokens|%,d} tokens ({bytes|%.1f|9.5367431640625e-7} MiB of KV cache): milliseconds to the first token,"
                            + " median (best), and as a share of those computed\n")
            .line(line("computed", "computed"))
            .line(line("computed, with the connector", "missed"))
            .line(line("loaded from memory", "from_memory"))
            .line(line("loaded from files", "from_files"))
            .line(
                    "\nA hit in memory takes 1/{from_memory/times_faster|%.0f}, one in files 1/{from_files/times_faster|%.0f} of computing.");

    private static String line(String name, String field) {
        return "  %-30s {%2$s/seconds|%%10.1f|1e3} ({%2$s/best_seconds|%%.1f|1e3})  {%2$s/share|%%.1f|100} %% ({%2$s/best_share|%%.1f|100} %%)"
                .formatted(name, field);
    }

    /** @throws ConfigException if a number makes no sense */
    public OffloadingBench {
        Require.positive("repetitions", repetitions);
        Require.multiples("tokens", List.of(tokens), BLOCK_SIZE);
    }

    /**
     * Measures with a checkpoint, or with a random one of Llama-3.2-1B's shape, which it writes into a temporary directory.
     *
     * @throws ConfigException if the prompts do not fit the model
     * @throws IOException if the checkpoint cannot be read, or a request fails
     */
    public void run(Optional<Path> model, ObjectNode json) throws IOException {
        if (model.isEmpty()) {
            RandomModel.with(RandomCheckpoint.llama1b(), DEADLINE, progress, random -> {
                run(Optional.of(random), json);
                return true;
            });
        } else if (directory.isPresent()) {
            measure(model.get(), directory.get(), json);
        } else {
            try (TemporaryDirectory files = TemporaryDirectory.create("baton-bench")) {
                measure(model.get(), files.path(), json);
            }
        }
    }

    private void measure(Path model, Path files, ObjectNode json) throws IOException {
        Rounds rounds = new Rounds();
        try (LocalEngine alone = LocalEngine.start(config(model, Optional.empty()), EngineListener.NONE);
                LocalEngine offloading =
                        LocalEngine.start(config(model, Optional.of(Optional.empty())), EngineListener.NONE)) {
            json.put("model", alone.model().name())
                    .put("tokens", tokens)
                    .put(
                            "bytes",
                            tokens
                                    / BLOCK_SIZE
                                    * alone.model()
                                            .kvLayout(BLOCK_SIZE, alone.model().dtype())
                                            .blockBytes());
            for (int i = -WARM_UPS; i < repetitions; i++) {
                boolean first = i % 2 == 0;
                double a = first ? seconds(alone, "computed", i, 0) : 0;
                double miss = seconds(offloading, "computed, with the connector", i, 0);
                double b = first ? a : seconds(alone, "computed", i, 0);
                double hit = seconds(offloading, "loaded from memory", i, tokens - 1);
                if (i >= 0) {
                    rounds.add("computed", b);
                    rounds.add("missed", miss);
                    rounds.add("from_memory", hit);
                    write(json, rounds);
                }
            }
        }
        Optional<Optional<Path>> withFiles = Optional.of(Optional.of(files));
        try (LocalEngine writer = LocalEngine.start(config(model, withFiles), EngineListener.NONE)) {
            // One more than is read: files are written behind the answer, and blocks not yet written when an engine
            // ends are lost.
            for (int i = -WARM_UPS; i <= repetitions; i++) {
                seconds(writer, "computed and written to files", i, 0);
            }
        }
        try (LocalEngine reader = LocalEngine.start(config(model, withFiles), EngineListener.NONE)) {
            for (int i = -WARM_UPS; i < repetitions; i++) {
                double hit = seconds(reader, "loaded from files", i, tokens - 1);
                if (i >= 0) {
                    rounds.add("from_files", hit);
                    write(json, rounds);
                }
            }
        }
    }

    private static void write(ObjectNode json, Rounds rounds) {
        Timing computed = Timing.of(rounds.values("computed"));
        rounds.forEach((name, timing) -> json.putObject(name)
                .put("seconds", timing.median())
                .put("best_seconds", timing.best())
                .put("share", timing.median() / computed.median())
                .put("best_share", timing.best() / computed.best())
                .put("times_faster", computed.median() / timing.median()));
    }

    /** @param offloading with a connector, and perhaps files */
    private EngineConfig config(Path model, Optional<Optional<Path>> offloading) {
        EngineConfigBuilder config = EngineConfig.of(model)
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
        EngineRequest request = EngineRequest.submit(
                engine, what + " " + which, EngineRequest.prompt(engine, tokens, which), Optional.empty());
        GenerationEvent.Finished end = request.await(DEADLINE);
        int cached = end.usage().cachedTokens();
        if (atLeast == 0 ? cached > 0 : cached < atLeast / BLOCK_SIZE * BLOCK_SIZE) {
            throw new IOException("%s: %d of %d tokens were cached".formatted(what, cached, tokens));
        }
        double seconds = request.secondsToFirst();
        progress.accept("%s: %.1f ms".formatted(what, seconds * 1e3));
        return seconds;
    }
}
