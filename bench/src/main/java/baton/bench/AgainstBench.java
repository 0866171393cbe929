package baton.bench;

import baton.bench.CompletionsClient.Answer;
import baton.bench.CompletionsClient.RefusedException;
import baton.bench.frame.Budget;
import baton.bench.frame.Timing;
import baton.bench.serve.EndpointClient.LateException;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Sends the same requests to two servers that serve the same checkpoint, in turns of about a second, so that a disturbance of one disturbs
 * the other. A turn begins when the processors are at rest.
 *
 * @param budget for all cases; also the deadline for each answer
 * @param each how long each case is measured with each server at most; empty: as the budget allows
 * @param progress receives a line for each step
 */
public record AgainstBench(Budget budget, Optional<Duration> each, Consumer<String> progress) {
    private static final int[] PREFILL_TOKENS = {128, 512, 2048};
    private static final int[] DECODE_REQUESTS = {1, 8};
    /** Prompt tokens in the decode cases. */
    private static final int CONTEXT = 128;
    /** Tokens of the request that finds out whether a server accepts token ids. */
    private static final int TRIAL = 8;

    private static final int LEAST_OUTPUT = 8;
    private static final int MOST_OUTPUT = 128;
    /** How long answers should take at least, so that those of several requests overlap. */
    private static final double LEAST_SECONDS = 0.25;

    private static final int SERVERS = 2;
    /** How often a case should be measured at least. */
    private static final int WANTED_TIMES = 3;

    private static final int AFFORDABLE_TIMES = 2;
    /** Deadline of a pair of requests, in multiples of the expected time. */
    private static final double MARGIN = 1.5;

    /** How long a turn should last at least. */
    private static final double TURN_SECONDS = 1;

    private static final Duration LONGEST_REST = Duration.ofSeconds(5);
    /** The share of the remaining budget for waiting before a turn. */
    private static final double REST_SHARE = 0.1;

    private static final Duration SHORTEST_DEADLINE = Duration.ofSeconds(1);

    /** Positions that sequences have at most. */
    public static int positions() {
        return Math.max(PREFILL_TOKENS[PREFILL_TOKENS.length - 1] + 1, CONTEXT + MOST_OUTPUT);
    }

    /**
     * Measures.
     *
     * @param model directory of the checkpoint that both serve
     * @throws IOException with the server's URL and its answer, if a server does not work or refuses every case
     */
    public void run(Path model, CompletionsClient baton, CompletionsClient other, ObjectNode json) throws IOException {
        try (RandomPrompts prompts = new RandomPrompts(model)) {
            new Run(prompts, baton, other, json).measure();
        }
    }

    /** A server does not support a feature that a case needs; the message names it. */
    private static final class NotComparableException extends IOException {
        NotComparableException(String message) {
            super(message);
        }
    }

    /** One server's answers to requests that were sent at once. */
    private interface Measure {
        double seconds(CompletionsClient server, List<Answer> answers) throws NotComparableException;
    }

    private final class Run {
        private final RandomPrompts prompts;
        private final CompletionsClient baton;
        private final CompletionsClient other;
        private final ArrayNode cases;
        private final ArrayNode leftOut;
        private final boolean asText;
        private final SystemRest systemRest = new SystemRest();
        private boolean restless;
        private int casesLeft = PREFILL_TOKENS.length + DECODE_REQUESTS.length;
        private double secondsPerToken;
        /** The shortest step of the faster server in the decode case before. */
        private double shortestStep = Double.POSITIVE_INFINITY;

        private Optional<IOException> refused = Optional.empty();

        Run(RandomPrompts prompts, CompletionsClient baton, CompletionsClient other, ObjectNode json)
                throws IOException {
            this.prompts = prompts;
            this.baton = baton;
            this.other = other;
            asText = !takesIds();
            json.put("url", other.url()).put("model", other.model()).put("prompts", asText ? "text" : "token ids");
            cases = json.putArray("cases");
            leftOut = json.putArray("left_out");
        }

        /** Whether the other server accepts prompts as token ids; if it refuses text too, its answer is thrown. */
        private boolean takesIds() throws IOException {
            try {
                ask(other, List.of(prompts.ids(TRIAL)), 1);
                return true;
            } catch (RefusedException e) {
                try {
                    ask(other, List.of(prompts.text(TRIAL)), 1);
                    return false;
                } catch (RefusedException again) {
                    throw e;
                }
            }
        }

        void measure() throws IOException {
            int longest = 0;
            for (int tokens : PREFILL_TOKENS) {
                int fitting = Math.min(tokens, prompts.maxPositions() - 1);
                if (fitting < tokens) {
                    leaveOut(
                            "prefill " + tokens,
                            "the model has max_position_embeddings=%d%s"
                                    .formatted(
                                            prompts.maxPositions(),
                                            fitting > longest ? "; prompts of %d instead".formatted(fitting) : ""));
                }
                if (fitting > longest) {
                    prefill(fitting);
                } else {
                    casesLeft--;
                }
                longest = fitting;
            }
            for (int requests : DECODE_REQUESTS) {
                decode(requests);
            }
            if (cases.isEmpty() && refused.isPresent()) {
                throw refused.get();
            }
        }

