package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.EngineConfig;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import baton.testkit.Await;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Fields of requests have their effect in the model: the real tiny model behind the real server. */
class RealEngineTest {
    private static final String PROMPT = "Cora keeps the gold coin inside the green box.\nTomas lives in Harrow.\n\n"
            + "In which town does Tomas live?";

    private static LocalEngine engine;
    private static ApiServer server;

    private static final HttpClient CLIENT =
            HttpClient.newBuilder().connectTimeout(ServerFixture.SOON).build();

    @BeforeAll
    static void start() throws Exception {
        PrometheusMetrics metrics = new PrometheusMetrics(ServerFixture.MODEL);
        engine = LocalEngine.start(
                EngineConfig.of(FakeEngine.MODEL)
                        .dtype(DType.F32)
                        .numBlocks(256)
                        .maxNumSeqs(4)
                        .maxWaiting(2)
                        .threads(1)
                        .build(),
                metrics);
        server = ApiServer.start(
                ServerConfig.of(ServerFixture.MODEL)
                        .port(0)
                        .accessLog(line -> {})
                        .build(),
                engine,
                metrics);
    }

    @AfterAll
    static void stop() {
        CLIENT.shutdownNow();
        server.close(Duration.ZERO);
        engine.close();
    }

    @Test
    void logprobsOfAnAnswerAreThoseOfTheSameTextAsPrompt() throws Exception {
        ObjectNode asked = greedy(8).put("logprobs", 1).put("return_token_ids", true);
        JsonNode answer = post(asked).at("/choices/0");
        ArrayNode tokens =
                ((ArrayNode) answer.get("prompt_token_ids").deepCopy()).addAll((ArrayNode) answer.get("token_ids"));
        ObjectNode whole = greedy(0).put("echo", true).put("logprobs", 1);
        whole.set("prompt", tokens);
        JsonNode echoed = post(whole).at("/choices/0/logprobs/token_logprobs");
        assertThat(echoed.size()).isEqualTo(tokens.size());
        assertThat(echoed.get(0).isNull()).isTrue();
        ObjectNode vllms = greedy(1).put("prompt_logprobs", 1);
        vllms.set("prompt", tokens);
        JsonNode prompt = post(vllms).at("/choices/0/prompt_logprobs");
        int promptLength = answer.get("prompt_token_ids").size();
        for (int i = 0; i < answer.get("token_ids").size(); i++) {
            double generated = answer.at("/logprobs/token_logprobs/" + i).asDouble();
            assertThat(echoed.get(promptLength + i).asDouble()).isCloseTo(generated, within(1e-3));
            JsonNode entry = prompt.get(promptLength + i)
                    .get(tokens.get(promptLength + i).asString());
            assertThat(entry.get("logprob").asDouble()).isCloseTo(generated, within(1e-3));
            // Greedy choices are the most probable.
            assertThat(entry.get("rank").asInt()).isEqualTo(1);
        }
    }

    /** Also where the text is held back for a stop string, and a character has several tokens. */
    @Test
    void logprobsOfAStreamAddUpToThoseOfTheWholeAnswer() throws Exception {
        List<ObjectNode> bodies = List.of(
                greedy(12),
                greedy(12).put("stop", "Harrow, but not here"),
                greedy(12).put("echo", true),
                greedy(6).put("temperature", 2).put("seed", 3).put("n", 2).put("ignore_eos", true),
                greedy(6).put("return_tokens_as_token_ids", true));
        for (ObjectNode body : bodies) {
            body.put("logprobs", 1);
            JsonNode whole = post(body).get("choices");
            String events = CLIENT.send(
                            request(body.deepCopy().put("stream", true)), HttpResponse.BodyHandlers.ofString())
                    .body();
            for (int index = 0; index < whole.size(); index++) {
                for (String name : List.of("text_offset", "tokens", "token_logprobs", "top_logprobs")) {
                    ArrayNode streamed = ServerFixture.MAPPER.createArrayNode();
                    for (String line : events.lines().toList()) {
                        JsonNode choice = line.startsWith("data: {")
                                ? ServerFixture.MAPPER
                                        .readTree(line.substring(6))
                                        .at("/choices/0")
                                : ServerFixture.MAPPER.createObjectNode();
                        if (choice.path("index").asInt(-1) == index) {
                            choice.path("logprobs").path(name).forEach(streamed::add);
                        }
                    }
                    assertThat(streamed)
                            .as("%s of %s", name, body)
                            .isEqualTo(whole.get(index).path("logprobs").path(name));
                }
            }
        }
    }

