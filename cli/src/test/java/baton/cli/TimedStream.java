package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * A streamed answer, and when its events came.
 *
 * @param decode the URL of the instance that began it
 * @param sent when the request was sent, by {@link System#nanoTime}
 * @param at of each event with tokens
 */
record TimedStream(String decode, int[] tokens, long sent, List<Long> at) {
    /** Between two events of a stream, the second of which came at a time. */
    record Gap(long at, double millis) {}

    /** Reads the whole answer to a completion. */
    static TimedStream of(Instance server, ObjectNode body) throws IOException, InterruptedException {
        long sent = System.nanoTime();
        HttpResponse<InputStream> answer = server.stream("/v1/completions", body);
        IntStream.Builder tokens = IntStream.builder();
        List<Long> at = new ArrayList<>();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.startsWith("data: {")) {
                    assertThat(answer.statusCode()).as(line).isEqualTo(200);
                    continue;
                }
                JsonNode event = Instances.JSON.readTree(line.substring("data: ".length()));
                assertThat(event.has("error")).as(line).isFalse();
                Arrays.stream(Instances.ints(event.at("/choices/0/token_ids"))).forEach(tokens);
                at.add(System.nanoTime());
            }
        }
        return new TimedStream(
                answer.headers().firstValue("X-Baton-Decode").orElse(""),
                tokens.build().toArray(),
                sent,
                at);
    }

    double firstTokenMillis() {
        return (at.getFirst() - sent) / 1e6;
    }

    /** The mean time between two tokens. */
    double gapMillis() {
        return (at.getLast() - at.getFirst()) / 1e6 / Math.max(1, tokens.length - 1);
    }

    List<Gap> gaps() {
        return IntStream.range(1, at.size())
                .mapToObj(i -> new Gap(at.get(i), (at.get(i) - at.get(i - 1)) / 1e6))
                .toList();
    }
}
