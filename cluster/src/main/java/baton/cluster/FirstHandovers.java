package baton.cluster;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;

/**
 * Small requests through a router that has just started. The two instances meet for the first time in the first of them, and each of the
 * processes runs code that its own warm-up cannot reach; so a cluster that is said to be ready has handed over a prompt.
 */
final class FirstHandovers {
    private static final Duration DEADLINE = Duration.ofSeconds(30);

    /** Words of a prompt: more than one block of tokens. */
    private static final int WORDS = 64;

    private static final int OUTPUT = 3;

    private FirstHandovers() {}

    /**
     * Sends one request with messages and one with a prompt. One that the instances refuse, as those of a model without a chat template or with few
     * positions, is left out.
     *
     * @throws IOException if a request is not answered in time, or with a server's error
     */
    static void send(URI router) throws IOException, InterruptedException {
        // Its own text each time, so that no store has it from an earlier cluster.
        Random random = new Random();
        List<String> bodies = List.of("\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]", "\"prompt\":\"%s\"");
        List<String> paths = List.of("/v1/chat/completions", "/v1/completions");
        try (HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(DEADLINE)
                .build()) {
            for (int i = 0; i < bodies.size(); i++) {
                String words =
                        random.ints(WORDS, 0, 1000).mapToObj(Integer::toString).collect(Collectors.joining(" "));
                String body = "{%s,\"stream\":true,\"temperature\":0,\"max_tokens\":%d}"
                        .formatted(bodies.get(i).formatted(words), OUTPUT);
                HttpResponse<String> answer = client.send(
                        HttpRequest.newBuilder(router.resolve(paths.get(i)))
                                .timeout(DEADLINE)
                                .header("Content-Type", "application/json")
                                .POST(BodyPublishers.ofString(body))
                                .build(),
                        BodyHandlers.ofString());
                if (answer.statusCode() >= 500) {
                    throw new IOException("the first hand-over, by POST %s to %s, was answered with %d: %s"
                            .formatted(paths.get(i), router, answer.statusCode(), answer.body()));
                }
            }
        }
    }
}
