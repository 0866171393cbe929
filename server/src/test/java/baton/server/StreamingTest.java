package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.kv.JsonFields;
import baton.server.FakeEngine.Session;
import baton.server.ServerFixture.RawClient;
import java.io.IOException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class StreamingTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture();

    /** Each event is read before the next one is made, so no event is delayed until the next. */
    @Test
    void sseEventsAreExactAndSentAtOnce() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.post(
                    "/v1/completions",
                    "{\"prompt\":[5,6],\"stream\":true,\"request_id\":\"r\",\"stream_options\":{\"include_usage\":true}}");
            Session session = fixture.engine.nextSubmitted();
            session.output(0, "Hé");
            assertThat(client.head())
                    .startsWith("HTTP/1.1 200 OK\n")
                    .containsIgnoringCase("\ncontent-type: text/event-stream; charset=utf-8\n")
                    .containsIgnoringCase("\ncache-control: no-cache\n")
                    .containsIgnoringCase("\nx-request-id: r\n");
            String begin =
                    "data: {\"id\":\"cmpl-r\",\"object\":\"text_completion\",\"created\":0,\"model\":\"tiny-ledger\",\"choices\":[";
            assertThat(event(client))
                    .isEqualTo(begin + "{\"index\":0,\"text\":\"Hé\",\"logprobs\":null,\"finish_reason\":null,"
                            + "\"stop_reason\":null}]}\n\n");
            session.output(0, "\"\n");
            assertThat(event(client))
                    .isEqualTo(begin + "{\"index\":0,\"text\":\"\\\"\\n\",\"logprobs\":null,\"finish_reason\":null,"
                            + "\"stop_reason\":null}]}\n\n");
            session.handsOver(JsonFields.parse("kv_transfer_params", "{\"a\":1}"));
            session.finish(0, FinishReason.STOP, Optional.of(4), Optional.empty());
            assertThat(event(client))
                    .isEqualTo(begin + "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                            + "\"stop_reason\":4}],\"kv_transfer_params\":{\"a\":1}}\n\n");
            assertThat(event(client))
                    .isEqualTo(begin + "],\"usage\":{\"prompt_tokens\":2,\"total_tokens\":4,\"completion_tokens\":2,"
                            + "\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n");
            assertThat(client.chunk()).isEqualTo("data: [DONE]\n\n");
            assertThat(client.chunk()).isEmpty();
        }
    }

    @Test
    void aStreamIntervalGathersTokensBetweenTheFirstAndTheLastEvent() throws Exception {
        fixture.engine.script(session -> {
            for (String text : List.of("a", "b", "c", "d", "e", "f")) {
                session.output(0, text);
            }
            session.finish(0, FinishReason.LENGTH);
        });
        List<String> texts = new ArrayList<>();
        for (String event :
                events(fixture.post("/v1/completions", "{\"prompt\":\"x\",\"stream\":true,\"stream_interval\":3}"))) {
            if (event.startsWith("{")) {
                texts.add(ServerFixture.MAPPER
                        .readTree(event)
                        .at("/choices/0/text")
                        .asString());
            }
        }
        assertThat(texts).containsExactly("a", "bcd", "ef");
    }

    /** As vLLM 0.33: each choice has its own, beside its finish_reason. */
    @ParameterizedTest
    @ValueSource(strings = {"/v1/completions", "/v1/chat/completions"})
    void theLastSseChunkOfAChoiceHasItsKvTransferParams(String path) throws Exception {
        fixture.engine.script(session -> {
            session.output(0, "x");
            session.output(1, "y");
            session.handsOver(JsonFields.parse("kv_transfer_params", "{\"a\":1}"));
            session.finish(1, FinishReason.LENGTH);
            session.handsOver(JsonFields.parse("kv_transfer_params", "{\"a\":2}"));
            session.finish(0, FinishReason.LENGTH);
        });
        List<String> events = events(fixture.post(
                path,
                "{\"prompt\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"n\":2,\"stream\":true,"
                        + "\"stream_options\":{\"include_usage\":true}}"));
        List<String> handed = events.stream()
                .filter(event -> event.contains("kv_transfer_params"))
                .toList();
        assertThat(handed).hasSize(2).allSatisfy(event -> assertThat(event).contains("\"finish_reason\":\"length\""));
        assertThat(handed.get(0)).contains("\"index\":1").endsWith("\"kv_transfer_params\":{\"a\":1}}");
        assertThat(handed.get(1)).contains("\"index\":0").endsWith("\"kv_transfer_params\":{\"a\":2}}");
    }

    @Test
    void theLastSseChunkHasTheKvTransferParams() throws Exception {
        fixture.engine.script(session -> {
            session.handsOver(JsonFields.parse("kv_transfer_params", "{\"a\":1}"));
            session.output(0, "x");
            session.finish(0, FinishReason.LENGTH);
        });
        List<String> events = events(fixture.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}"));
        assertThat(events).hasSize(3);
        assertThat(events.get(0)).doesNotContain("kv_transfer_params", "usage");
        assertThat(events.get(1))
                .endsWith("\"kv_transfer_params\":{\"a\":1}}")
                .contains("\"finish_reason\":\"length\"");
        assertThat(events.get(2)).isEqualTo("[DONE]");
    }

    @Test
    void continuousUsageGrowsWithEachSseChunk() throws Exception {
        fixture.engine.answers("a", "b");
        List<String> events = events(
                fixture.post(
                        "/v1/completions",
                        "{\"prompt\":[5],\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}"));
        List<Integer> counts = new ArrayList<>();
        for (String event : events.subList(0, events.size() - 1)) {
            counts.add(ServerFixture.MAPPER
                    .readTree(event)
                    .at("/usage/completion_tokens")
                    .asInt());
        }
        assertThat(counts).containsExactly(1, 2, 2, 2);
    }

    @Test
    void eachSseChunkHasTokenIds() throws Exception {
        fixture.engine.answers("a", "b");
        List<String> events =
                events(fixture.post("/v1/completions", "{\"prompt\":[5,6],\"stream\":true,\"return_token_ids\":true}"));
        assertThat(events.get(0)).contains("\"prompt_token_ids\":[5,6],\"token_ids\":[100]");
        assertThat(events.get(1)).contains("\"token_ids\":[101]").doesNotContain("prompt_token_ids");
    }

    @Test
    void anErrorBeforeTheFirstSseEventHasAStatus() throws Exception {
        fixture.engine.script(session ->
                session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("KV blocks could not be loaded")));
        HttpResponse<String> response = fixture.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
        assertThat(response.statusCode()).isEqualTo(500);
        assertThat(response.body())
                .isEqualTo("{\"error\":{\"message\":\"generation failed: KV blocks could not be loaded\","
                        + "\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
    }

    @Test
    void anErrorInsideAnSseStreamEndsItWithoutDone() throws Exception {
        fixture.engine.script(session -> {
            session.output(0, "x");
            session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("torn block"));
        });
        List<String> events = events(fixture.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}"));
        assertThat(events).hasSize(2);
        assertThat(events.get(1))
                .isEqualTo("{\"error\":{\"message\":\"generation failed: torn block\","
                        + "\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
    }

    @Test
    void oneFailedSequenceEndsTheOthers() throws Exception {
        fixture.engine.script(session -> {
            if (session.request.prompt()[0] == 5) {
                session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("broken"));
            }
        });
        assertThat(fixture.post("/v1/completions", "{\"prompt\":[[5],[6]]}").statusCode())
                .isEqualTo(500);
        assertThat(List.of(fixture.engine.nextAborted(), fixture.engine.nextAborted()))
                .anyMatch(id -> id.matches("cmpl-.*-1-[0-9a-f]{8}"));
    }

    @Test
    void twoHundredSseStreamsAtOnce() throws Exception {
        int streams = 200;
        int tokens = 50;
        fixture.engine.script(session -> {});
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int i = 0; i < streams; i++) {
            answers.add(fixture.client.sendAsync(
                    HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofString(
                                    "{\"prompt\":[" + (5 + i) + "],\"stream\":true,\"max_tokens\":100}"))
                            .build(),
                    HttpResponse.BodyHandlers.ofString()));
        }
        List<Session> sessions = new ArrayList<>();
        for (int i = 0; i < streams; i++) {
            sessions.add(fixture.engine.nextSubmitted());
        }
        for (int token = 0; token < tokens; token++) {
            for (Session session : sessions) {
                session.output(0, session.request.prompt()[0] + "." + token + " ");
            }
        }
        sessions.forEach(session -> session.finish(0, FinishReason.LENGTH));
        for (int i = 0; i < streams; i++) {
            List<String> events = events(answers.get(i).get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS));
            StringBuilder text = new StringBuilder();
            for (String event : events.subList(0, events.size() - 1)) {
                text.append(ServerFixture.MAPPER
                        .readTree(event)
                        .at("/choices/0/text")
                        .asString());
            }
            StringBuilder expected = new StringBuilder();
            for (int token = 0; token < tokens; token++) {
                expected.append(5 + i).append('.').append(token).append(' ');
            }
            assertThat(text.toString()).isEqualTo(expected.toString());
            assertThat(events.getLast()).isEqualTo("[DONE]");
        }
        assertThat(fixture.engine.liveCount()).isZero();
    }

    private static String event(RawClient client) throws IOException {
        return client.chunk().replaceFirst("\"created\":\\d+", "\"created\":0");
    }

    static List<String> events(HttpResponse<String> response) {
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        assertThat(response.body()).endsWith("\n\n");
        List<String> events = new ArrayList<>();
        for (String event : response.body().split("\n\n", -1)) {
            if (!event.isEmpty()) {
                assertThat(event).startsWith("data: ");
                events.add(event.substring("data: ".length()));
            }
        }
        return events;
    }
}
