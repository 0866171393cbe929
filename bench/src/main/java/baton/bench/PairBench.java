package baton.bench;

import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures hand-overs between instances that run already, of Baton or of vLLM, one pair after the other in turns: the prefill instance is
 * sent a new prompt, then the decode instance the same prompt with the {@code kv_transfer_params} of the first answer, for one token. The
 * time of the second request is the hand-over's, with the step that computes the token.
 *
 * @param pairs of instances; the first is what others are compared with
 * @param tokens of the prompts
 * @param repetitions of each pair that count, after some that do not
 * @param progress receives a line for each step
 */
public record PairBench(List<Pair> pairs, List<Integer> tokens, int repetitions, Consumer<String> progress) {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final int WARM_UPS = 3;

    /** @throws ConfigException if there is nothing to measure */
    public PairBench {
        pairs = List.copyOf(pairs);
        tokens = List.copyOf(tokens);
        if (pairs.isEmpty()) {
            throw new ConfigException("pair", "is missing, must be NAME=PREFILL_URL,DECODE_URL");
        }
        if (repetitions <= 0) {
            throw new ConfigException("repetitions", "is " + repetitions + ", must be positive");
        }
        for (int each : tokens) {
            if (each <= 0) {
                throw new ConfigException("tokens", "is " + each + ", must be positive");
            }
        }
    }

    /**
     * Two instances.
     *
     * @param name in the report
     */
    public record Pair(String name, URI prefill, URI decode) {
        /**
         * Reads {@code NAME=PREFILL_URL,DECODE_URL}.
         *
         * @throws ConfigException if it has another form
         */
        public static Pair parse(String text) {
            int equals = text.indexOf('=');
            int comma = text.indexOf(',', equals);
            if (equals < 1 || comma < 0) {
                throw new ConfigException("pair", "is '" + text + "', must be NAME=PREFILL_URL,DECODE_URL");
            }
            return new Pair(
                    text.substring(0, equals), url(text.substring(equals + 1, comma)), url(text.substring(comma + 1)));
        }

        private static URI url(String text) {
            String base = text.replaceFirst("/+$", "");
            if (!base.matches("https?://[^/?#\\s,]+")) {
                throw new ConfigException("pair", "has '" + text + "', must be a URL such as http://127.0.0.1:8000");
            }
            return URI.create(base);
        }
    }

    /**
     * What was measured.
     *
     * @param rows by tokens, then in the pairs' order
     */
    public record Report(Machine machine, List<Row> rows) {
        public void print(PrintWriter out) {
            out.printf("%s, %d processors%n", machine.processor(), machine.processors());
            out.printf(
                    Locale.ROOT,
                    "%n  %-24s %7s %14s %22s %9s%n",
                    "",
                    "tokens",
                    "prefill, ms",
                    "hand-over (best), ms",
                    "times");
            for (Row row : rows) {
                out.printf(
                        Locale.ROOT,
                        "  %-24s %7d %14.1f %22s %9.2f%n",
                        row.pair,
                        row.tokens,
                        row.prefill.median() * 1e3,
                        String.format(
                                Locale.ROOT, "%.1f (%.1f)", row.handover.median() * 1e3, row.handover.best() * 1e3),
                        row.times);
            }
            out.flush();
        }

        public ObjectNode toJson() {
            ObjectNode root = JSON.createObjectNode();
            ArrayNode array = root.putArray("rows");
            for (Row row : rows) {
                array.addObject()
                        .put("pair", row.pair)
                        .put("tokens", row.tokens)
                        .put("prefill_s", row.prefill.median())
                        .put("handover_s", row.handover.median())
                        .put("handover_best_s", row.handover.best())
                        .put("times", row.times);
            }
            return root;
        }
    }

    /** @param times the hand-over's median as a multiple of the first pair's */
    public record Row(String pair, int tokens, Timing prefill, Timing handover, double times) {}

    /** Seconds of both requests for one prompt. */
    private record Sample(double prefill, double handover) {}

