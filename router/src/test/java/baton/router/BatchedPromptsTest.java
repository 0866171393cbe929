package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.body.PromptField;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.policy.LocalPrefill;
import baton.testkit.Await;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;
import java.net.http.HttpResponse;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Several prompts in one request, where a hand-over is of one. */
@Timeout(300)
class BatchedPromptsTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private final RouterFixture fixture = new RouterFixture();
    private final Vertx timers = Vertx.vertx();
    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();
    private Router router;

    @BeforeEach
    void behave() {
        // Its blocks are named by the prompt.
        prefill.behaviour = (request, response) -> FakeInstance.json(
                        200, "{\"kv_transfer_params\":{\"remote_block_ids\":[" + prompt(request) + "]}}")
                .accept(request, response);
        decode.behaviour = (request, response) -> {
            JsonNode body = JSON.readTree(request.body());
            String prompt = prompt(request);
            assertThat(body.path("kv_transfer_params")
                            .path("remote_block_ids")
                            .path(0)
                            .asString())
                    .isEqualTo(prompt);
            String id = "cmpl-" + request.headers().get("X-Request-Id");
            int n = body.path("n").asInt(1);
            // The later prompts are answered first.
            timers.setTimer(Math.max(1, 60 - 20 * Integer.parseInt(prompt)), _ -> {
                if (body.path("stream").asBoolean(false)) {
                    FakeInstance.events(response);
                    for (int i = 0; i < n; i++) {
                        response.write(Buffer.buffer("data: {\"id\":\"" + id + "\",\"choices\":[{\"index\":" + i
                                + ",\"text\":\"answer to " + prompt + "\"}]}\n\n"));
                    }
                    response.write(Buffer.buffer("data: {\"id\":\"" + id
                            + "\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":" + prompt
                            + "}}\n\n"));
                    response.end("data: [DONE]\n\n");
                } else {
                    StringBuilder choices = new StringBuilder();
                    for (int i = 0; i < n; i++) {
                        choices.append(i == 0 ? "" : ",")
                                .append("{\"index\":" + i + ",\"text\":\"answer to " + prompt + "\"}");
                    }
                    FakeInstance.json(
                                    200,
                                    "{\"id\":\"" + id + "\",\"model\":\"m\",\"choices\":[" + choices
                                            + "],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":" + prompt
                                            + ",\"prompt_tokens_details\":{\"cached_tokens\":2}},\"kv_transfer_params\":{}}")
                            .accept(request, response);
                }
            });
        };
        router = fixture.router(
                KvTransferParamsFlow.NAME, List.of(prefill), List.of(decode), Optional.empty(), LocalPrefill.NEVER);
    }

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
        timers.close();
    }

    private static String prompt(FakeInstance.Received request) {
        return JSON.readTree(request.body()).path("prompt").asString();
    }

    @Test
    void eachPromptIsHandedOverAndTheAnswerIsOne() throws Exception {
        HttpResponse<String> answer = fixture.post(
                router, "{\"prompt\":[\"0\",\"1\",\"2\"],\"n\":2,\"max_tokens\":5}", "X-Request-Id", "batch");
        assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
        assertThat(answer.headers().firstValue("X-Request-Id")).contains("batch");
        JsonNode body = JSON.readTree(answer.body());
        assertThat(body.path("id").asString()).isEqualTo("cmpl-batch");
        assertThat(body.path("choices")).hasSize(6);
        for (int i = 0; i < 6; i++) {
            assertThat(body.path("choices").path(i).path("index").asInt()).isEqualTo(i);
            assertThat(body.path("choices").path(i).path("text").asString()).isEqualTo("answer to " + i / 2);
        }
        assertThat(body.path("usage").path("prompt_tokens").asInt()).isEqualTo(30);
        assertThat(body.path("usage").path("completion_tokens").asInt()).isEqualTo(3);
        assertThat(body.path("usage")
                        .path("prompt_tokens_details")
                        .path("cached_tokens")
                        .asInt())
                .isEqualTo(6);
        assertThat(prefill.received).hasSize(3);
        assertThat(prefill.received)
                .map(request -> request.headers().get("X-Request-Id"))
                .containsExactlyInAnyOrder("batch-0", "batch-1", "batch-2");
        assertThat(fixture.metric(router, "baton:router_requests_running")).isZero();
    }

    @Test
    void promptsOfARequestWithTheLongestIdAreServed() throws Exception {
        fixture.post(router, "{\"prompt\":[\"0\",\"1\"]}", "X-Request-Id", "a".repeat(256));
        assertThat(decode.received)
                .map(request -> request.headers().get("X-Request-Id"))
                .containsExactlyInAnyOrder("a".repeat(254) + "-0", "a".repeat(254) + "-1");
    }

    @Test
    void theStreamsOfAllPromptsAreOne() throws Exception {
        HttpResponse<String> answer = fixture.post(
                router,
                "{\"prompt\":[\"0\",\"1\",\"2\"],\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                "X-Request-Id",
                "batch");
        assertThat(answer.statusCode()).isEqualTo(200);
        assertThat(answer.headers().firstValue("Content-Type").orElseThrow()).startsWith("text/event-stream");
        List<String> events =
                answer.body().lines().filter(line -> !line.isEmpty()).toList();
        assertThat(events).hasSize(5).last().isEqualTo("data: [DONE]");
        List<JsonNode> choices = events.subList(0, 3).stream()
                .map(event -> JSON.readTree(event.substring(6)))
                .toList();
        assertThat(choices).allSatisfy(event -> {
            JsonNode choice = event.path("choices").path(0);
            assertThat(event.path("id").asString()).isEqualTo("cmpl-batch");
            assertThat(choice.path("text").asString())
                    .isEqualTo("answer to " + choice.path("index").asInt());
        });
        assertThat(choices)
                .map(event -> event.path("choices").path(0).path("index").asInt())
                .containsExactlyInAnyOrder(0, 1, 2);
        JsonNode usage = JSON.readTree(events.get(3).substring(6));
        assertThat(usage.path("choices")).isEmpty();
        assertThat(usage.path("usage").path("prompt_tokens").asInt()).isEqualTo(30);
        assertThat(usage.path("usage").path("completion_tokens").asInt()).isEqualTo(3);
    }

    @Test
    void moreThanAreServedAtOnceAreServedInTheEnd() throws Exception {
        int prompts = BatchedRequest.AT_ONCE * 2 + 3;
        String all = String.join(
                ",", IntStream.range(0, prompts).mapToObj(i -> "\"" + i + "\"").toList());
        JsonNode body =
                JSON.readTree(fixture.post(router, "{\"prompt\":[" + all + "]}").body());
        assertThat(body.path("choices")).hasSize(prompts);
        for (int i = 0; i < prompts; i++) {
            assertThat(body.path("choices").path(i).path("text").asString()).isEqualTo("answer to " + i);
        }
    }

    @Test
    void aPromptThatIsRefusedIsTheAnswer() throws Exception {
        var known = prefill.behaviour;
        prefill.behaviour = (request, response) -> (prompt(request).equals("1")
                        ? FakeInstance.json(400, "{\"error\":{\"message\":\"too long\"}}")
                        : known)
                .accept(request, response);
        HttpResponse<String> answer = fixture.post(router, "{\"prompt\":[\"0\",\"1\",\"2\"]}");
        assertThat(answer.statusCode()).isEqualTo(400);
        assertThat(answer.body()).isEqualTo("{\"error\":{\"message\":\"too long\"}}");
        fixture.awaitRest(router);
    }

    @Test
    void aPromptThatIsRefusedEndsAStreamThatHasBegunWithAnEvent() throws Exception {
        var known = decode.behaviour;
        CompletableFuture<HttpServerResponse> refused = new CompletableFuture<>();
        decode.behaviour = (request, response) -> {
            if (prompt(request).equals("0")) {
                FakeInstance.events(response, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n");
            } else if (prompt(request).equals("1")) {
                refused.complete(response);
            } else {
                known.accept(request, response);
            }
        };
        CompletableFuture<HttpResponse<String>> answer =
                fixture.postAndGoOn(router, "{\"prompt\":[\"0\",\"1\",\"2\"],\"stream\":true}");
        HttpServerResponse open = RouterFixture.result(refused);
        Await.until(
                "the stream has begun",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_first_byte_seconds_count") > 0);
        open.setStatusCode(400).end("{\"error\":\n {\"message\":\"too long\"}}");
        assertThat(RouterFixture.result(answer).body())
                .endsWith("data: {\"error\":{\"message\":\"too long\"}}\n\n")
                .doesNotContain("[DONE]");
    }

    @Test
    void tooManyPromptsAreRefused() throws Exception {
        String all = String.join(",", Collections.nCopies(PromptField.MOST + 1, "\"\""));
        CompletableFuture<HttpResponse<String>> many = fixture.postAndGoOn(router, "{\"prompt\":[" + all + "]}");
        assertThat(many.get().statusCode()).isEqualTo(400);
        assertThat(many.get().body()).contains("holds more than 4096 prompts");
        String body = "{\"prompt\":[" + String.join(",", Collections.nCopies(3000, "\"\"")) + "],\"suffix\":\""
                + "x".repeat(100_000) + "\"}";
        CompletableFuture<HttpResponse<String>> large = fixture.postAndGoOn(router, body);
        assertThat(large.get().statusCode()).isEqualTo(400);
        assertThat(large.get().body()).contains("holds 3000 prompts beside 1000");
    }

    @Test
    void aStreamThatBreaksOffEndsAllWithAnError() throws Exception {
        var known = decode.behaviour;
        decode.behaviour = (request, response) -> {
            if (prompt(request).equals("0")) {
                FakeInstance.events(response, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n");
                timers.setTimer(100, _ -> response.reset());
            } else {
                known.accept(request, response);
            }
        };
        HttpResponse<String> answer = fixture.post(router, "{\"prompt\":[\"0\",\"1\",\"2\"],\"stream\":true}");
        assertThat(answer.body()).contains("\"error\"").doesNotContain("[DONE]");
    }

    @Test
    void aClientThatLeavesEndsAllParts() throws Exception {
        decode.behaviour = (_, response) ->
                FakeInstance.events(response, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n");
        try (RawClient client = new RawClient(router.port())) {
            client.post("/v1/completions", "{\"prompt\":[\"0\",\"1\",\"2\"],\"stream\":true}");
            Await.until("three legs run", RouterFixture.SOON, () -> decode.received.size() == 3);
        }
        Await.until("all are ended", RouterFixture.SOON, () -> decode.aborted.get() == 3);
        fixture.awaitRest(router);
    }

    @Test
    void aWrongNumberOfChoicesIsNamed() throws Exception {
        CompletableFuture<HttpResponse<String>> answer =
                fixture.postAndGoOn(router, "{\"prompt\":[\"0\",\"1\"],\"n\":\"two\"}");
        assertThat(answer.get().statusCode()).isEqualTo(400);
        assertThat(answer.get().body()).contains("must be a number of choices");
    }
}
