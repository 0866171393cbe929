package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.ConnectorCall;
import baton.engine.FinishReason;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvEventsConfig;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.InstantSource;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

class EndpointsTest {
    @AutoClose
    private final ServerFixture fixture =
            new ServerFixture(config -> config.servedModelNames(List.of("tiny-ledger", "org/other name")));

    @Test
    void models() throws Exception {
        JsonNode json = ServerFixture.json(fixture.get("/v1/models"));
        assertThat(json.get("object").asString()).isEqualTo("list");
        assertThat(json.at("/data/0/id").asString()).isEqualTo("tiny-ledger");
        assertThat(json.at("/data/0/object").asString()).isEqualTo("model");
        assertThat(json.at("/data/0/max_model_len").asInt()).isEqualTo(2048);
        assertThat(json.at("/data/1/id").asString()).isEqualTo("org/other name");
        assertThat(ServerFixture.json(fixture.get("/v1/models/org/other%20name")))
                .isEqualTo(json.at("/data/1"));
        assertThat(ServerFixture.json(fixture.get("/v1/models/org%2Fother%20name")))
                .isEqualTo(json.at("/data/1"));
    }

    @Test
    void anEngineThatWaitsForItsConnectorIsNotHealthyUntilTheCallReturns() throws Exception {
        fixture.engine.waitsFor(Optional.of(new ConnectorCall("startLoad", Thread.currentThread(), 12.4)));
        HttpResponse<String> waits = fixture.get("/health");
        assertThat(waits.statusCode()).isEqualTo(503);
        assertThat(waits.body()).contains("its startLoad has not returned for 12 s");
        assertThat(fixture.get("/metrics").body()).containsPattern("baton:kv_connector_blocking_seconds\\{.*} 12.4");
        fixture.engine.waitsFor(Optional.empty());
        assertThat(fixture.get("/health").statusCode()).isEqualTo(200);
        assertThat(fixture.get("/metrics").body()).containsPattern("baton:kv_connector_blocking_seconds\\{.*} 0.0");
    }

    @Test
    void healthFollowsTheEngine() throws Exception {
        for (String path : List.of("/health", "/ping")) {
            HttpResponse<String> well = fixture.get(path);
            assertThat(well.statusCode()).isEqualTo(200);
            assertThat(well.body()).isEmpty();
        }
        fixture.engine.fails("out of memory");
        HttpResponse<String> ill = fixture.get("/health");
        assertThat(ill.statusCode()).isEqualTo(503);
        assertThat(ServerFixture.json(ill).at("/error/message").asString())
                .isEqualTo("the engine has failed: out of memory");
    }

    @Test
    void version() throws Exception {
        assertThat(fixture.get("/version").body()).isEqualTo("{\"version\":\"1.2.3\"}");
    }

    @Test
    void itNeverSleeps() throws Exception {
        assertThat(fixture.get("/is_sleeping").body()).isEqualTo("{\"is_sleeping\":false}");
    }

    @Test
    void kvTransferParamsEndpointNamesTheConnector() throws Exception {
        assertThat(fixture.get("/kv_transfer_params").body())
                .isEqualTo("{\"kv_transfer_params\":null,\"kv_connector\":null}");
        fixture.engine.tellsAhead(JsonFields.parse("kv_transfer_params", "{\"remote_port\":5600,\"tp_size\":2}"));
        HttpResponse<String> told = fixture.get("/kv_transfer_params");
        assertThat(told.headers().firstValue("Content-Type")).contains("application/json");
        assertThat(told.body())
                .isEqualTo("{\"kv_transfer_params\":{\"remote_port\":5600,\"tp_size\":2},\"kv_connector\":null}");
        assertThat(fixture.post("/kv_transfer_params", "{}").statusCode()).isEqualTo(405);
    }

    @Test
    void theRoleIsSetAndItsWorkIsCounted() throws Exception {
        fixture.engine.answers("a", "b", "c");
        fixture.post("/v1/completions", "{\"prompt\": [1, 2, 3, 4], \"max_tokens\": 1}");
        JsonNode both = ServerFixture.json(fixture.get("/v1/pd_role"));
        assertThat(both.get("role").asString()).isEqualTo("both");
        assertThat(both.get("prefill").toString()).isEqualTo("{\"requests\":1,\"tokens\":4}");
        assertThat(both.get("decode").toString()).isEqualTo("{\"requests\":0,\"tokens\":0}");

        assertThat(fixture.post("/v1/pd_role", "{\"role\": \"decode\"}").statusCode())
                .isEqualTo(200);
        fixture.post("/v1/completions", "{\"prompt\": [1, 2, 3, 4], \"max_tokens\": 9}");
        JsonNode decode = ServerFixture.json(fixture.get("/v1/pd_role"));
        assertThat(decode.get("role").asString()).isEqualTo("decode");
        assertThat(decode.get("epoch").asInt()).isEqualTo(1);
        assertThat(decode.get("since").asDouble())
                .isGreaterThanOrEqualTo(both.get("since").asDouble());
        assertThat(decode.get("prefill").toString()).isEqualTo("{\"requests\":0,\"tokens\":0}");
        assertThat(decode.get("decode").toString()).isEqualTo("{\"requests\":1,\"tokens\":3}");

        HttpResponse<String> unknown = fixture.post("/v1/pd_role", "{\"role\": \"cook\"}");
        assertThat(unknown.statusCode()).isEqualTo(400);
        assertThat(unknown.body()).contains("unsupported value 'cook'; allowed: prefill, decode, both");
    }

