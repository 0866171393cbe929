package baton.bench;

import baton.bench.frame.Budget;
import baton.bench.frame.Timing;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.StepPhase;
import baton.engine.StepProfile;
import baton.engine.StepProfile.Percentile;
import baton.engine.local.LocalEngine;
import baton.engine.model.Device;
import baton.engine.model.Quantization;
import baton.grammar.OutputFormat;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.kv.DType;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.stream.Stream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures requests through a whole engine, from {@code submit} to the events: scheduler, model, sampler, detokenizer.
 *
 * @param threads to compute with; empty: one for each processor
 * @param device that computes
 * @param dtype to compute in; empty: the engine's choice
 * @param quantization of the model
 * @param budget for all cases
 * @param each how long each case is measured at most; empty: as the budget allows
 * @param forward the model's forward passes; their times predict the cases that fit into the budget
 */
record ServingBench(
        OptionalInt threads,
        Device device,
        Optional<DType> dtype,
        Quantization quantization,
        Budget budget,
        Optional<Duration> each,
        ForwardBench.Measured forward) {
    private static final int FIRST_TOKEN_PROMPT = 2000;
    private static final int[] DECODE_SEQUENCES = ForwardBench.DECODE_BATCHES;
    private static final int MOST_SEQUENCES = DECODE_SEQUENCES[DECODE_SEQUENCES.length - 1];
    private static final int WANTED_FIRST_TOKENS = 2;
    private static final int BLOCKS = 1024;
    /** Contexts grow from this by {@link #OUTPUT}, and are {@link ForwardBench#DECODE_CONTEXT} in the middle. */
    private static final int PROMPT = ForwardBench.DECODE_CONTEXT - 16;

    private static final int OUTPUT = 32;
    private static final int FORMAT_SEQUENCES = 8;
    /** Documents that no output here is long enough for. */
    private static final OutputFormat FORMAT = new OutputFormat.JsonSchema("""
            {"type": "array", "minItems": 1000, "items": {"type": "object", "additionalProperties": false,
              "properties": {"name": {"type": "string"}, "count": {"type": "integer", "minimum": 0}, "kind": {"enum": ["new", "old"]},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}}},
              "required": ["name", "count", "kind"]}}""", SchemaOptions.DEFAULT);
    /** Positions that a model must have. */
    static final int LEAST_POSITIONS = PROMPT + OUTPUT;

    /** The least output of a case that is shortened rather than left out. */
    private static final int LEAST_OUTPUT = 4;
    /** Warming up, and measuring. */
    private static final int TIMES = 2;
    /** A request may take that much longer than the budget. */
    private static final Duration GRACE = Duration.ofSeconds(30);

    /**
     * @param positions that sequences may have
     * @throws IOException if the checkpoint cannot be read
     */
    void run(Path model, int positions, ObjectNode json, ArrayNode leftOut) throws IOException {
        EngineConfigBuilder config = EngineConfig.of(model)
                .device(device)
                .quantization(quantization)
                .maxModelLen(positions)
                .numBlocks(BLOCKS);
        threads.ifPresent(config::threads);
        dtype.ifPresent(config::dtype);
        Steps steps = new Steps();
        try (LocalEngine engine = LocalEngine.start(config.build(), steps)) {
            Run run = new Run(engine, steps, json, leftOut);
            for (int sequences : DECODE_SEQUENCES) {
                run.decode(sequences, false);
            }
            run.decode(MOST_SEQUENCES, true);
            run.format();
            run.firstToken();
        }
    }

    /** All cases, one after the other. */
    private final class Run {
        private final LocalEngine engine;
        private final Steps steps;
        private final Load load;
        private final ObjectNode json;
        private final ArrayNode decodes;
        private final ArrayNode leftOut;
        private final List<StepProfile.Summary> profiles = new ArrayList<>();
        /** How many of the prompts have been computed. Their blocks are found in the cache when they come again. */
        private int prompted;

        private int casesLeft = DECODE_SEQUENCES.length + 3;

        Run(LocalEngine engine, Steps steps, ObjectNode json, ArrayNode leftOut) {
            this.engine = engine;
            this.steps = steps;
            this.json = json;
            this.leftOut = leftOut;
            decodes = json.putArray("decode");
            load = new Load(engine, budget);
        }

        void decode(int sequences, boolean sampled) throws IOException {
            double affordable = budget.leftSeconds() / casesLeft / TIMES;
            double time = budget.forOneOf(casesLeft--, each) / TIMES;
            double step = secondsPerStep(sequences);
            double prompts = Math.max(0, sequences - prompted) * PROMPT * forward.secondsPerToken();
            int output = (int) Math.clamp((affordable - prompts) / step, LEAST_OUTPUT, OUTPUT);
            double expected = prompts + TIMES * output * step;
            String what = "decode " + sequences + (sampled ? ", sampled" : "");
            if (!fits(what, expected)) {
                return;
            }
            SamplingParamsBuilder sampling =
                    SamplingParams.builder().maxTokens(output).ignoreEos(true);
            SamplingParams params = sampled
                    ? sampling.temperature(0.8).topP(0.95).seed(1L).build()
                    : sampling.temperature(0).build();
            // The first times are for the JVM, which compiles the engine's code meanwhile on the cores that the model
            // computes on.
            generate(sequences, params, time, output * step);
            prompted = Math.max(prompted, sequences);
            steps.record(sequences);
            generate(sequences, params, time, output * step);
            Recorded recorded = steps.take();
            if (recorded.seconds().isEmpty()) {
                leftOut.add(what(what) + "no step decoded all of them");
                return;
            }
            write(sequences, sampled, recorded);
        }

        private void write(int sequences, boolean sampled, Recorded recorded) {
            StepProfile.Summary profile = recorded.profile().summaries().getFirst();
            profiles.add(profile);
            json.put("profile", StepProfile.table(profiles));
            Timing timing = Timing.of(recorded.seconds());
            List<Percentile> percentiles = profile.percentiles();
            ObjectNode node = EngineFigures.rate(
                            decodes.addObject()
                                    .put("label", "decode " + sequences + (sampled ? ", top_p 0.95" : ""))
                                    .put("sequences", sequences)
                                    .put("sampled", sampled),
                            timing,
                            sequences)
                    .put("overhead_microseconds", percentiles.getFirst().overhead() / 1e3)
                    .put("p99_overhead_microseconds", percentiles.getLast().overhead() / 1e3);
            forward.decodes().stream()
                    .filter(each -> each.batch() == sequences)
                    .forEach(each -> node.put("share_of_forward", sequences / timing.best() / each.tokensPerSecond()));
            ArrayNode all = node.putArray("step_microseconds");
            for (Percentile percentile : percentiles) {
                ObjectNode times = all.addObject()
                        .put("percentile", percentile.share() * 100)
                        .put("total", percentile.total() / 1e3)
                        .put("overhead", percentile.overhead() / 1e3);
                for (StepPhase phase : StepPhase.values()) {
                    times.put(phase.name().toLowerCase(Locale.ROOT), percentile.phase(phase) / 1e3);
                }
            }
        }

        /** Measures sequences with a format of the output and the same ones without, in turns. */
        void format() throws IOException {
            double share = budget.forOneOf(casesLeft--, each) / TIMES;
            double expected = 2 * TIMES * OUTPUT * secondsPerStep(FORMAT_SEQUENCES);
            String what = "decode %d of a format".formatted(FORMAT_SEQUENCES);
            if (!fits(what, expected)) {
                return;
            }
            SamplingParamsBuilder sampling =
                    SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(OUTPUT);
            List<SamplingParams> both =
                    List.of(sampling.build(), sampling.format(FORMAT).build());
            try {
                engine.prepare(both.getLast());
            } catch (ConfigException e) {
                leftOut.add(what(what) + e.getMessage());
                return;
            }
            List<List<Double>> seconds = List.of(new ArrayList<>(), new ArrayList<>());
            for (int time = 0; time < TIMES; time++) {
                seconds.forEach(List::clear);
                long start = System.nanoTime();
                do {
                    for (int i = 0; i < both.size(); i++) {
                        steps.record(FORMAT_SEQUENCES);
                        load.generate(FORMAT_SEQUENCES, both.get(i));
                        seconds.get(i).addAll(steps.take().seconds());
                    }
                } while ((System.nanoTime() - start) * 1e-9 + expected / TIMES < share);
            }
            if (seconds.stream().anyMatch(List::isEmpty)) {
                leftOut.add(what(what) + "no step decoded all of them");
                return;
            }
            ObjectNode node = json.putObject("format")
                    .put("sequences", FORMAT_SEQUENCES)
                    .put("share_of_free", Timing.median(seconds.getFirst()) / Timing.median(seconds.getLast()));
            EngineFigures.rate(node.putObject("free"), Timing.of(seconds.getFirst()), FORMAT_SEQUENCES);
            EngineFigures.rate(node.putObject("formatted"), Timing.of(seconds.getLast()), FORMAT_SEQUENCES);
        }

        /** Once, and again while there is time for it. */
        private void generate(int sequences, SamplingParams params, double seconds, double once) throws IOException {
            long start = System.nanoTime();
            do {
                load.generate(sequences, params);
            } while ((System.nanoTime() - start) * 1e-9 + once < seconds);
        }

        void firstToken() throws IOException {
            double share = budget.forOneOf(casesLeft--, each);
            double expected = FIRST_TOKEN_PROMPT * forward.secondsPerToken();
            String what = "first token of %d tokens".formatted(FIRST_TOKEN_PROMPT);
            if (engine.maxModelLen() <= FIRST_TOKEN_PROMPT) {
                leftOut.add(what(what) + "the model has max_position_embeddings=" + engine.maxModelLen());
                return;
            }
            if (!fits(what, expected)) {
                return;
            }
            SamplingParams one = SamplingParams.greedy(1);
            List<Double> cold = new ArrayList<>();
            List<Double> hit = new ArrayList<>();
            int cached = FIRST_TOKEN_PROMPT;
            long start = System.nanoTime();
            do {
                int[] prompt = load.prompt(FIRST_TOKEN_PROMPT);
                load.secondsToFirstToken(prompt, one, cold);
                cached = Math.min(cached, load.secondsToFirstToken(prompt, one, hit));
            } while ((System.nanoTime() - start) * 1e-9 + expected < share
                    || (cold.size() < WANTED_FIRST_TOKENS && budget.fits(cold.getLast())));
            ObjectNode node = json.putObject("first_token")
                    .put("prompt_tokens", FIRST_TOKEN_PROMPT)
                    .put("cached_tokens", cached)
                    .put("share_of_cold", Timing.median(hit) / Timing.median(cold));
            Timing.of(cold).writeTo(node.putObject("cold"));
            Timing.of(hit).writeTo(node.putObject("hit"));
        }

        private boolean fits(String what, double expected) {
            boolean fits = budget.fits(expected);
            if (!fits) {
                leftOut.add(what(what) + budget.tooLittleFor(expected));
            }
            return fits;
        }

        private String what(String what) {
            return "%s: through the engine: %s: ".formatted(engine.model().name(), what);
        }

        private double secondsPerStep(int sequences) {
            return forward.decodes().stream()
                    .filter(decode -> decode.batch() == sequences)
                    .mapToDouble(decode -> decode.timing().median())
                    .findFirst()
                    .orElse(sequences * forward.secondsPerToken());
        }
    }

    /** Sends requests, one set at a time. */
    private static final class Load {
        private final LocalEngine engine;
        private final Budget budget;
        private final Random random = new Random(1);
        private final List<int[]> prompts;
        private long requests;

        Load(LocalEngine engine, Budget budget) {
            this.engine = engine;
            this.budget = budget;
            prompts =
                    Stream.generate(() -> prompt(PROMPT)).limit(MOST_SEQUENCES).toList();
        }

        int[] prompt(int length) {
            return random.ints(length, 5, engine.model().vocabularySize()).toArray();
        }

        /** Generates {@code sequences} sequences, always of the same prompts. */
        void generate(int sequences, SamplingParams sampling) throws IOException {
            List<EngineRequest> requests = prompts.stream()
                    .limit(sequences)
                    .map(prompt -> submit(prompt, sampling))
                    .toList();
            for (EngineRequest each : requests) {
                var _ = each.await(deadline());
            }
        }

        /** Adds the time to {@code seconds}; returns how many of the prompt's tokens were cached. */
        int secondsToFirstToken(int[] prompt, SamplingParams sampling, List<Double> seconds) throws IOException {
            EngineRequest request = submit(prompt, sampling);
            int cached = request.await(deadline()).usage().cachedTokens();
            seconds.add(request.secondsToFirst());
            return cached;
        }

        private EngineRequest submit(int[] prompt, SamplingParams sampling) {
            return EngineRequest.submit(engine, new GenerationRequest("bench-" + requests++, prompt, sampling));
        }

        private Duration deadline() {
            return budget.left().plus(GRACE);
        }
    }

    private record Recorded(List<Double> seconds, StepProfile profile) {}

    /** Keeps the steps that decode as many sequences as asked for. */
    private static final class Steps implements EngineListener {
        @GuardedBy("this")
        private int sequences;

        @GuardedBy("this")
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
