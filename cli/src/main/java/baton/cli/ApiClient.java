package baton.cli;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** A small client of the OpenAI API and of the metrics page, for the demo. */
final class ApiClient implements AutoCloseable {
    private static final Duration DEADLINE = Duration.ofSeconds(60);
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final Pattern SAMPLE =
            Pattern.compile("^([a-zA-Z_:][\\w:]*)(\\{[^}]*})? (\\S+)$", Pattern.MULTILINE);

    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(5))
            .build();

    /**
     * A streamed answer.
     *
     * @param ttftMillis from sending the request to the first text
     * @param gapsMillis between pieces of text
     */
    record Answer(String text, int promptTokens, double ttftMillis, List<Double> gapsMillis) {
        double meanItlMillis() {
            return gapsMillis.stream()
                    .mapToDouble(Double::doubleValue)
                    .average()
                    .orElse(0);
        }
    }

    /** Asks one question by chat and streams the answer to {@code onText}. */
    Answer chat(URI base, String content, int maxTokens, Consumer<String> onText)
            throws IOException, InterruptedException {
        ObjectNode body = JSON.createObjectNode();
        body.putArray("messages").addObject().put("role", "user").put("content", content);
        body.put("temperature", 0);
        body.put("max_tokens", maxTokens);
        body.put("stream", true);
        body.putObject("stream_options").put("include_usage", true);
        HttpRequest request = HttpRequest.newBuilder(base.resolve("/v1/chat/completions"))
                .timeout(DEADLINE)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()))
                .build();
        long start = System.nanoTime();
        HttpResponse<InputStream> response = http.send(request, BodyHandlers.ofInputStream());
        StringBuilder text = new StringBuilder();
        List<Double> gaps = new ArrayList<>();
        JsonNode usage = JSON.createObjectNode();
        double ttft = 0;
        long last = 0;
        try (BufferedReader lines =
                new BufferedReader(new InputStreamReader(response.body(), StandardCharsets.UTF_8))) {
            if (response.statusCode() != 200) {
                throw new CommandFailedException(base + " answered " + response.statusCode() + ": " + lines.readLine());
            }
            for (String line = lines.readLine();
                    line != null && !line.equals("data: [DONE]");
                    line = lines.readLine()) {
                if (!line.startsWith("data: ")) {
                    continue;
                }
                JsonNode event = JSON.readTree(line.substring("data: ".length()));
                if (event.has("error")) {
                    throw new CommandFailedException(base + " failed: " + event.get("error"));
                }
                String piece = event.path("choices")
                        .path(0)
                        .path("delta")
                        .path("content")
                        .asString("");
                if (!piece.isEmpty()) {
                    long now = System.nanoTime();
                    if (last == 0) {
                        ttft = (now - start) / 1e6;
                    } else {
                        gaps.add((now - last) / 1e6);
                    }
                    last = now;
                    text.append(piece);
                    onText.accept(piece);
                }
                if (event.path("usage").isObject()) {
                    usage = event.path("usage");
                }
            }
        }
        return new Answer(text.toString(), usage.path("prompt_tokens").asInt(0), ttft, gaps);
    }

    /** The metrics page: the values of each sample's name, labels in braces included. */
    Map<String, Double> metrics(URI base) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(base.resolve("/metrics"))
                .timeout(DEADLINE)
                .build();
        Matcher samples =
                SAMPLE.matcher(http.send(request, BodyHandlers.ofString()).body());
        Map<String, Double> values = new HashMap<>();
        while (samples.find()) {
            String labels = samples.group(2) == null ? "" : samples.group(2);
            values.put(samples.group(1) + labels, Double.parseDouble(samples.group(3)));
        }
        return values;
    }

    @Override
    public void close() {
        http.close();
    }
}
