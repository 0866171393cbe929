package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.http.HttpResponse;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;

/** Prompts as token ids, at {@code /v1/completions/render} and {@code /v1/chat/completions/render}. */
class RenderTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture();

    private JsonNode ids(String text, boolean withSpecialTokens) {
        return ServerFixture.MAPPER.valueToTree(fixture.engine.tokenizer().encode(text, withSpecialTokens));
    }

    @Test
    void aChatIsOneRequestWithTheSamplingThatIsNotTheDefault() throws Exception {
        HttpResponse<String> response = fixture.post("/v1/chat/completions/render", """
                {"model": "tiny-ledger", "request_id": "r1", "messages": [{"role": "user", "content": "Item 7?"}],
                 "temperature": 0.5, "top_k": 40, "stop": "x", "max_tokens": 9, "bad_words": ["no"], "priority": 3,
                 "stream": true, "stream_options": {"include_usage": true}, "cache_salt": "s",
                 "response_format": {"type": "json_object"}, "kv_transfer_params": {"do_remote_decode": true}}
                """);
        JsonNode expected =
                ServerFixture.MAPPER.readTree("""
                {"request_id": "chatcmpl-r1", "token_ids": %s, "token_offsets": null, "features": null,
                 "sampling_params": {"temperature": 0.5, "top_k": 40, "stop": ["x"], "max_tokens": 9,
                     "bad_words": ["no"], "structured_outputs": {"json_object": true}},
                 "model": "tiny-ledger", "stream": true, "stream_options": {"include_usage": true}, "cache_salt": "s",
                 "priority": 3, "kv_transfer_params": {"do_remote_decode": true}, "ec_transfer_params": null}
                """.formatted(ids("<|bos|><|user|>Item 7?<|end|><|assistant|>", false)));
        assertThat(ServerFixture.json(response)).isEqualTo(expected);
        assertThat(fixture.engine.submittedCount()).isZero();
    }

    @Test
    void completionsAreAnArrayWithARequestForEachPrompt() throws Exception {
        JsonNode one = ServerFixture.json(fixture.post("/v1/completions/render", "{\"prompt\":\"Item 7\"}"));
        assertThat(one).hasSize(1);
        assertThat(one.at("/0/token_ids")).isEqualTo(ids("Item 7", true));
        assertThat(one.at("/0/request_id").asString()).matches("cmpl-[0-9a-f]{32}");
        assertThat(one.at("/0/sampling_params")).isEmpty();
        JsonNode two = ServerFixture.json(
                fixture.post("/v1/completions/render", "{\"prompt\":[[1,2],[3]],\"request_id\":\"r\",\"n\":2}"));
        assertThat(two.at("/0/token_ids").toString()).isEqualTo("[1,2]");
        assertThat(two.at("/1/token_ids").toString()).isEqualTo("[3]");
        assertThat(two.at("/1/request_id").asString()).isEqualTo("cmpl-r-1");
        assertThat(two.at("/1/sampling_params").toString()).isEqualTo("{\"n\":2}");
    }

    @Test
    void aChatWithoutALimitMayFillTheContext() throws Exception {
        JsonNode json = ServerFixture.json(
                fixture.post("/v1/chat/completions/render", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"));
        assertThat(json.at("/sampling_params/max_tokens").asInt())
                .isEqualTo(2048 - json.get("token_ids").size());
    }

    @Test
    void fieldsThatEachPromptRepeatsCountAsMemory() throws Exception {
        try (ServerFixture small = new ServerFixture(config -> config.maxPreparingBytes(4 << 20))) {
            String body = "{\"prompt\":[" + "[1],".repeat(999) + "[1]],\"cache_salt\":\"" + "s".repeat(4096) + "\"}";
            assertThat(small.post("/v1/completions/render", body).statusCode()).isEqualTo(413);
            assertThat(small.server.preparingBytes()).isZero();
        }
    }

    @Test
    void errorsAreThoseOfTheRequestItself() throws Exception {
        HttpResponse<String> bad = fixture.post("/v1/completions/render", "{\"prompt\":[1,\"x\"]}");
        assertThat(bad.statusCode()).isEqualTo(400);
        assertThat(ServerFixture.json(bad).at("/error/param").asString()).isEqualTo("prompt[1]");
        assertThat(fixture.post("/v1/completions/render", "{\"prompt\":\"a\",\"model\":\"other\"}")
                        .statusCode())
                .isEqualTo(404);
        assertThat(fixture.get("/v1/chat/completions/render").statusCode()).isEqualTo(405);
    }
}
