package baton.cli;

import baton.kv.Percentiles;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Finds out whether a client learns from a server's cache which prompts another client has sent (PromptPeek): the time that a prompt takes
 * which the other has just sent, beside that of a prompt which nobody has sent. Prompts are random token ids from 300 to 999.
 *
 * @param victim the key of the client that sends prompts first; empty for none
 * @param attacker the key of the client that measures; empty for none
 */
record CacheLeak(URI server, Optional<String> victim, Optional<String> attacker, int trials, int tokens) {
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final int WARM_UP = 3;
    private static final int FIRST_TOKEN = 300;
    private static final int LAST_TOKEN = 999;
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /**
     * What was measured.
     *
     * @param auc the probability that a prompt which the victim has sent takes less time than a fresh one: 0.5 if nothing is to be learned
     * @param sentMillis median of prompts that the victim has sent
     * @param freshMillis median of others
     * @param cached tokens that the usage of answers says were cached, of prompts that the victim has sent less those of others
     */
    record Result(double auc, double sentMillis, double freshMillis, long cached, int trials, int tokens) {
        /** Whether the times differ by more than chance: 3 standard deviations of the AUC of equal distributions. */
        boolean leaks() {
            return auc > 0.5 + 3 * Math.sqrt((2.0 * trials + 1) / 12) / trials || cached > 0;
        }

        @Override
        public String toString() {
            return String.format(
                    Locale.ROOT,
                    "%s: AUC %.3f over %d prompts of %d tokens; those that the other client has sent took %.1f ms, fresh ones %.1f ms; usage says that %d more of their tokens were cached",
                    leaks() ? "clients see each other's prompts" : "nothing seen of other clients' prompts",
                    auc,
                    trials,
                    tokens,
                    sentMillis,
                    freshMillis,
                    cached);
        }
    }

    private record Timed(double millis, long cached) {}

    /** @throws CommandFailedException if the server refuses a request */
    Result measure(Random random) throws IOException, InterruptedException {
        double[] sent = new double[trials];
        double[] fresh = new double[trials];
        long cached = 0;
        try (HttpClient http = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(DEADLINE)
                .build()) {
            String model = model(http);
            for (int trial = -WARM_UP; trial < trials; trial++) {
                int[] known = prompt(random);
                int[] unknown = prompt(random);
                Timed _ = ask(http, model, known, victim);
                // Neither is always the first after the victim's.
                boolean knownFirst = random.nextBoolean();
                Timed first = ask(http, model, knownFirst ? known : unknown, attacker);
                Timed second = ask(http, model, knownFirst ? unknown : known, attacker);
                if (trial >= 0) {
                    sent[trial] = (knownFirst ? first : second).millis;
                    fresh[trial] = (knownFirst ? second : first).millis;
                    cached += (knownFirst ? 1 : -1) * (first.cached - second.cached);
                }
            }
        }
        return new Result(
                auc(sent, fresh),
                Percentiles.median(Arrays.stream(sent).boxed().toList()),
                Percentiles.median(Arrays.stream(fresh).boxed().toList()),
                cached,
                trials,
                tokens);
    }

    private int[] prompt(Random random) {
        return IntStream.range(0, tokens)
                .map(_ -> random.nextInt(FIRST_TOKEN, LAST_TOKEN + 1))
                .toArray();
    }

    private String model(HttpClient http) throws IOException, InterruptedException {
        JsonNode models = send(http, request("/v1/models", attacker).build());
        return models.path("data").path(0).path("id").asString("");
    }

    private Timed ask(HttpClient http, String model, int[] prompt, Optional<String> key)
            throws IOException, InterruptedException {
        ObjectNode body =
                JSON.createObjectNode().put("model", model).put("max_tokens", 1).put("temperature", 0);
        body.set("prompt", JSON.valueToTree(prompt));
        HttpRequest request = request("/v1/completions", key)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()))
                .build();
        long start = System.nanoTime();
        JsonNode answer = send(http, request);
        double millis = (System.nanoTime() - start) / 1e6;
        return new Timed(
                millis,
                answer.path("usage")
                        .path("prompt_tokens_details")
                        .path("cached_tokens")
                        .asLong(0));
    }

    private HttpRequest.Builder request(String path, Optional<String> key) {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(server.resolve(path)).timeout(DEADLINE);
        key.ifPresent(each -> request.header("Authorization", "Bearer " + each));
        return request;
    }

    private JsonNode send(HttpClient http, HttpRequest request) throws IOException, InterruptedException {
        HttpResponse<String> response = http.send(request, BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new CommandFailedException(
                    request.uri() + " answered " + response.statusCode() + ": " + response.body());
        }
        return JSON.readTree(response.body());
    }

    /** The share of pairs in which the first is the smaller one; equal ones count half. */
    static double auc(double[] first, double[] second) {
        double smaller = 0;
        for (double one : first) {
            for (double other : second) {
                smaller += one < other ? 1 : one == other ? 0.5 : 0;
            }
        }
        return smaller / first.length / second.length;
    }
}
