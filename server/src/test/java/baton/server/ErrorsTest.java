package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineUnavailableException;
import baton.server.ServerFixture.RawClient;
import java.io.ByteArrayInputStream;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.Charset;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;

class ErrorsTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.maxBodyBytes(100_000));

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            {"prompt":"a","temperature":"hot"}               | temperature          | temperature: must be a number, is "hot"
            {"prompt":"a","temperature":-1}                  | temperature          | temperature: is -1, must be in [0, 2]
            {"prompt":"a","top_p":[1]}                       | top_p                | top_p: must be a number, is [1]
            {"prompt":"a","n":0}                             | n                    | n: is 0, must be between 1 and 16384
            {"prompt":"a","n":1.5}                           | n                    | n: must be a whole number, is 1.5
            {"prompt":"a","n":3,"best_of":2}                 | best_of              | best_of: is 2, must be at least n, which is 3
            {"prompt":"a","n":2,"best_of":3,"stream":true}   | best_of              | best_of: is 3, must equal n, which is 2, in a stream
            {"prompt":"a","best_of":5000}                    | best_of              | best_of: is 5000, a request may have at most 4224 sequences
            {"prompt":"a","n":5000}                          | n                    | n: is 5000, a request may have at most 4224 sequences
            {"prompt":"a","allowed_token_ids":[]}            | allowed_token_ids    | allowed_token_ids: is empty, must have at least one token
            {"prompt":"a","allowed_token_ids":[5,2048]}      | allowed_token_ids[1] | allowed_token_ids[1]: token id 2048 is not in the vocabulary, must be between 0 and 2047
            {"prompt":"a","bad_words":"x"}                   | bad_words            | bad_words: must be an array of strings, is "x"
            {"prompt":"a","bad_words":["x",{}]}              | bad_words[1]         | bad_words[1]: must be a string, is {}
            {"prompt":"a","bad_words":[""]}                  | bad_words            | bad_words: cannot contain a word without tokens
            {"prompt":"a","truncate_prompt_tokens":0}        | truncate_prompt_tokens | truncate_prompt_tokens: is 0, must be between 1 and 2047, or -1 for as many as fit with the output
            {"prompt":"a","truncate_prompt_tokens":2048}     | truncate_prompt_tokens | truncate_prompt_tokens: is 2048, must be between 1 and 2047, or -1 for as many as fit with the output
            {"prompt":"a","truncation_side":"middle"}        | truncation_side      | truncation_side: unsupported value 'middle'; allowed: left, right
            {"prompt":"a","stream_interval":0}               | stream_interval      | stream_interval: is 0, must be at least 1
            {"prompt":"a","thinking_token_budget":5}         | thinking_token_budget | thinking_token_budget: is 5, which needs --reasoning-parser deepseek_r1 or qwen3
            {"prompt":"a","logprobs":1,"logprob_token_ids":[5]} | logprob_token_ids | logprob_token_ids: is not supported by this server, is [5]
            {"prompt":"a","structured_outputs":{}}           | structured_outputs   | structured_outputs: has no format, must have one of json, json_object, regex, choice, grammar, structural_tag
            {"prompt":"a","user":7}                          | user                 | user: must be a string, is 7
            {"prompt":"a","return_tokens_as_token_ids":1}    | return_tokens_as_token_ids | return_tokens_as_token_ids: must be true or false, is 1
            {"prompt":"a","stream":true,"stream_options":{"include_usage":3}} | stream_options.include_usage | stream_options.include_usage: must be true or false, is 3
            {"prompt":"a","max_tokens":0}                    | max_tokens           | max_tokens: is 0, must be at least 1
            {"prompt":"a","max_tokens":99999999999}          | max_tokens           | max_tokens: is 99999999999, must fit 32 bits
            {"prompt":"a","stream":"yes"}                    | stream               | stream: must be true or false, is "yes"
            {"prompt":"a","stream_options":{}}               | stream_options       | stream_options: is only allowed when stream is true
            {"prompt":"a","stop":[1]}                        | stop[0]              | stop[0]: must be a string, is 1
            {"prompt":"a","stop":7}                          | stop                 | stop: must be a string or an array of strings, is 7
            {"prompt":"a","stop":["x",""]}                   | stop                 | stop: cannot contain an empty string
            {"prompt":"a","seed":1.5}                        | seed                 | seed: must be a whole number, is 1.5
            {"prompt":"a","seed":9223372036854775808}        | seed                 | seed: must be a whole number of 64 bits, is 9223372036854775808
            {"prompt":["a","b"],"n":16384,"temperature":1}   | prompt               | prompt: has 2 prompts with n=16384, a request may have at most 4224 sequences
            {"prompt":"a","response_format":{"type":"x"}}    | response_format.type | response_format.type: unsupported value 'x'; allowed: text, json_object, json_schema, structural_tag
            {"prompt":"a","logprobs":true}                   | logprobs             | logprobs: must be a whole number, is true
            {"prompt":"a","logprobs":21}                     | logprobs             | logprobs: is 21, must be between 0 and 20
            {"prompt":"a","logit_bias":{"x":1}}              | logit_bias.x         | logit_bias.x: must have a token id as its name
            {"prompt":"a","logit_bias":{"5":101}}            | logit_bias.5         | logit_bias.5: is 101.0, must be in [-100, 100]
            {"prompt":"a","logit_bias":{"2048":1}}           | logit_bias.2048      | logit_bias.2048: token id 2048 is not in the vocabulary, must be between 0 and 2047
            {"prompt":"a","stop_token_ids":[1,"2"]}          | stop_token_ids[1]    | stop_token_ids[1]: must be a token id, is "2"
            {"prompt":"a","suffix":"b"}                      | suffix               | suffix: is not supported by this server, is "b"
            {"prompt":"a","guided_regex":"("}                | guided_regex         | guided_regex: at character 1: the group is not closed
            {"prompt":"a","kv_transfer_params":[]}           | kv_transfer_params   | kv_transfer_params: must be an object, is []
            {"prompt":"a","cache_salt":""}                   | cache_salt           | cache_salt: is empty, must be a non-empty string
            {"prompt":"a","cache_salt":"\\ud800"}             | cache_salt           | cache_salt: has half of a surrogate pair, must be valid Unicode
            {"prompt":"a","model":5}                         | model                | model: must be a string, is 5
            {"prompt":"a","prompt_logprobs":1,"stream":true} | prompt_logprobs      | prompt_logprobs: is not available when stream is true
            {"prompt":"a","request_id":"a b"}                | request_id           | request_id: must be 1 to 256 of A-Z a-z 0-9 . _ : - / [ ] @ + = ~, has 3 characters: 'a b'
            {"prompt":[]}                                    | prompt               | prompt: must be a string, an array of strings, an array of token ids or an array of such arrays, is []
            {"prompt":[5,"a"]}                               | prompt[1]            | prompt[1]: must be a token id, is "a"
            {"prompt":["a",5]}                               | prompt[1]            | prompt[1]: must be a string, is 5
            {"prompt":[[5],[6,2048]]}                        | prompt[1][1]         | prompt[1][1]: token id 2048 is not in the vocabulary, must be between 0 and 2047
            {"prompt":[[5],[]]}                              | prompt[1]            | prompt[1]: is empty, must be at least one token
            {"prompt":"","add_special_tokens":false}         | prompt               | prompt: is empty, must be at least one token
            {}                                               | prompt               | prompt: is missing, must be a string, an array of strings, an array of token ids or an array of such arrays
            """)
    void aBadFieldIsNamedWithWhatWasFound(String body, String param, String message) throws Exception {
        HttpResponse<String> response = fixture.post("/v1/completions", body);
        JsonNode error = ServerFixture.json(response).get("error");
        assertThat(error.get("message").asString()).isEqualTo(message);
        assertThat(error.get("param").asString()).isEqualTo(param);
        assertThat(error.get("type").asString()).isEqualTo("BadRequestError");
        assertThat(error.get("code").asInt()).isEqualTo(400);
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(fixture.engine.submittedCount()).isZero();
    }

    @Test
    void malformedJsonIsReportedWithItsPosition() throws Exception {
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":\n  oops}")))
                .startsWith("request body is not valid JSON at line 2, column ");
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":\"a\"")))
                .startsWith("request body is not valid JSON at line 1, column 14: ");
        assertThat(message(400, fixture.post("/v1/completions", "[1]")))
                .isEqualTo("request body must be a JSON object, is [1]");
        assertThat(message(400, fixture.post("/v1/completions", ""))).contains("empty");
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":\"a\"} x")))
                .startsWith("request body is not valid JSON at line 1");
    }

    @Test
    void aKeyThatAnObjectHasTwiceIsRefused() throws Exception {
        for (String path : List.of("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")) {
            for (String body : List.of("{\"a\":1,\"a\":1}", "{\"x\":[{\"b\":1,\"c\":2,\"a\":3,\"\\u0061\":4}]}")) {
                assertThat(message(400, fixture.post(path, body)))
                        .startsWith("request body is not valid JSON at line 1")
                        .endsWith(": Duplicate Object property \"a\"");
            }
        }
    }

    @Test
    void deeplyNestedJsonIsRefused() throws Exception {
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":" + "[".repeat(40_000))))
                .contains("nesting depth (129) exceeds the maximum allowed (128");
    }

    @Test
    void aPromptOverTheLengthLimitIsReportedWithBothNumbers() throws Exception {
        String tokens = "5,".repeat(2047) + "5";
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":[" + tokens + "]}")))
                .isEqualTo(
                        "This model's maximum context length is 2048 tokens, output included, but the prompt has 2048;"
                                + " it must have at most 2047");
        assertThat(message(400, fixture.post("/v1/completions", "{\"prompt\":[5,6],\"max_tokens\":2047}")))
                .isEqualTo("max_tokens: is 2047, must be at most 2046: prompt and output together may have 2048 tokens"
                        + " and the prompt has 2");
    }

    @Test
    void anUnknownModelNamesTheServedOnes() throws Exception {
        HttpResponse<String> response = fixture.post("/v1/completions", "{\"model\":\"gpt-9\",\"prompt\":\"a\"}");
        assertThat(message(404, response)).isEqualTo("model 'gpt-9' does not exist; this server has 'tiny-ledger'");
        assertThat(ServerFixture.json(response).at("/error/type").asString()).isEqualTo("NotFoundError");
        assertThat(message(404, fixture.get("/v1/models/gpt-9"))).contains("'tiny-ledger'");
    }

    @Test
    void unknownPathsAndMethods() throws Exception {
        assertThat(message(404, fixture.get("/v2/nothing"))).isEqualTo("no such path: /v2/nothing");
        HttpResponse<String> response = fixture.get("/v1/completions");
        assertThat(message(405, response)).isEqualTo("/v1/completions does not take GET; it takes POST");
        assertThat(response.headers().firstValue("Allow")).contains("POST");
    }

    @Test
    void aContentTypeOtherThanJsonIsRefused() throws Exception {
        HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/x-www-form-urlencoded")
                .POST(HttpRequest.BodyPublishers.ofString("{\"prompt\":\"a\"}")));
        assertThat(message(415, response)).contains("application/x-www-form-urlencoded", "application/json");
    }

    @Test
    void aBodyOverTheSizeLimitIsRefusedWithAndWithoutContentLength() throws Exception {
        String large = "{\"prompt\":\"" + "a".repeat(200_000) + "\"}";
        assertThat(message(413, fixture.post("/v1/completions", large)))
                .startsWith("a request body may have 100000 bytes, this one has 2000");
        HttpResponse<String> chunked = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofInputStream(
                        () -> new ByteArrayInputStream(large.getBytes(java.nio.charset.StandardCharsets.UTF_8)))));
        assertThat(message(413, chunked)).isEqualTo("a request body may have 100000 bytes, this one has more");
        // The connection and the server can still be used.
        fixture.engine.answers("x");
        assertThat(fixture.post("/v1/completions", "{\"prompt\":\"a\"}").statusCode())
                .isEqualTo(200);
    }

    @Test
    void anIncompleteBodyEndsAtItsDeadline() throws Exception {
        try (ServerFixture impatient = new ServerFixture(config -> config.bodyTimeout(Duration.ofMillis(100)));
                RawClient client = impatient.raw()) {
            client.send(
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"pro");
            assertThat(client.head()).startsWith("HTTP/1.1 408 ");
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "zz\r\n{\"prompt\":",
                "-5\r\n",
                "\r\n\r\n",
                "5;x\r\n{\"proOOPS\r\n",
                "fffffffffffffffff\r\n",
            })
    void malformedChunksAreRefusedAndTheConnectionCloses(String body) throws Exception {
        for (String sent : List.of("", "9\r\n{\"prompt\"\r\n")) {
            try (RawClient client = fixture.raw()) {
                client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        + "Transfer-Encoding: chunked\r\n\r\n" + sent + body);
                String head = client.head();
                assertThat(head).startsWith("HTTP/1.1 400 ");
                client.skip(Integer.parseInt(head.replaceAll("(?is).*content-length: (\\d+).*", "$1")));
                assertThat(client.closed()).isTrue();
            }
            assertThat(fixture.server.preparingBytes()).isZero();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "UTF-32LE", "UTF-32BE", "ISO-8859-1"})
    void aBodyInAnotherEncodingIsRefused(String encoding) throws Exception {
        // Some of these are UTF-8 too, with zeros.
        String body = "{\"prompt\":\"" + (encoding.startsWith("UTF") ? "a" : "é") + "\"}";
        HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofByteArray(body.getBytes(Charset.forName(encoding)))));
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(response.body()).contains("request body must be UTF-8, is not");
    }

    @ParameterizedTest
    @ValueSource(strings = {"gzip", "gzip, chunked", "chunked\r\nTransfer-Encoding: gzip", "xchunked"})
    void anUnknownTransferEncodingIsRefusedAndTheConnectionCloses(String encoding) throws Exception {
        try (RawClient client = fixture.raw()) {
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + encoding
                    + "\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            String head = client.head();
            assertThat(head).startsWith("HTTP/1.1 501 ");
            client.skip(Integer.parseInt(head.replaceAll("(?is).*content-length: (\\d+).*", "$1")));
            // Bytes that may belong to the body are not read as a request.
            assertThat(client.closed()).isTrue();
        }
    }

    @Test
    void aMalformedRequestIdIsRefused() throws Exception {
        for (String id : new String[] {"a b", "x".repeat(257), "é"}) {
            try (RawClient client = fixture.raw()) {
                client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + id + "\r\n\r\n");
                assertThat(client.head()).startsWith("HTTP/1.1 400 ");
            }
        }
    }

    @Test
    void apiKeyIsRequiredForEndpointsThatCompute() throws Exception {
        try (ServerFixture locked = new ServerFixture(config -> config.apiKey("s3cret"))) {
            locked.engine.answers("x");
            assertThat(message(401, locked.get("/v1/models"))).startsWith("no API key");
            assertThat(message(401, locked.post("/v1/completions", "{\"prompt\":\"a\"}")))
                    .startsWith("no API key");
            for (String path : List.of("/tokenize", "/detokenize", "/reset_prefix_cache")) {
                assertThat(message(401, locked.post(path, "{}"))).startsWith("no API key");
            }
            assertThat(message(401, locked.get("/kv_transfer_params"))).startsWith("no API key");
            assertThat(message(
                            401,
                            locked.send(HttpRequest.newBuilder(locked.uri("/v1/models"))
                                    .header("Authorization", "Bearer wrong"))))
                    .isEqualTo("the API key is not the right one");
            assertThat(locked.send(HttpRequest.newBuilder(locked.uri("/v1/models"))
                                    .header("Authorization", "Bearer s3cret"))
                            .statusCode())
                    .isEqualTo(200);
            assertThat(locked.get("/health").statusCode()).isEqualTo(200);
            assertThat(locked.get("/metrics").statusCode()).isEqualTo(200);
        }
    }

    @Test
    void aFullEngineIsA503WithRetryAfter() throws Exception {
        fixture.engine.refuses(new EngineUnavailableException("4096 requests wait already"));
        HttpResponse<String> response = fixture.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
        assertThat(message(503, response)).isEqualTo("4096 requests wait already");
        assertThat(response.headers().firstValue("Retry-After")).contains("1");
    }

    @Test
    void anExceptionInTheEngineIsA500AndTheServerGoesOn() throws Exception {
        fixture.engine.refuses(new IllegalStateException("surprise"));
        assertThat(message(500, fixture.post("/v1/completions", "{\"prompt\":\"a\"}")))
                .contains("surprise");
        assertThat(fixture.get("/health").statusCode()).isEqualTo(200);
    }

    @Test
    void anInvalidEngineEventEndsItsRequest() throws Exception {
        fixture.engine.script(session -> session.output(5, "x"));
        assertThat(message(500, fixture.post("/v1/completions", "{\"prompt\":\"a\"}")))
                .startsWith("internal error: ");
        assertThat(fixture.engine.nextAborted()).startsWith("cmpl-");
        fixture.engine.script(session -> {
            session.output(0, "x");
            session.output(5, "x");
        });
        HttpResponse<String> stream = fixture.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
        assertThat(StreamingTest.events(stream)).hasSize(2).last().asString().startsWith("{\"error\":");
    }

    @Test
    void aRefusedPromptAbortsTheOtherPromptsOfItsRequest() throws Exception {
        fixture.engine.refusesAfter(1, new EngineUnavailableException("full"));
        assertThat(message(503, fixture.post("/v1/completions", "{\"prompt\":[[5],[6],[7]]}")))
                .isEqualTo("full");
        assertThat(fixture.engine.nextAborted())
                .isEqualTo(fixture.engine.nextSubmitted().request.id());
    }

    @Test
    void anUnpairedSurrogateIsHarmless() throws Exception {
        fixture.engine.answers("x");
        assertThat(fixture.post("/v1/completions", "{\"prompt\":\"a\\ud800b\"}").statusCode())
                .isEqualTo(200);
    }

    private static String message(int status, HttpResponse<String> response) {
        assertThat(response.statusCode()).as(response.body()).isEqualTo(status);
        JsonNode error = ServerFixture.json(response).get("error");
        assertThat(error.get("code").asInt()).isEqualTo(status);
        return error.get("message").asString();
    }
}