        private void prefill(int tokens) throws IOException {
            String what = "prefill " + tokens;
            Turns turns = new Turns(1, 1, (_, answers) -> answers.getFirst().secondsToFirst());
            if (!begin(what, tokens * secondsPerToken)) {
                return;
            }
            double share = share();
            try {
                Supplier<List<JsonNode>> prompt = () -> List.of(prompt(tokens));
                double pair = turns.take(prompt.get());
                secondsPerToken = (turns.baton.getLast() + turns.other.getLast()) / tokens;
                turns.repeat(share, pair, prompt);
                turns.write("prefill", tokens, tokens);
            } catch (NotComparableException | RefusedException | LateException e) {
                refused(what, e);
            }
        }

        private void decode(int requests) throws IOException {
            String what = "decode batch " + requests;
            int context = Math.min(CONTEXT, prompts.maxPositions() / 2);
            int most = Math.min(MOST_OUTPUT, prompts.maxPositions() - context);
            Supplier<List<JsonNode>> prompt =
                    () -> Stream.generate(() -> prompt(context)).limit(requests).toList();
            int first = (int) Math.clamp(Math.ceil(LEAST_SECONDS / shortestStep), Math.min(LEAST_OUTPUT, most), most);
            Turns turns = new Turns(first, most, this::secondsPerStep);
            if (!begin(what, requests * context * secondsPerToken)) {
                return;
            }
            double share = share();
            try {
                double pair = turns.take(prompt.get());
                double steps = turns.baton.getLast() + turns.other.getLast();
                shortestStep = Math.min(turns.baton.getLast(), turns.other.getLast());
                int output = (int)
                        Math.clamp(turns.maxTokens + (share / WANTED_TIMES - pair) / steps, turns.maxTokens, most);
                pair += (output - turns.maxTokens) * steps;
                turns.maxTokens = output;
                turns.repeat(share, pair, prompt);
                turns.write("decode", requests, requests);
            } catch (NotComparableException | RefusedException | LateException e) {
                refused(what, e);
            }
        }

        /** While all of them decode. */
        private double secondsPerStep(CompletionsClient server, List<Answer> answers) throws NotComparableException {
            return CompletionsClient.secondsPerStep(answers)
                    .orElseThrow(() -> new NotComparableException(
                            server.url() + " never decoded all %d requests at once".formatted(answers.size())));
        }

        private JsonNode prompt(int tokens) {
            return asText ? prompts.text(tokens) : prompts.ids(tokens);
        }

        private List<Answer> ask(CompletionsClient server, List<JsonNode> asked, int maxTokens) throws IOException {
            return server.ask(asked, maxTokens, deadline());
        }

        private Duration deadline() {
            Duration left = budget.left();
            return left.compareTo(SHORTEST_DEADLINE) < 0 ? SHORTEST_DEADLINE : left;
        }

        /** Waits until the server before has finished its work. */
        private void rest() throws IOException {
            // A machine that is never at rest must leave time for the turns.
            Duration part = budget.share(REST_SHARE).left();
            Duration most = part.compareTo(LONGEST_REST) < 0 ? part : LONGEST_REST;
            if (!restless && !systemRest.await(most)) {
                // It would not be at rest before the next turns either.
                restless = true;
                progress.accept(
                        "against %s: the processors were busy for all of %.1f s before a turn, so figures are too low"
                                .formatted(other.url(), most.toMillis() / 1e3));
            }
        }

        /** Whether there is time for both servers' answers. */
        private boolean begin(String what, double expected) {
            boolean fits = !budget.left().isZero() && budget.fits(MARGIN * expected);
            if (fits) {
                progress.accept("against %s: %s".formatted(other.url(), what));
            } else {
                casesLeft--;
                leaveOut(what, budget.tooLittleFor(expected));
            }
            return fits;
        }

        /** Seconds for the next case. */
        private double share() {
            return budget.forOneOf(casesLeft--, each.map(most -> most.multipliedBy(SERVERS)));
        }

        /**
         * A case that is refused, or that does not end within the budget, is left out; a server that does not work ends the
         * comparison.
         */
        private void refused(String what, IOException e) throws IOException {
            boolean works = switch (e) {
                case RefusedException answer -> answer.isForTheRequest();
                case LateException _ -> !cases.isEmpty();
                default -> true;
            };
            if (!works) {
                throw e;
            }
            refused = Optional.of(e);
            leaveOut(what, String.valueOf(e.getMessage()));
        }

        private void leaveOut(String what, String why) {
            leftOut.add("against %s: %s: %s".formatted(other.url(), what, why));
        }

