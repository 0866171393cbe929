package baton.cli;

import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.EndpointClient;
import baton.bench.serve.ServedModel;
import baton.kv.Percentiles;
import java.io.IOException;
import java.net.URI;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Finds out whether a server's cache leaks the prompts of another client (PromptPeek): compares the time of a prompt that the other has
 * just sent with the time of a new prompt. Prompts are random token ids from 300 to 999.
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
     * The result of the measurement.
     *
     * @param auc the probability that a prompt which the victim has sent takes less time than a fresh one: 0.5 if there is no leak
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

    /** @throws IOException if the server refuses a request */
    Result measure(Random random) throws IOException {
        double[] sent = new double[trials];
        double[] fresh = new double[trials];
        long cached = 0;
        String base = URI.create(Endpoint.base("leak", server.toString()))
                .resolve("/")
                .toString();
        String path = Backend.OPENAI.path();
        String model = ServedModel.first(new Endpoint(Backend.OPENAI, base, path, headers(attacker), false), DEADLINE)
                .name();
        // One connection for both clients: a load balancer could send a second one to another server.
        try (EndpointClient client = new EndpointClient(Endpoint.of(Backend.OPENAI, base), DEADLINE)) {
            for (int trial = -WARM_UP; trial < trials; trial++) {
                int[] known = prompt(random);
                int[] unknown = prompt(random);
                Timed _ = ask(client, model, known, victim);
                // Neither is always the first after the victim's.
                boolean knownFirst = random.nextBoolean();
                Timed first = ask(client, model, knownFirst ? known : unknown, attacker);
                Timed second = ask(client, model, knownFirst ? unknown : known, attacker);
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

    private static Map<String, String> headers(Optional<String> key) {
        return key.map(each -> Map.of("Authorization", "Bearer " + each)).orElse(Map.of());
    }

    private static Timed ask(EndpointClient client, String model, int[] prompt, Optional<String> key)
            throws IOException {
        ObjectNode body =
                JSON.createObjectNode().put("model", model).put("max_tokens", 1).put("temperature", 0);
        body.set("prompt", JSON.valueToTree(prompt));
        long start = System.nanoTime();
        JsonNode answer = client.post(Backend.OPENAI.path(), body, headers(key));
        double millis = (System.nanoTime() - start) / 1e6;
        return new Timed(
                millis, answer.at("/usage/prompt_tokens_details/cached_tokens").asLong(0));
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