    @Test
    void aContradictionOfParametersAtALaterTokenEndsTheAnswer() throws Exception {
        int id = IntStream.range(300, engine.model().vocabularySize())
                .filter(each -> List.of(each, each)
                        .equals(IntStream.of(engine.tokenizer()
                                        .encode(engine.tokenizer().token(each).repeat(2), false))
                                .boxed()
                                .toList()))
                .findFirst()
                .orElseThrow();
        ObjectNode body = greedy(6).put("return_token_ids", true);
        body.putArray("allowed_token_ids").add(id);
        body.putArray("bad_words").add(engine.tokenizer().token(id).repeat(2));
        for (double temperature : new double[] {0, 1}) {
            JsonNode choice = post(body.put("temperature", temperature)).at("/choices/0");
            assertThat(choice.get("token_ids").toString()).isEqualTo("[" + id + "]");
            assertThat(choice.get("finish_reason").asString()).isEqualTo("stop");
            assertThat(choice.get("stop_reason").isNull()).isTrue();
        }
        assertThat(CLIENT.send(request(body.put("stream", true)), HttpResponse.BodyHandlers.ofString())
                        .body())
                .contains("\"finish_reason\":\"stop\"")
                .endsWith("data: [DONE]\n\n");
    }

    @Test
    void promptsOfThirtyMegabytesDoNotDelayOtherRequests() throws Exception {
        byte[] large =
                ("{\"prompt\":\"" + PROMPT.replace("\n", " ").repeat(290_000) + "\"}").getBytes(StandardCharsets.UTF_8);
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            answers.add(CLIENT.sendAsync(
                    HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.port() + "/v1/completions"))
                            .timeout(ServerFixture.SOON)
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofByteArray(large))
                            .build(),
                    HttpResponse.BodyHandlers.ofString()));
        }
        assertThat(text(greedy(6))).contains("Harrow");
        List<Integer> statuses = new ArrayList<>();
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            statuses.add(answer.get(60, TimeUnit.SECONDS).statusCode());
        }
        assertThat(statuses).isSubsetOf(400, 503).contains(400);
    }

    @Test
    void badWordsAndLogitBiasExcludeTokens() throws Exception {
        String usual = text(greedy(6));
        assertThat(usual).contains("Harrow");
        ObjectNode forbidden = greedy(6);
        forbidden.putArray("bad_words").add("Harrow");
        assertThat(text(forbidden)).doesNotContain("Harrow").isNotEqualTo(usual);
        ObjectNode few = greedy(6).put("ignore_eos", true).put("return_token_ids", true);
        few.putArray("allowed_token_ids").add(100).add(101);
        List<Integer> ids = new ArrayList<>();
        post(few).at("/choices/0/token_ids").forEach(id -> ids.add(id.asInt()));
        assertThat(ids).hasSize(6).containsAnyOf(100, 101).isSubsetOf(100, 101);
        ObjectNode biased = greedy(3).put("ignore_eos", true).put("return_token_ids", true);
        biased.putObject("logit_bias").put("77", 100);
        assertThat(post(biased).at("/choices/0/token_ids").toString()).isEqualTo("[77,77,77]");
    }

    @Test
    void stopStringsEndTheTextInsideATokenToo() throws Exception {
        String usual = text(greedy(16).put("ignore_eos", true));
        int from = usual.indexOf("arr");
        assertThat(from).as(usual).isPositive();
        ObjectNode stopped = greedy(16).put("ignore_eos", true);
        stopped.putArray("stop").add("arr");
        JsonNode choice = post(stopped).at("/choices/0");
        assertThat(choice.get("text").asString()).isEqualTo(usual.substring(0, from));
        assertThat(choice.get("stop_reason").asString()).isEqualTo("arr");
        assertThat(text(stopped.put("include_stop_str_in_output", true))).isEqualTo(usual.substring(0, from + 3));
    }

    @Test
    void bestOfIsTheBestOfTheSameSeeds() throws Exception {
        ObjectNode all = greedy(5)
                .put("temperature", 2)
                .put("seed", 11)
                .put("n", 4)
                .put("logprobs", 0)
                .put("ignore_eos", true);
        JsonNode choices = post(all).get("choices");
        String best = IntStream.range(0, 4)
                .boxed()
                .max((a, b) -> Double.compare(sum(choices.get(a)), sum(choices.get(b))))
                .map(index -> choices.get(index).get("text").asString())
                .orElseThrow();
        assertThat(text(all.put("n", 1).put("best_of", 4))).isEqualTo(best);
    }

    @Test
    void aFullQueueIsA503WithRetryAfterUntilThereIsRoom() throws Exception {
        ObjectNode endless = greedy(1900).put("ignore_eos", true).put("stream", true);
        List<CompletableFuture<HttpResponse<Void>>> clients = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            clients.add(CLIENT.sendAsync(request(endless), HttpResponse.BodyHandlers.discarding()));
        }
        Await.until(
                "six requests are in",
                ServerFixture.SOON,
                () -> engine.status().running() + engine.status().waiting() == 6);
        HttpResponse<String> refused = CLIENT.send(request(greedy(1)), HttpResponse.BodyHandlers.ofString());
        assertThat(refused.statusCode()).isEqualTo(503);
        assertThat(refused.headers().firstValue("Retry-After")).contains("1");
        assertThat(ServerFixture.json(refused).at("/error/message").asString()).contains("max_waiting=2");
        // A request that can never fit is refused for good.
        HttpResponse<String> never = CLIENT.send(request(greedy(1).put("n", 7)), HttpResponse.BodyHandlers.ofString());
        assertThat(never.statusCode()).isEqualTo(400);
        clients.forEach(client -> client.cancel(true));
        Await.until(
                "all have gone",
                ServerFixture.SOON,
                () -> engine.status().running() + engine.status().waiting() == 0);
        assertThat(text(greedy(6))).contains("Harrow");
    }

    @Test
    void everyApplicableMetricOfVllmIsPresent() throws Exception {
        post(greedy(4).put("ignore_eos", true).put("n", 2).put("temperature", 1));
        String metrics = CLIENT.send(
                        HttpRequest.newBuilder(uri("/metrics"))
                                .timeout(ServerFixture.SOON)
                                .build(),
                        HttpResponse.BodyHandlers.ofString())
                .body();
        for (String histogram : List.of(
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "request_time_per_output_token_seconds",
                "e2e_request_latency_seconds",
                "request_queue_time_seconds",
                "request_inference_time_seconds",
                "request_prefill_time_seconds",
                "request_decode_time_seconds",
                "request_prompt_tokens",
                "request_generation_tokens",
                "request_prefill_kv_computed_tokens",
                "request_max_num_generation_tokens",
                "request_params_n",
                "request_params_max_tokens",
                "iteration_tokens_total")) {
            assertThat(value(metrics, "vllm:" + histogram + "_count"))
                    .as(histogram)
                    .isPositive();
        }
        for (String positive : List.of(
                "vllm:prompt_tokens_total",
                "vllm:generation_tokens_total",
                "vllm:prefix_cache_queries_total",
                "vllm:cache_config_info")) {
            assertThat(value(metrics, positive)).as(positive).isPositive();
        }
        for (String present : List.of(
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:num_requests_waiting_by_reason",
                "vllm:kv_cache_usage_perc",
                "vllm:prefix_cache_hits_total",
                "vllm:external_prefix_cache_queries_total",
                "vllm:external_prefix_cache_hits_total",
                "vllm:num_preemptions_total",
                "vllm:prompt_tokens_cached_total",
                "vllm:prompt_tokens_by_source_total",
                "vllm:request_success_total")) {
            assertThat(value(metrics, present)).as(present).isNotNegative();
        }
        assertThat(metrics).contains("le=\"2000.0\"}").contains("num_gpu_blocks=\"256\"");
    }

    /** The value of the first series of that name. */
    private static double value(String metrics, String name) {
        return metrics.lines()
                .filter(line -> line.startsWith(name + "{"))
                .mapToDouble(line -> Double.parseDouble(line.substring(line.lastIndexOf(' '))))
                .findFirst()
                .orElseThrow(() -> new AssertionError("no " + name));
    }

    private static double sum(JsonNode choice) {
        double sum = 0;
        for (JsonNode logprob : choice.at("/logprobs/token_logprobs")) {
            sum += logprob.asDouble();
        }
        return sum;
    }

    private static ObjectNode greedy(int maxTokens) {
        return ServerFixture.MAPPER
                .createObjectNode()
                .put("prompt", "<|user|>" + PROMPT + "<|end|><|assistant|>")
                .put("temperature", 0)
                .put("max_tokens", maxTokens);
    }

    private static String text(ObjectNode body) throws Exception {
        return post(body).at("/choices/0/text").asString();
    }

    private static JsonNode post(ObjectNode body) throws Exception {
        HttpResponse<String> response = CLIENT.send(request(body), HttpResponse.BodyHandlers.ofString());
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return ServerFixture.json(response);
    }

    private static HttpRequest request(ObjectNode body) {
        return HttpRequest.newBuilder(uri("/v1/completions"))
                .timeout(ServerFixture.SOON)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()))
                .build();
    }

    private static URI uri(String path) {
        return URI.create("http://127.0.0.1:" + server.port() + path);
    }
}