        /** Both servers' answers to the same requests. */
        private final class Turns {
            private final Measure measure;
            private final List<Double> baton = new ArrayList<>();
            private final List<Double> other = new ArrayList<>();
            private final int most;
            private int maxTokens;
            private int batonPrompt;
            private int otherPrompt;

            /** @param most tokens of an answer, where {@code maxTokens} turn out to be too few */
            Turns(int maxTokens, int most, Measure measure) {
                this.maxTokens = maxTokens;
                this.most = most;
                this.measure = measure;
            }

            /** Asks one, then the other; the seconds of both together. */
            double take(List<JsonNode> asked) throws IOException {
                long start = System.nanoTime();
                try {
                    return ask(asked);
                } catch (NotComparableException e) {
                    // Requests that are fast and few tokens long may be over before all of them have begun.
                    double expected = (System.nanoTime() - start) * 1e-9 * most / maxTokens;
                    if (maxTokens == most || !budget.fits(expected)) {
                        throw e;
                    }
                    maxTokens = most;
                    return ask(asked);
                }
            }

            private double ask(List<JsonNode> asked) throws IOException {
                return turn(List.of(asked));
            }

            /** Sends requests to one, one after the other, and then to the other; the seconds of all. */
            private double turn(List<List<JsonNode>> requests) throws IOException {
                long start = System.nanoTime();
                List<Double> ofBaton = new ArrayList<>();
                List<Double> ofOther = new ArrayList<>();
                batonPrompt = turn(Run.this.baton, requests, ofBaton);
                otherPrompt = turn(Run.this.other, requests, ofOther);
                // Only if both have answered all.
                baton.addAll(ofBaton);
                other.addAll(ofOther);
                return (System.nanoTime() - start) * 1e-9;
            }

            /**
             * Sends requests to a server, one after the other, and adds their seconds; the prompt tokens of the last.
             *
             * @throws NotComparableException if none could be measured
             */
            private int turn(CompletionsClient server, List<List<JsonNode>> requests, List<Double> seconds)
                    throws IOException {
                int promptTokens = 0;
                Optional<NotComparableException> unmeasured = Optional.empty();
                rest();
                // Connections are kept for a turn: making them takes both servers' requests equally long.
                try (CompletionsClient.Session session = server.new Session()) {
                    for (List<JsonNode> asked : requests) {
                        List<Answer> answers = session.ask(asked, maxTokens, deadline());
                        promptTokens = answers.getFirst().promptTokens();
                        try {
                            seconds.add(measure.seconds(server, answers));
                        } catch (NotComparableException e) {
                            // Of fast requests, some are over before all of them have begun.
                            unmeasured = Optional.of(e);
                        }
                    }
                }
                if (seconds.isEmpty() && unmeasured.isPresent()) {
                    throw unmeasured.get();
                }
                return promptTokens;
            }

            /**
             * The first turns, which warm up, count only if there is no time for more.
             *
             * @param expected seconds of a request to both, with the rest before each
             */
            void repeat(double share, double expected, Supplier<List<JsonNode>> next) throws IOException {
                double pair = baton.getLast() * maxTokens + other.getLast() * maxTokens;
                int requests = (int) Math.clamp(SERVERS * TURN_SECONDS / pair, 1, share / WANTED_TIMES / pair + 1);
                double seconds = expected + (requests - 1) * pair;
                double left = share;
                int times = 0;
                while (seconds < left || (times < AFFORDABLE_TIMES && budget.fits(MARGIN * seconds))) {
                    int batonBefore = baton.size();
                    int otherBefore = other.size();
                    try {
                        seconds = turn(Stream.generate(next).limit(requests).toList());
                    } catch (LateException e) {
                        leftOut.add("against %s: %s; earlier measurements count"
                                .formatted(Run.this.other.url(), e.getMessage()));
                        return;
                    }
                    left -= seconds;
                    if (times++ == 0) {
                        baton.subList(0, batonBefore).clear();
                        other.subList(0, otherBefore).clear();
                    }
                }
            }

            /** @param tokens of the timed request or step, if the servers report no count */
            void write(String what, int count, int tokens) {
                boolean ofPrompts = what.equals("prefill");
                ObjectNode node = cases.addObject()
                        .put("case", what)
                        .put("count", count)
                        .put("label", (ofPrompts ? "prefill " : "decode batch ") + count);
                double own = side(node.putObject("baton"), baton, ofPrompts ? batonPrompt : 0, tokens);
                double others = side(node.putObject("other"), other, ofPrompts ? otherPrompt : 0, tokens);
                node.put("ratio", own / others);
            }

            /** Tokens a second, at the median. */
            private static double side(ObjectNode node, List<Double> seconds, int reported, int otherwise) {
                Timing timing = Timing.of(seconds);
                int tokens = reported > 0 ? reported : otherwise;
                double rate = tokens / timing.median();
                timing.writeTo(node).put("tokens", tokens).put("tokens_per_second", rate);
                return rate;
            }
        }
    }
}