    /** The prefill leg of a split prompt: whole blocks of the share. */
    @ParameterizedTest
    @CsvSource({"0.5, 16", "0.500000, 16", "0.99, 32", "0.1, 40"})
    void aShareOfThePromptIsComputed(String share, int tokens) throws Exception {
        fixture.engine.answers("a");
        String prompt = "[" + "7,".repeat(39) + "7]";
        JsonNode answer = ServerFixture.json(
                withShare(share, "{\"prompt\": " + prompt + ", \"max_tokens\": 1, \"return_token_ids\": true}"));
        assertThat(fixture.engine.nextSubmitted().request.prompt()).hasSize(tokens);
        assertThat(answer.at("/choices/0/prompt_token_ids")).hasSize(40);
        assertThat(answer.at("/usage/prompt_tokens").asInt()).isEqualTo(40);
    }

    @ParameterizedTest
    @CsvSource({"0, 1", "1, 1", "1.5, 1", "-0.5, 1", "half, 1", "0.5, 2"})
    void otherSharesAreRefused(String share, int maxTokens) throws Exception {
        HttpResponse<String> refused = withShare(share, "{\"prompt\": [7], \"max_tokens\": " + maxTokens + "}");
        assertThat(refused.statusCode()).isEqualTo(400);
        assertThat(refused.body()).contains("X-Baton-Prompt-Share", share, "a number over 0 and under 1");
    }