    /**
     * @param model directory of the checkpoint that all instances serve
     * @throws IOException if an instance refuses a request, or does not hand over
     */
    public Report run(Path model) throws IOException {
        List<Row> rows = new ArrayList<>();
        try (HttpClient http = HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .build();
                RandomPrompts prompts = new RandomPrompts(model)) {
            Map<URI, String> models = new TreeMap<>();
            for (Pair pair : pairs) {
                for (URI each : List.of(pair.prefill, pair.decode)) {
                    models.put(each, nameOfModel(http, each));
                }
            }
            for (int length : tokens) {
                rows.addAll(measure(http, prompts, models, length));
            }
        }
        return new Report(Machine.here(), List.copyOf(rows));
    }

    private List<Row> measure(HttpClient http, RandomPrompts prompts, Map<URI, String> models, int length)
            throws IOException {
        List<List<Sample>> samples = new ArrayList<>();
        pairs.forEach(_ -> samples.add(new ArrayList<>()));
        for (int i = -WARM_UPS; i < repetitions; i++) {
            progress.accept(
                    i < 0
                            ? "%d tokens, warm-up".formatted(length)
                            : "%d tokens, %d of %d".formatted(length, i + 1, repetitions));
            for (int at = 0; at < pairs.size(); at++) {
                Sample sample = handOver(http, pairs.get(at), models, prompts.ids(length));
                if (i >= 0) {
                    samples.get(at).add(sample);
                }
            }
        }
        List<Row> rows = new ArrayList<>();
        double first = 0;
        for (int at = 0; at < pairs.size(); at++) {
            Timing handover =
                    Timing.of(samples.get(at).stream().map(Sample::handover).toList());
            Timing prefill =
                    Timing.of(samples.get(at).stream().map(Sample::prefill).toList());
            first = at == 0 ? handover.median() : first;
            rows.add(new Row(pairs.get(at).name, length, prefill, handover, handover.median() / first));
        }
        return rows;
    }

    private static Sample handOver(HttpClient http, Pair pair, Map<URI, String> models, JsonNode prompt)
            throws IOException {
        ObjectNode first = body(models, pair.prefill, prompt);
        ObjectNode asked = first.putObject("kv_transfer_params");
        asked.put("do_remote_decode", true).put("do_remote_prefill", false);
        for (String field : List.of("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")) {
            asked.putNull(field);
        }
        long begun = System.nanoTime();
        JsonNode params = post(http, pair.prefill, first).path("kv_transfer_params");
        long prefilled = System.nanoTime();
        if (!params.path("do_remote_prefill").asBoolean(false)) {
            throw new IOException(pair.prefill + " hands nothing over: its kv_transfer_params are " + params
                    + "; is it a producer of" + " NixlConnector, and has the prompt a whole block?");
        }
        ObjectNode second = body(models, pair.decode, prompt);
        second.set("kv_transfer_params", params);
        long asking = System.nanoTime();
        var _ = post(http, pair.decode, second);
        return new Sample((prefilled - begun) * 1e-9, (System.nanoTime() - asking) * 1e-9);
    }

    private static ObjectNode body(Map<URI, String> models, URI url, JsonNode prompt) {
        ObjectNode body = JSON.createObjectNode().put("model", models.get(url));
        body.set("prompt", prompt);
        return body.put("max_tokens", 1).put("temperature", 0);
    }

    private static JsonNode post(HttpClient http, URI url, ObjectNode body) throws IOException {
        return send(
                http,
                HttpRequest.newBuilder(URI.create(url + "/v1/completions"))
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body.toString())));
    }

    private static String nameOfModel(HttpClient http, URI url) throws IOException {
        return send(http, HttpRequest.newBuilder(URI.create(url + "/v1/models")))
                .path("data")
                .path(0)
                .path("id")
                .asString("");
    }

    private static JsonNode send(HttpClient http, HttpRequest.Builder request) throws IOException {
        HttpRequest built = request.timeout(DEADLINE).build();
        try {
            HttpResponse<String> response = http.send(built, BodyHandlers.ofString());
            if (response.statusCode() != 200) {
                throw new IOException(built.uri() + " answered " + response.statusCode() + ": " + response.body());
            }
            return JSON.readTree(response.body());
        } catch (JacksonException e) {
            throw new IOException(built.uri() + " answered something else than JSON: " + e.getMessage(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(built.uri() + ": interrupted", e);
        }
    }
}
