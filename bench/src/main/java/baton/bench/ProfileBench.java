package baton.bench;

import baton.bench.CompletionsClient.Answer;
import baton.bench.frame.Timing;
import baton.bench.plan.Curve;
import baton.bench.plan.MachineProfile;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;

/**
 * Measures the {@link MachineProfile} of an instance by requests to it, each with a prompt that it has not seen; of any server with OpenAI's
 * API that takes token ids.
 *
 * @param instance asked directly: computes prompts and generates tokens
 * @param routers by connector: a router before a prefill and a decode instance on such machines
 * @param times that each case is measured; the median counts
 * @param deadline for each answer
 * @param progress receives a line for each step
 */
public record ProfileBench(
        CompletionsClient instance,
        Map<String, CompletionsClient> routers,
        int times,
        Duration deadline,
        Consumer<String> progress) {
    private static final int[] PROMPTS = {32, 128, 512, 1024, 2048, 4096};
    private static final int[] SEQUENCES = {1, 2, 4, 8, 16, 32};
    private static final int SHORT_CONTEXT = 32;
    private static final int OUTPUT = 48;
    private static final int TRIES = 5;
    private static final int MIXED_OUTPUT = 96;

    /** A step that takes so long makes larger batches pointless, and measuring them slow. */
    private static final double LONG_STEP = 2;

    /** @throws ConfigException if {@code times} is not positive */
    public ProfileBench {
        Require.atLeast("times", times, 1);
        routers = new LinkedHashMap<>(routers);
    }

    /**
     * Measures.
     *
     * @param name of the machine
     * @param units that the instance occupies
     * @param model directory of the checkpoint that it serves, for the vocabulary and the number of positions
     * @param maxSequences that it generates at once
     * @throws IOException with the server's URL and its answer, if one does not work
     */
    public MachineProfile run(String name, int units, Path model, int maxSequences) throws IOException {
        try (RandomPrompts prompts = new RandomPrompts(model)) {
            return new Run(prompts, maxSequences).measure(name, units);
        }
    }

    private final class Run {
        private final RandomPrompts prompts;
        private final int maxSequences;

        Run(RandomPrompts prompts, int maxSequences) {
            this.prompts = prompts;
            this.maxSequences = maxSequences;
        }

        MachineProfile measure(String name, int units) throws IOException {
            ask(instance, SHORT_CONTEXT, 1, OUTPUT);
            Curve prefill = curve("prefill", lengths(), tokens -> secondsToFirst(instance, tokens));
            List<Curve.Point> steps = new ArrayList<>();
            for (int sequences : SEQUENCES) {
                if (sequences > maxSequences
                        || (!steps.isEmpty() && steps.getLast().value() > LONG_STEP)) {
                    break;
                }
                steps.add(new Curve.Point(
                        sequences, median("step of " + sequences, () -> step(SHORT_CONTEXT, sequences))));
            }
            Curve step = new Curve(steps);
            int context = lengths().getLast() / 2;
            int sequences = Math.min(4, maxSequences);
            double withContext = median("step of " + sequences + " at " + context, () -> step(context, sequences));
            double perContextToken = context <= SHORT_CONTEXT
                    ? 0
                    : Math.max(
                            0, (withContext - step.at(sequences)) / (sequences * (double) (context - SHORT_CONTEXT)));
            MachineProfile alone =
                    new MachineProfile(name, units, prefill, step, perContextToken, 1, Map.of(), maxSequences);
            int prompt = lengths().get(lengths().size() / 2);
            double added = median("prompt of " + prompt + " among tokens", () -> added(prompt));
            double mixed = Math.clamp(added / Math.max(1e-9, prefill.at(prompt) - prefill.at(0)), 0.0, 4.0);
            Map<String, Curve> handoff = new LinkedHashMap<>();
            for (Map.Entry<String, CompletionsClient> router : routers.entrySet()) {
                ask(router.getValue(), SHORT_CONTEXT, 1, 2);
                handoff.put(
                        router.getKey(),
                        curve(
                                router.getKey(),
                                lengths(),
                                // Its first token comes with a step of the decode instance.
                                tokens -> Math.max(
                                        0,
                                        secondsToFirst(router.getValue(), tokens) - prefill.at(tokens) - step.at(1))));
            }
            return new MachineProfile(
                    alone.name(), units, prefill, step, perContextToken, mixed, handoff, maxSequences);
        }

        private List<Integer> lengths() {
            int most = prompts.maxPositions() - MIXED_OUTPUT;
            List<Integer> fitting = new ArrayList<>();
            for (int tokens : PROMPTS) {
                if (tokens < most) {
                    fitting.add(tokens);
                }
            }
            if (fitting.isEmpty()) {
                throw new ConfigException(
                        "model",
                        "has %d positions, measuring needs %d"
                                .formatted(prompts.maxPositions(), SHORT_CONTEXT + MIXED_OUTPUT + 1));
            }
            return fitting;
        }

        private interface OfTokens {
            double seconds(int tokens) throws IOException;
        }

        private interface Measured {
            double seconds() throws IOException;
        }

        private Curve curve(String what, List<Integer> lengths, OfTokens measured) throws IOException {
            List<Curve.Point> points = new ArrayList<>();
            for (int tokens : lengths) {
                points.add(new Curve.Point(tokens, median(what + " of " + tokens, () -> measured.seconds(tokens))));
            }
            return new Curve(points);
        }

        private double median(String what, Measured measured) throws IOException {
            List<Double> seconds = new ArrayList<>();
            for (int i = 0; i < times; i++) {
                seconds.add(measured.seconds());
            }
            double median = Timing.median(seconds);
            progress.accept(String.format(Locale.ROOT, "%s: %.2f ms", what, median * 1e3));
            return median;
        }

        private double secondsToFirst(CompletionsClient server, int tokens) throws IOException {
            // Two, as a router has one token computed by the prefill instance alone.
            return ask(server, tokens, 1, 2).getFirst().secondsToFirst();
        }

        /** Seconds between tokens while all sequences are generated. */
        private double step(int context, int sequences) throws IOException {
            // Of fast answers, some are over before all of them have begun.
            for (int tries = 0; tries < TRIES; tries++) {
                OptionalDouble seconds = CompletionsClient.secondsPerStep(ask(instance, context, sequences, OUTPUT));
                if (seconds.isPresent()) {
                    return seconds.getAsDouble();
                }
            }
            throw new IOException(instance.url() + " generated " + sequences
                    + " answers one after the other: does it run so many at once?");
        }

        /** The time that a prompt takes from a sequence that is being generated. */
        private double added(int prompt) throws IOException {
            double without = generated(List.of());
            return Math.max(0, generated(List.of(prompt)) - without);
        }

        /** Seconds that a sequence takes while these prompts are computed. */
        private double generated(List<Integer> beside) throws IOException {
            try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
                Future<List<Answer>> stream = executor.submit(() -> ask(instance, SHORT_CONTEXT, 1, MIXED_OUTPUT));
                // So that the sequence is under way.
                ask(instance, SHORT_CONTEXT, 1, 4);
                for (int prompt : beside) {
                    ask(instance, prompt, 1, 1);
                }
                return seconds(
                        stream.get(deadline.toNanos(), TimeUnit.NANOSECONDS).getFirst());
            } catch (ExecutionException | TimeoutException e) {
                throw new IOException(instance.url() + ": " + e.getMessage(), e);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException(instance.url() + ": interrupted", e);
            }
        }

        private static double seconds(Answer answer) {
            return (answer.last() - answer.first()) * 1e-9;
        }

        private List<Answer> ask(CompletionsClient server, int context, int requests, int output) throws IOException {
            List<JsonNode> asked =
                    Stream.generate(() -> prompts.ids(context)).limit(requests).toList();
            return server.ask(asked, output, deadline);
        }
    }
}
