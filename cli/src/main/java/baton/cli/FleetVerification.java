package baton.cli;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandler;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Compares the answers of a fleet that hands KV over with those of an instance that computes the same prompts itself. Prompts are random records, of
 * which one is asked for at the end, so that the answer depends on a record anywhere in the prompt. Answers are greedy; a prompt is asked in
 * several situations.
 *
 * @param fleet an OpenAI server, such as a router
 * @param reference an instance that gets no hand-over; empty to compare the fleet's answers with its own first ones
 * @param key API key of both
 * @param prompts how many; every second one begins as the one before
 * @param records of a prompt, about 10 tokens each
 * @param tokens of an answer
 * @param tolerance by how much log probabilities of one token may differ, and those of the two best tokens where two answers part
 */
record FleetVerification(
        URI fleet,
        Optional<URI> reference,
        Optional<String> key,
        int prompts,
        int records,
        int tokens,
        int atOnce,
        double tolerance,
        long seed) {
    private static final Duration DEADLINE = Duration.ofMinutes(5);
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final List<String> WORDS = List.of(
            "river", "copper", "lantern", "meadow", "winter", "basket", "harbor", "pepper", "violin", "marble",
            "garden", "silver", "anchor", "pillow", "rocket", "butter", "candle", "forest", "ladder", "mirror");

    /** The situation in which a prompt is sent. */
    enum Situation {
        COLD("asked first"),
        REPEATED("asked again"),
        ABORTED("asked while streams of the same prompt are broken off"),
        EVICTED("asked again after other prompts");

        private final String words;

        Situation(String words) {
            this.words = words;
        }
    }

    /** @param margin from the log probability of the best token to that of the second best; infinite if it is not known */
    private record Token(String text, double logprob, double margin) {}

    /**
     * An answer.
     *
     * @param way names of instances, if the server says them
     */
    private record Answer(List<Token> tokens, String text, String way) {}

    /** An answer that is not that of the reference, or that did not come. */
    record Finding(String requestId, int prompt, Situation situation, String what) {
        @Override
        public String toString() {
            return "%s: prompt %d, %s: %s".formatted(requestId, prompt, situation.words, what);
        }
    }

    /**
     * The result.
     *
     * @param compared answers
     * @param close answers that part from the reference where its two best tokens are about equally likely
     * @param greatest difference of log probabilities in answers that are not wrong
     */
    record Result(int compared, int close, double greatest, List<Finding> findings) {
        boolean isRight() {
            return findings.isEmpty() && compared > 0;
        }
    }

    /** @param what the error; empty if the answer is right */
    private record Comparison(Optional<String> what, boolean close, double greatest) {}

    private record Asked(int prompt, Situation situation, String requestId, Future<Answer> answer) {}

    /** @throws CommandFailedException if the reference does not answer */
    Result run() throws IOException, InterruptedException {
        try (HttpClient http = HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .connectTimeout(DEADLINE)
                        .build();
                ExecutorService threads = Executors.newFixedThreadPool(atOnce)) {
            String model = model(http);
            List<String> texts = texts();
            List<Answer> right = new ArrayList<>();
            for (int i = 0; i < prompts; i++) {
                // With a salt of its own nothing that the reference has loaded is used.
                ObjectNode alone = body(model, texts.get(i), tokens).put("cache_salt", id("reference", i));
                right.add(ask(http, reference.orElse(fleet), alone, id("reference", i)));
            }
            List<Asked> asked = new ArrayList<>();
            for (Situation situation : Situation.values()) {
                List<String> ids = IntStream.range(0, prompts)
                        .mapToObj(i -> id(situation.name().toLowerCase(Locale.ROOT), i))
                        .toList();
                List<Callable<Answer>> round = IntStream.range(0, prompts)
                        .<Callable<Answer>>mapToObj(
                                i -> () -> inSituation(http, model, situation, texts.get(i), ids.get(i)))
                        .toList();
                List<Future<Answer>> answers =
                        threads.invokeAll(round, DEADLINE.toSeconds() * prompts, TimeUnit.SECONDS);
                for (int i = 0; i < prompts; i++) {
                    asked.add(new Asked(i, situation, ids.get(i), answers.get(i)));
                }
            }
            return compare(right, asked);
        }
    }

    private String id(String situation, int prompt) {
        return "verify-%d-%s-%d".formatted(seed, situation, prompt);
    }

    private List<String> texts() {
        Random random = new Random(seed);
        List<String> texts = new ArrayList<>();
        List<String> before = List.of();
        for (int i = 0; i < prompts; i++) {
            List<String> lines = new ArrayList<>(i % 2 == 0 ? List.of() : before.subList(0, records / 2));
            while (lines.size() < records) {
                lines.add(
                        "The number of %s is %d.\n".formatted(word(random) + " " + word(random), random.nextInt(1000)));
            }
            String wanted = lines.get(random.nextInt(records));
            texts.add(String.join("", lines) + wanted.substring(0, wanted.lastIndexOf(" is ") + 3));
            before = lines;
        }
        return texts;
    }

    private static String word(Random random) {
        return WORDS.get(random.nextInt(WORDS.size()));
    }

    private Answer inSituation(HttpClient http, String model, Situation situation, String text, String id)
            throws IOException, InterruptedException {
        switch (situation) {
            case COLD, REPEATED -> {}
            case ABORTED -> {
                breakOff(http, model, text, id + "-aborted");
                breakOff(http, model, id + " " + text, id + "-aborted-other");
            }
            case EVICTED -> ask(http, fleet, body(model, id + " " + text, 1), id + "-other");
        }
        return ask(http, fleet, body(model, text, tokens), id);
    }

    /** Begins a streamed answer and leaves. */
    private void breakOff(HttpClient http, String model, String text, String id)
            throws IOException, InterruptedException {
        HttpRequest request = request(fleet, "/v1/completions")
                .header("Content-Type", "application/json")
                .header("X-Request-Id", id)
                .POST(HttpRequest.BodyPublishers.ofString(
                        body(model, text, 200).put("stream", true).toString()))
                .build();
        HttpResponse<InputStream> answer = send(http, request, BodyHandlers.ofInputStream());
        answer.body().close();
        requireOk(request.uri(), answer.statusCode(), "");
    }

    private String model(HttpClient http) throws IOException, InterruptedException {
        HttpResponse<String> models = send(http, request(fleet, "/v1/models").build(), BodyHandlers.ofString());
        return JSON.readTree(ok(models).body()).path("data").path(0).path("id").asString("");
    }

    private static ObjectNode body(String model, String prompt, int tokens) {
        return JSON.createObjectNode()
                .put("model", model)
                .put("prompt", prompt)
                .put("max_tokens", tokens)
                .put("temperature", 0)
                .put("logprobs", 2);
    }

    private Answer ask(HttpClient http, URI server, ObjectNode body, String id)
            throws IOException, InterruptedException {
        HttpRequest request = request(server, "/v1/completions")
                .header("Content-Type", "application/json")
                .header("X-Request-Id", id)
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()))
                .build();
        HttpResponse<String> response = ok(send(http, request, BodyHandlers.ofString()));
        JsonNode choice = JSON.readTree(response.body()).path("choices").path(0);
        JsonNode logprobs = choice.path("logprobs");
        List<Token> answered = new ArrayList<>();
        for (int i = 0; i < logprobs.path("tokens").size(); i++) {
            double[] best = logprobs.path("top_logprobs")
                    .path(i)
                    .valueStream()
                    .mapToDouble(JsonNode::asDouble)
                    .sorted()
                    .toArray();
            answered.add(new Token(
                    logprobs.path("tokens").path(i).asString(""),
                    logprobs.path("token_logprobs").path(i).asDouble(0),
                    best.length < 2 ? Double.POSITIVE_INFINITY : best[best.length - 1] - best[best.length - 2]));
        }
        String way = response.headers()
                        .firstValue("X-Baton-Prefill")
                        .map(url -> url + " to ")
                        .orElse("")
                + response.headers().firstValue("X-Baton-Decode").orElse("");
        return new Answer(answered, choice.path("text").asString(""), way);
    }

    private HttpRequest.Builder request(URI server, String path) {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(server.resolve(path)).timeout(DEADLINE);
        key.ifPresent(each -> request.header("Authorization", "Bearer " + each));
        return request;
    }

    /** Waits for the whole answer, where the request's own time limit is for its head. */
    private static <T> HttpResponse<T> send(HttpClient http, HttpRequest request, BodyHandler<T> body)
            throws IOException, InterruptedException {
        CompletableFuture<HttpResponse<T>> answer = http.sendAsync(request, body);
        try {
            return answer.get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw new IOException(request.uri() + ": " + e.getCause(), e);
        } catch (TimeoutException e) {
            answer.cancel(true);
            throw new IOException(request.uri() + " has not answered within " + DEADLINE.toSeconds() + " s", e);
        }
    }

    private static HttpResponse<String> ok(HttpResponse<String> response) {
        requireOk(response.request().uri(), response.statusCode(), response.body());
        return response;
    }

    private static void requireOk(URI uri, int status, String body) {
        if (status != 200) {
            throw new CommandFailedException(uri + " answered " + status + ": " + body);
        }
    }

    private Result compare(List<Answer> right, List<Asked> asked) {
        int compared = 0;
        int close = 0;
        double greatest = 0;
        List<Finding> findings = new ArrayList<>();
        for (Asked each : asked) {
            if (each.answer.state() != Future.State.SUCCESS) {
                findings.add(
                        new Finding(each.requestId, each.prompt, each.situation, "no answer: " + why(each.answer)));
                continue;
            }
            compared++;
            Answer answer = each.answer.resultNow();
            Comparison comparison = compare(right.get(each.prompt), answer);
            close += comparison.close ? 1 : 0;
            if (comparison.what.isPresent()) {
                String what =
                        "wrong answer, " + comparison.what.get() + (answer.way.isEmpty() ? "" : ", " + answer.way);
                findings.add(new Finding(each.requestId, each.prompt, each.situation, what));
            } else {
                greatest = Math.max(greatest, comparison.greatest);
            }
        }
        return new Result(compared, close, greatest, findings);
    }

    private static String why(Future<Answer> answer) {
        if (answer.state() != Future.State.FAILED) {
            return "it took too long";
        }
        Throwable cause = answer.exceptionNow();
        return cause instanceof CommandFailedException ? String.valueOf(cause.getMessage()) : cause.toString();
    }

    private Comparison compare(Answer expected, Answer answer) {
        int both = Math.min(expected.tokens.size(), answer.tokens.size());
        if (both == 0) {
            boolean equal = expected.text.equals(answer.text) && !answer.text.isEmpty();
            String what = "text '%s' in place of '%s'".formatted(answer.text, expected.text);
            return new Comparison(equal ? Optional.empty() : Optional.of(what), false, 0);
        }
        double greatest = 0;
        for (int i = 0; i < both; i++) {
            Token best = expected.tokens.get(i);
            Token token = answer.tokens.get(i);
            if (!token.text.equals(best.text)) {
                boolean close = best.margin <= tolerance && token.margin <= 2 * tolerance;
                String what = "token %d is '%s' in place of '%s', which is better than the second best by %.3f"
                        .formatted(i, token.text, best.text, best.margin);
                return new Comparison(close ? Optional.empty() : Optional.of(what), close, greatest);
            }
            double difference = Math.abs(token.logprob - best.logprob);
            // Also if it is not a number.
            if (!(difference <= tolerance)) {
                return new Comparison(
                        Optional.of("log probability of token %d, '%s', is %.3f in place of %.3f"
                                .formatted(i, token.text, token.logprob, best.logprob)),
                        false,
                        0);
            }
            greatest = Math.max(greatest, difference);
        }
        if (expected.tokens.size() == answer.tokens.size()) {
            return new Comparison(Optional.empty(), false, greatest);
        }
        // In place of this token the other answer ended.
        Token next = (expected.tokens.size() > both ? expected : answer).tokens.get(both);
        boolean close = next.margin <= tolerance;
        String what = "it ends after %d tokens in place of %d".formatted(answer.tokens.size(), expected.tokens.size());
        return new Comparison(close ? Optional.empty() : Optional.of(what), close, greatest);
    }
}
