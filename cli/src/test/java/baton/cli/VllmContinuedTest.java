package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.testkit.Await;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * A real vLLM 0.32 behind Baton's router is killed while it decodes: its streams continue at a Baton instance, and clients have the greedy answers of vLLM
 * alone, in fp32.
 */
@Tag("peers")
@Isolated("vLLM needs the cores.")
@Timeout(1200)
class VllmContinuedTest {
    private static final int STREAMS = 8;
    private static final int MAX_TOKENS = 240;
    private static final Duration LATEST = Duration.ofMinutes(3);

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private record Asked(String path, ObjectNode body, String text) {}

    @Test
    void streamsOfAKilledVllmContinueAtBaton() throws Exception {
        try (MixedFleet fleet = MixedFleet.start(INSTANCES, Vllm.Setup.of("float32"))) {
            Vllm vllm = fleet.vllm();
            Instance router = INSTANCES.route(
                    "router",
                    List.of(fleet.prefill()),
                    List.of(fleet.decode()),
                    "--decode",
                    vllm.url() + "?connector=NixlConnector",
                    "--flow",
                    "kv_transfer_params");
            List<Asked> all = new ArrayList<>();
            for (int i = 0; i < STREAMS; i++) {
                all.add(asked(vllm, i));
            }
            double before = vllm.metric("vllm:generation_tokens_total");
            List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
            for (Asked each : all) {
                ObjectNode stream = each.body.deepCopy().put("stream", true);
                stream.putObject("stream_options").put("include_usage", true);
                answers.add(router.postAndGoOn(each.path, stream));
            }
            Await.until(
                    LATEST,
                    () -> "it does not decode\n" + vllm.tail(),
                    () -> vllm.metric("vllm:generation_tokens_total") > before + 20 * STREAMS);
            vllm.kill();

            for (int i = 0; i < STREAMS; i++) {
                assertAnswer(answers.get(i).get(LATEST.toSeconds(), TimeUnit.SECONDS), all.get(i));
            }
            assertThat(router.metric("baton:router_streams_continued_total", "outcome=\"continued\""))
                    .isGreaterThanOrEqualTo(2);
        }
    }

    /** A request. The last two of four, which round robin sends to different instances, are chats. */
    private static Asked asked(Vllm vllm, int number) throws Exception {
        boolean isChat = number % 4 > 1;
        ObjectNode body;
        if (isChat) {
            body = Instances.JSON
                    .createObjectNode()
                    .put("model", Vllm.MODEL)
                    .put("temperature", 0)
                    .put("ignore_eos", true)
                    .put("max_completion_tokens", MAX_TOKENS);
            body.putArray("messages").addObject().put("role", "user").put("content", "ledger " + number);
        } else {
            body = MixedFleet.body(Ledgers.prompt(200 + 37 * number, number), MAX_TOKENS);
            body.remove("return_token_ids");
        }
        String path = isChat ? "/v1/chat/completions" : "/v1/completions";
        JsonNode choice = vllm.post(
                        path, body.deepCopy().put("cache_salt", "alone").toString())
                .choice();
        return new Asked(
                path,
                body,
                isChat
                        ? choice.at("/message/content").asString()
                        : choice.path("text").asString());
    }

    private static void assertAnswer(HttpResponse<String> answer, Asked asked) {
        assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
        StringBuilder text = new StringBuilder();
        Set<String> ids = new HashSet<>();
        Set<String> created = new HashSet<>();
        JsonNode usage = Instances.JSON.missingNode();
        List<String> data = answer.body()
                .lines()
                .filter(line -> line.startsWith("data: "))
                .map(line -> line.substring(6))
                .toList();
        assertThat(data.getLast()).as(answer.body()).isEqualTo("[DONE]");
        for (String event : data.subList(0, data.size() - 1)) {
            JsonNode json = Instances.JSON.readTree(event);
            ids.add(json.path("id").asString());
            created.add(json.path("created").toString());
            JsonNode choice = json.path("choices").path(0);
            text.append(choice.path("text").asString(""))
                    .append(choice.at("/delta/content").asString(""));
            usage = json.has("usage") ? json.path("usage") : usage;
        }
        assertThat(text).as(asked.path).hasToString(asked.text);
        assertThat(ids).hasSize(1);
        assertThat(created).hasSize(1);
        assertThat(answer.body()).doesNotContain("token_ids");
        assertThat(usage.path("completion_tokens").asInt()).as(usage.toString()).isEqualTo(MAX_TOKENS);
    }
}
