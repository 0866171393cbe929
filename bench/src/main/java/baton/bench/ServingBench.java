package baton.bench;

import baton.bench.ServingReport.Decode;
import baton.bench.ServingReport.FirstToken;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.GenerationCollector;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.LocalEngine;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.StepProfile;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import java.util.Random;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Measures requests through a whole engine, from {@code submit} to the events: scheduler, model, sampler, detokenizer.
 *
 * @param threads to compute with; empty: one for each processor
 * @param each how long each case is measured
 */
record ServingBench(OptionalInt threads, Duration each) {
    static final int FIRST_TOKEN_PROMPT = 2000;
    private static final int[] DECODE_SEQUENCES = {1, 8, 32};
    private static final int BLOCKS = 1024;
    /** Contexts grow from this by {@link #OUTPUT}, and are {@link EngineBench#DECODE_CONTEXT} in the middle. */
    private static final int PROMPT = EngineBench.DECODE_CONTEXT - 16;

    private static final int OUTPUT = 32;
    private static final int LEAST_REPETITIONS = 3;
    private static final long DEADLINE_SECONDS = 600;

    /** @throws IOException if the checkpoint cannot be read */
    ServingReport run(Path model) throws IOException {
        EngineConfig.Builder config =
                EngineConfig.of(model).maxModelLen(EngineBench.LONGEST_PREFILL).numBlocks(BLOCKS);
        threads.ifPresent(config::threads);
        Steps steps = new Steps();
        try (LocalEngine engine = LocalEngine.start(config.build(), steps)) {
            Load load = new Load(engine);
            List<Decode> decodes = new ArrayList<>();
            for (int sequences : DECODE_SEQUENCES) {
                decodes.add(decode(load, steps, sequences, false));
            }
            decodes.add(decode(load, steps, DECODE_SEQUENCES[DECODE_SEQUENCES.length - 1], true));
            return new ServingReport(engine.model().name(), List.copyOf(decodes), firstToken(load));
        }
    }

    private Decode decode(Load load, Steps steps, int sequences, boolean sampled) {
        SamplingParams.Builder sampling =
                SamplingParams.builder().maxTokens(OUTPUT).ignoreEos(true);
        SamplingParams params = sampled
                ? sampling.temperature(0.8).topP(0.95).seed(1L).build()
                : sampling.temperature(0).build();
        // The first times are for the JVM, which compiles the engine's code meanwhile on the cores that the model
        // computes on.
        generate(load, sequences, params);
        steps.record(sequences);
        generate(load, sequences, params);
        Recorded recorded = steps.take();
        return new Decode(
                sequences,
                sampled,
                Timing.of(recorded.seconds()),
                recorded.profile().summaries().getFirst());
    }

    private void generate(Load load, int sequences, SamplingParams params) {
        long end = System.nanoTime() + each.toNanos();
        do {
            load.generate(sequences, PROMPT, params);
        } while (System.nanoTime() < end);
    }

    private FirstToken firstToken(Load load) {
        SamplingParams one = SamplingParams.greedy(1);
        List<Double> cold = new ArrayList<>();
        List<Double> hit = new ArrayList<>();
        int cached = FIRST_TOKEN_PROMPT;
        long end = System.nanoTime() + each.toNanos();
        for (int i = 0; i < LEAST_REPETITIONS || System.nanoTime() < end; i++) {
            int[] prompt = load.prompt(FIRST_TOKEN_PROMPT);
            load.secondsToFirstToken(prompt, one, cold);
            cached = Math.min(cached, load.secondsToFirstToken(prompt, one, hit));
        }
        return new FirstToken(FIRST_TOKEN_PROMPT, cached, Timing.of(cold), Timing.of(hit));
    }

    /** Makes requests, one set at a time. */
    private static final class Load {
        private final LocalEngine engine;
        private final Random random = new Random(1);
        private long requests;

        Load(LocalEngine engine) {
            this.engine = engine;
        }

        int[] prompt(int length) {
            return random.ints(length, 5, engine.model().vocabularySize()).toArray();
        }

        void generate(int sequences, int length, SamplingParams sampling) {
            List<GenerationCollector> collectors = Stream.generate(() -> request(prompt(length), sampling))
                    .limit(sequences)
                    .map(request -> {
                        GenerationCollector collector = new GenerationCollector(request);
                        engine.submit(request, collector);
                        return collector;
                    })
                    .toList();
            collectors.forEach(Load::await);
        }

        /** Adds the time to {@code seconds}; returns how many of the prompt's tokens were cached. */
        int secondsToFirstToken(int[] prompt, SamplingParams sampling, List<Double> seconds) {
            GenerationRequest request = request(prompt, sampling);
            GenerationCollector collector = new GenerationCollector(request);
            long start = System.nanoTime();
            engine.submit(request, event -> {
                if (event instanceof GenerationEvent.Output output && output.ids().length > 0) {
                    seconds.add((System.nanoTime() - start) * 1e-9);
                }
                collector.accept(event);
            });
            return await(collector).cachedTokens();
        }

        private GenerationRequest request(int[] prompt, SamplingParams sampling) {
            return new GenerationRequest("bench-" + requests++, prompt, sampling);
        }

        private static RequestOutput await(GenerationCollector collector) {
            try {
                RequestOutput output = collector
                        .result()
                        .copy()
                        .orTimeout(DEADLINE_SECONDS, TimeUnit.SECONDS)
                        .join();
                output.completions().forEach(completion -> {
                    if (completion.reason() == FinishReason.ERROR) {
                        throw new IllegalStateException(
                                "a request failed: " + completion.error().orElse("no reason given"));
                    }
                });
                return output;
            } catch (CompletionException e) {
                throw new IllegalStateException("a request did not end in " + DEADLINE_SECONDS + " s", e);
            }
        }
    }

    private record Recorded(List<Double> seconds, StepProfile profile) {}

    /** Keeps the steps that decode as many sequences as asked for. */
    private static final class Steps implements EngineListener {
        private int sequences;
        private Recorded recorded = new Recorded(new ArrayList<>(), new StepProfile());

        synchronized void record(int wanted) {
            sequences = wanted;
            recorded = new Recorded(new ArrayList<>(), new StepProfile());
        }

        synchronized Recorded take() {
            sequences = 0;
            return recorded;
        }

        @Override
        public synchronized void onStepTimes(StepTimes times) {
            if (times.sequences() == sequences && times.tokens() == sequences) {
                recorded.seconds().add(times.totalNanos() * 1e-9);
                recorded.profile().onStepTimes(times);
            }
        }
    }
}