    private HttpResponse<String> withShare(String share, String body) throws Exception {
        return fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/json")
                .header("X-Baton-Prompt-Share", share)
                .POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    @Test
    void hotPrefixesAreSentToThisHost() throws Exception {
        fixture.engine.answers("a");
        String prompt = "[" + "7,".repeat(39) + "7]";
        fixture.post("/v1/completions", "{\"prompt\": " + prompt + ", \"max_tokens\": 1, \"cache_salt\": \"s\"}");
        assertThat(fixture.get("/v1/hot_prefixes?tokens=100").body())
                .isEqualTo(
                        "{\"prefixes\":[{\"token_ids\":[" + "7,".repeat(31) + "7],\"cache_salt\":\"s\",\"uses\":1}]}");
        assertThat(fixture.get("/v1/hot_prefixes?tokens=0").body()).contains("must be 1 to 9999999");
        assertThat(HotPrefixes.isOfThisHost("127.0.0.1", "localhost")).isTrue();
        assertThat(HotPrefixes.isOfThisHost("127.0.0.1", "a.example")).isFalse();
        assertThat(HotPrefixes.isOfThisHost("10.0.0.7", "127.0.0.1")).isFalse();
    }

    @Test
    void aRoleThatTheConnectorDoesNotAllowIsRefused() {
        PdRole role = new PdRole(
                KvTransferConfig.builder("NixlConnector", KvRole.CONSUMER).build(), InstantSource.system());
        assertThat(role.answer(new Json(), Set.of()).toString()).contains("\"role\":\"decode\"");
        assertThatThrownBy(() -> role.change(JsonFields.parse("", "{\"role\": \"prefill\"}")))
                .isInstanceOf(ApiException.class)
                .hasMessageContaining("only lets this instance take KV caches; kv_both allows every role");
    }

    @Test
    void kvEventSourcesEndpointNamesWhereEventsArePublished() throws Exception {
        assertThat(fixture.get("/kv_event_sources").body()).isEqualTo("{}");
        KvEventsConfig source = KvEventsConfig.fromJson(JsonFields.parse(
                "", "{\"enable_kv_cache_events\":true,\"endpoint\":\"tcp://127.0.0.1:41234\",\"topic\":\"kv\"}"));
        PrometheusMetrics metrics = new PrometheusMetrics("m");
        metrics.addCounter("baton:kv_event_batches_published", "Batches", () -> 7);
        metrics.addGauge("baton:kv_event_subscribers", "Subscribers", () -> 2);
        ServerConfig config = ServerConfig.of("m")
                .port(0)
                .apiKey("key")
                .kvEventSources(Map.of(0, source))
                .build();
        try (ApiServer server = ApiServer.start(config, fixture.engine, metrics)) {
            URI uri = URI.create("http://127.0.0.1:" + server.port() + "/kv_event_sources");
            HttpRequest.Builder request = HttpRequest.newBuilder(uri);
            assertThat(fixture.client
                            .send(request.build(), HttpResponse.BodyHandlers.ofString())
                            .statusCode())
                    .isEqualTo(401);
            request.header("Authorization", "Bearer key");
            assertThat(fixture.client
                            .send(request.build(), HttpResponse.BodyHandlers.ofString())
                            .body())
                    .isEqualTo("{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\","
                            + "\"endpoint\":\"tcp://127.0.0.1:41234\",\"replay_endpoint\":null,\"buffer_steps\":10000,"
                            + "\"hwm\":100000,\"max_queue_size\":100000,\"topic\":\"kv\"}}");
            request = HttpRequest.newBuilder(uri.resolve("/metrics"));
            assertThat(fixture.client
                            .send(request.build(), HttpResponse.BodyHandlers.ofString())
                            .body())
                    .contains("baton:kv_event_batches_published_total{engine=\"0\",model_name=\"m\"} 7.0\n")
                    .contains("baton:kv_event_subscribers{engine=\"0\",model_name=\"m\"} 2.0\n");
        }
    }

    @Test
    void tokenizeAndDetokenizeAreInverse() throws Exception {
        int[] ids = fixture.engine.tokenizer().encode("Item 7: é", true);
        JsonNode json =
                ServerFixture.json(fixture.post("/tokenize", "{\"prompt\":\"Item 7: é\",\"return_token_strs\":true}"));
        assertThat(json.get("count").asInt()).isEqualTo(ids.length);
        assertThat(json.get("max_model_len").asInt()).isEqualTo(2048);
        assertThat(json.get("tokens")).isEqualTo(ServerFixture.MAPPER.valueToTree(ids));
        assertThat(json.get("token_strs").size()).isEqualTo(ids.length);
        assertThat(json.at("/token_strs/0").asString())
                .isEqualTo(fixture.engine.tokenizer().token(ids[0]));

        JsonNode plain = ServerFixture.json(
                fixture.post("/tokenize", "{\"prompt\":\"Item 7: é\",\"add_special_tokens\":false}"));
        assertThat(plain.get("token_strs").isNull()).isTrue();
        HttpResponse<String> text = fixture.post("/detokenize", "{\"tokens\":" + plain.get("tokens") + "}");
        assertThat(text.body()).isEqualTo("{\"prompt\":\"Item 7: é\"}");

        assertThat(fixture.post("/tokenize", "{}").body()).contains("one of prompt and messages must be given");
        assertThat(fixture.post("/detokenize", "{\"tokens\":[\"x\"]}").body())
                .contains("tokens[0]: must be a token id");
    }

    @Test
    void prefixCacheIsReset() throws Exception {
        assertThat(fixture.post("/reset_prefix_cache", "").statusCode()).isEqualTo(200);
        fixture.engine.resets(false);
        assertThat(fixture.post("/reset_prefix_cache", "").statusCode()).isEqualTo(409);
    }

    @Test
    void metricsHaveCurrentGauges() throws Exception {
        HttpResponse<String> response = fixture.get("/metrics");
        assertThat(response.headers().firstValue("Content-Type")).contains("text/plain; version=0.0.4; charset=utf-8");
        assertThat(response.body())
                .contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny-ledger\"} 2.0\n")
                .contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny-ledger\"} 0.25\n");
    }

    @Test
    void aPortInUseIsAClearError() {
        ServerConfig config = ServerConfig.of("m")
                .host("127.0.0.1")
                .port(fixture.server.port())
                .build();
        assertThatThrownBy(() -> ApiServer.start(config, fixture.engine, new PrometheusMetrics("m")))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("port: cannot listen on 127.0.0.1:" + fixture.server.port());
    }

    @Test
    void loadCountsRunningRequests() throws Exception {
        assertThat(fixture.get("/load").body()).isEqualTo("{\"server_load\":0}");
        var answer = fixture.client.sendAsync(
                HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString("{\"prompt\":\"a\"}"))
                        .build(),
                HttpResponse.BodyHandlers.ofString());
        FakeEngine.Session session = fixture.engine.nextSubmitted();
        assertThat(fixture.get("/load").body()).isEqualTo("{\"server_load\":1}");
        session.finish(0, FinishReason.STOP);
        assertThat(answer.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS).statusCode())
                .isEqualTo(200);
        assertThat(fixture.get("/load").body()).isEqualTo("{\"server_load\":0}");
    }
}
