package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Machine;
import baton.bench.frame.Rounds;
import baton.bench.frame.Timing;
import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.EndpointClient;
import baton.bench.serve.ServedModel;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures hand-overs between instances that run already, of Baton or of vLLM, one pair after the other in turns: the prefill instance is
 * sent a new prompt, then the decode instance the same prompt with the {@code kv_transfer_params} of the first answer, for one token. The
 * time of the second request is the hand-over's, with the step that computes the token.
 *
 * @param pairs of instances; the others are compared with the first
 * @param tokens of the prompts
 * @param repetitions of each pair that count, after some that do not
 * @param progress receives a line for each step
 */
public record PairBench(List<Pair> pairs, List<Integer> tokens, int repetitions, Consumer<String> progress) {
    private static final String PATH = Backend.OPENAI.path();
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final int WARM_UPS = 3;

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head("{machine/processor}, {machine/processors} processors")
            .table(
                    "",
                    "rows",
                    Column.of("", "{pair}"),
                    Column.of("tokens", "{tokens}"),
                    Column.of("prefill, ms", "{prefill_s|%.1f|1e3}"),
                    Column.of("hand-over (best), ms", "{handover_s|%.1f|1e3} ({handover_best_s|%.1f|1e3})"),
                    Column.of("times", "{times|%.2f}"));

    /** @throws ConfigException if there is nothing to measure */
    public PairBench {
        pairs = List.copyOf(pairs);
        tokens = List.copyOf(tokens);
        if (pairs.isEmpty()) {
            throw new ConfigException("pair", "is missing, must be NAME=PREFILL_URL,DECODE_URL");
        }
        Require.positive("repetitions", repetitions);
        tokens.forEach(each -> Require.positive("tokens", each));
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
                    text.substring(0, equals),
                    URI.create(Endpoint.base("pair", text.substring(equals + 1, comma))),
                    URI.create(Endpoint.base("pair", text.substring(comma + 1))));
        }
    }

    /**
     * Measures.
     *
     * @param model directory of the checkpoint that all instances serve
     * @throws IOException if an instance refuses a request, or does not hand over
     */
    public void run(Path model, ObjectNode json) throws IOException {
        Machine.here().writeTo(json.putObject("machine"));
        ArrayNode rows = json.putArray("rows");
        Map<URI, Instance> instances = new TreeMap<>();
        try (RandomPrompts prompts = new RandomPrompts(model)) {
            for (Pair pair : pairs) {
                for (URI each : List.of(pair.prefill, pair.decode)) {
                    instances.put(each, new Instance(each));
                }
            }
            for (int length : tokens) {
                measure(instances, () -> prompts.ids(length), length, rows);
            }
        } finally {
            instances.values().forEach(Instance::close);
        }
    }

    private void measure(Map<URI, Instance> instances, Supplier<JsonNode> prompts, int length, ArrayNode rows)
            throws IOException {
        List<Rounds> samples = pairs.stream().map(_ -> new Rounds()).toList();
        List<ObjectNode> written = new ArrayList<>();
        for (int i = -WARM_UPS; i < repetitions; i++) {
            progress.accept(
                    i < 0
                            ? "%d tokens, warm-up".formatted(length)
                            : "%d tokens, %d of %d".formatted(length, i + 1, repetitions));
            for (int at = 0; at < pairs.size(); at++) {
                handOver(
                        Objects.requireNonNull(instances.get(pairs.get(at).prefill)),
                        Objects.requireNonNull(instances.get(pairs.get(at).decode)),
                        prompts.get(),
                        i < 0 ? new Rounds() : samples.get(at));
            }
            for (int at = 0; i >= 0 && at < pairs.size(); at++) {
                if (i == 0) {
                    written.add(rows.addObject());
                }
                Timing handover = Timing.of(samples.get(at).values("handover"));
                written.get(at)
                        .put("pair", pairs.get(at).name)
                        .put("tokens", length)
                        .put("prefill_s", Timing.median(samples.get(at).values("prefill")))
                        .put("handover_s", handover.median())
                        .put("handover_best_s", handover.best())
                        .put(
                                "times",
                                handover.median()
                                        / Timing.median(samples.getFirst().values("handover")));
            }
        }
    }

    private static void handOver(Instance prefill, Instance decode, JsonNode prompt, Rounds samples)
            throws IOException {
        ObjectNode first = prefill.body(prompt);
        ObjectNode asked = first.putObject("kv_transfer_params");
        asked.put("do_remote_decode", true).put("do_remote_prefill", false);
        for (String field : List.of("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")) {
            asked.putNull(field);
        }
        long begun = System.nanoTime();
        JsonNode params = prefill.client.post(PATH, first).path("kv_transfer_params");
        samples.add("prefill", (System.nanoTime() - begun) * 1e-9);
        if (!params.path("do_remote_prefill").asBoolean(false)) {
            throw new IOException(prefill.url + " hands nothing over: its kv_transfer_params are " + params
                    + "; is it a producer of NixlConnector, and has the prompt a whole block?");
        }
        ObjectNode second = decode.body(prompt);
        second.set("kv_transfer_params", params);
        long asking = System.nanoTime();
        var _ = decode.client.post(PATH, second);
        samples.add("handover", (System.nanoTime() - asking) * 1e-9);
    }

    /** An instance that runs already. */
    private static final class Instance implements AutoCloseable {
        private final URI url;
        private final EndpointClient client;
        private final String model;

        Instance(URI url) throws IOException {
            this.url = url;
            Endpoint endpoint = Endpoint.of(Backend.OPENAI, url.toString());
            client = new EndpointClient(endpoint, DEADLINE);
            model = ServedModel.first(endpoint, DEADLINE).name();
        }

        ObjectNode body(JsonNode prompt) {
            ObjectNode body = JsonNodeFactory.instance.objectNode().put("model", model);
            body.set("prompt", prompt);
            return body.put("max_tokens", 1).put("temperature", 0);
        }

        @Override
        public void close() {
            client.close();
        }
    }
}
