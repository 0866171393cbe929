package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.router.body.BodyMemory;
import baton.testkit.Await;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

@Timeout(300)
class RouterTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String PREFILLED = "{\"id\":\"p\",\"choices\":[{\"text\":\"x\"}]}";
    private static final String BODY = "{\"prompt\":\"hello\",\"max_tokens\":9}";
    private static final String RUNNING = "baton:router_requests_running";
    private static final String DISCONNECTS = "baton:router_client_disconnects_total";

    /** Probes so rarely that health changes by failed requests only. */
    private static final RouterConfig.Limits NO_PROBES = RouterFixture.LIMITS.withProbeInterval(Duration.ofHours(1));

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    @BeforeEach
    void behave() {
        prefill.behaviour = FakeInstance.json(200, PREFILLED);
    }

    private Router router() {
        return router(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(decode.uri()));
    }

    private Router router(RouterConfig.Limits limits) {
        return router(limits, List.of(prefill.uri()), List.of(decode.uri()));
    }

    private Router router(RouterConfig.Limits limits, List<URI> prefills, List<URI> decodes) {
        return fixture.start(config(limits, prefills, decodes, RouterConfig.DEFAULT_FLOW));
    }

    private static RouterConfig config(RouterConfig.Limits limits, List<URI> prefills, List<URI> decodes, String flow) {
        return TestConfigs.router("127.0.0.1", 0, prefills, decodes, flow, Optional.empty(), limits);
    }

    private static JsonNode error(HttpResponse<String> response) {
        JsonNode error = MAPPER.readTree(response.body()).path("error");
        assertThat(error.propertyNames()).containsExactlyInAnyOrder("message", "type", "param", "code");
        assertThat(error.path("code").asInt()).isEqualTo(response.statusCode());
        return error;
    }

    @Test
    void prefillComesFirstAndDecodeGetsTheClientsBytes() throws Exception {
        String body =
                "{ \"prompt\" : \"h\\u00e9llo\",\n\t\"max_tokens\": 64, \"stream\": false, \"seed\": 123456789012345678901234567890,"
                        + " \"temperature\": 0.10, \"unknown\": {\"a\":[1, 2]} , \"n\":3 }";
        Router router = router();

        HttpResponse<String> response = fixture.postTo(
                router,
                "/v1/completions?x=1",
                body,
                "Authorization",
                "Bearer mine",
                "X-Request-Id",
                "req-7",
                "X-Data-Parallel-Rank",
                "2",
                "TE",
                "trailers");

        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(response.headers().firstValue("content-type")).contains("application/json");
        assertThat(response.headers().firstValue("X-Baton-Prefill"))
                .contains(prefill.uri().toString());
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(response.headers().firstValue("X-Request-Id")).contains("req-7");

        FakeInstance.Received first = prefill.only();
        FakeInstance.Received second = decode.only();
        assertThat(second.body()).isEqualTo(body);
        assertThat(first.body())
                .isEqualTo(
                        "{\"prompt\" : \"h\\u00e9llo\",\"max_tokens\": 1,\"stream\": false,"
                                + "\"seed\": 123456789012345678901234567890,\"temperature\": 0.10,\"unknown\": {\"a\":[1, 2]},\"n\":1,\"return_token_ids\":true}");
        assertThat(first.nanos()).isLessThan(second.nanos());
        for (FakeInstance.Received leg : List.of(first, second)) {
            assertThat(leg.method()).isEqualTo("POST");
            assertThat(leg.uri()).isEqualTo("/v1/completions?x=1");
            assertThat(leg.headers().getAll("X-Request-Id")).containsExactly("req-7");
            assertThat(leg.headers().get("Authorization")).isEqualTo("Bearer mine");
            assertThat(leg.headers().get("X-Data-Parallel-Rank")).isEqualTo("2");
            assertThat(leg.headers().get("Content-Type")).isEqualTo("application/json");
            assertThat(leg.headers().contains("TE")).isFalse();
        }
    }

    @Test
    void decodeWaitsForTheWholePrefillAnswer() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        prefill.behaviour = (request, response) -> {
            response.setChunked(true).write("{\"id\":");
            open.complete(response);
        };
        Router router = router();
        CompletableFuture<HttpResponse<String>> answer = fixture.postAndGoOn(router, BODY);

        HttpServerResponse response = RouterFixture.result(open);
        long before = System.nanoTime();
        response.end("1}");
        assertThat(RouterFixture.result(answer).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(decode.only().nanos()).isGreaterThan(before);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "bad id", "a;b", "x/../y"})
    void anUnsafeRequestIdIsReplacedByTheSameOneOnBothLegs(String id) throws Exception {
        Router router = router();
        String[] headers = id.isEmpty() ? new String[0] : new String[] {"X-Request-Id", id};
        fixture.postTo(router, "/v1/chat/completions", BODY, headers);

        String made = prefill.only().headers().get("X-Request-Id");
        assertThat(UUID.fromString(made)).hasToString(made);
        assertThat(decode.only().headers().get("X-Request-Id")).isEqualTo(made);
    }

    @Test
    void aRequestIdThatCarriesAddressesIsReplaced() throws Exception {
        String id = "___prefill_addr_[2001:db8::1]:21001___decode_addr_10.0.1.3:22001_0123456789abcdef0123456789abcdef";
        fixture.post(router(), BODY, "X-Request-Id", id);

        String made = prefill.only().headers().get("X-Request-Id");
        assertThat(UUID.fromString(made)).hasToString(made);
        assertThat(decode.only().headers().get("X-Request-Id")).isEqualTo(made);
    }

    @Test
    void theRoutersApiKeyStandsInForAnAbsentAuthorization() throws Exception {
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.of("secret"),
                RouterFixture.LIMITS));
        fixture.post(router, BODY);
        assertThat(prefill.only().headers().get("Authorization")).isEqualTo("Bearer secret");
        assertThat(decode.only().headers().get("Authorization")).isEqualTo("Bearer secret");
    }

    @Test
    void instancesTakeTurnsByRole() throws Exception {
        FakeInstance secondDecode = fixture.instance();
        FakeInstance thirdDecode = fixture.instance();
        Router router = router(
                RouterFixture.LIMITS,
                List.of(prefill.uri()),
                List.of(decode.uri(), secondDecode.uri(), thirdDecode.uri()));
        for (int i = 0; i < 6; i++) {
            fixture.post(router, BODY);
        }
        assertThat(prefill.received).hasSize(6);
        assertThat(decode.received).hasSize(2);
        assertThat(secondDecode.received).hasSize(2);
        assertThat(thirdDecode.received).hasSize(2);
    }

    @Test
    void statusAndHeadersOfDecodeReachTheClient() throws Exception {
        decode.behaviour = (request, response) -> response.setStatusCode(429)
                .putHeader("Content-Type", "application/problem+json")
                .putHeader("Retry-After", "3")
                .putHeader("X-Hop", "hidden")
                .putHeader("Connection", "X-Hop")
                .end("{}");
        HttpResponse<String> response = fixture.post(router(), BODY);
        assertThat(response.statusCode()).isEqualTo(429);
        assertThat(response.headers().firstValue("Content-Type")).contains("application/problem+json");
        assertThat(response.headers().firstValue("Retry-After")).contains("3");
        assertThat(response.headers().firstValue("X-Hop")).isEmpty();
        assertThat(response.body()).isEqualTo("{}");
    }

    @Test
    void kvTransferParamsGoFromPrefillToDecodeUnchanged() throws Exception {
        String params = "{\"remote_block_ids\" : [[ 1,2 ]],\"remote_engine_id\":\"e\\u00e9\","
                + "\"big\":98765432109876543210987654321,\"x\":1.50,\"new\":{\"deep\":[null]}}";
        prefill.behaviour = FakeInstance.json(200, "{\"id\":1, \"kv_transfer_params\" : " + params + " , \"z\":0}");
        Router router = fixture.start(
                config(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(decode.uri()), "kv_transfer_params"));

        fixture.post(router, "{\"prompt\":[1,2,3], \"stream\":true, \"stream_options\":{\"include_usage\":true}}");

        assertThat(prefill.only().body())
                .isEqualTo(
                        "{\"prompt\":[1,2,3],\"stream\":false,\"max_tokens\":1,"
                                + "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                                + "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}}");
        assertThat(decode.only().body())
                .isEqualTo("{\"prompt\":[1,2,3],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                        + "\"kv_transfer_params\":" + params + "}");
        assertThat(fixture.metric(router, "baton:router_handoffs_total{params=\"carried\"}"))
                .isEqualTo(1);
    }

    @Test
    void aPrefillAnswerWithoutKvTransferParamsIsCounted() throws Exception {
        Router router = fixture.start(
                config(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(decode.uri()), "kv_transfer_params"));
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":null}");
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(decode.only().body()).isEqualTo(BODY);
        assertThat(fixture.metric(router, "baton:router_handoffs_total{params=\"none\"}"))
                .isEqualTo(1);
    }

    @Test
    void severalPromptsShareOneHandOffThatIsByContent() throws Exception {
        String two = "{\"prompt\":[\"a\",\"b\"]}";
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"first\":true}}");
        fixture.post(router(), two);
        assertThat(decode.only().body()).isEqualTo(two);
    }

    @Test
    void contentKeyedFlowPassesOnKvTransferParamsOfPrefill() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"a\":1}}");
        fixture.post(router(), "{\"prompt\":[[1,2]],\"kv_transfer_params\":null,\"x\":2}");
        assertThat(decode.only().body()).isEqualTo("{\"prompt\":[[1,2]],\"kv_transfer_params\":{\"a\":1},\"x\":2}");
    }

    @Test
    void sseEventsReachTheClientOneByOne() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(FakeInstance.events(response, "data: {\"i\":0}\n\n"));
        try (RawClient client = new RawClient(router().port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            String head = client.readUntil("data: {\"i\":0}\n\n");
            assertThat(head).startsWith("HTTP/1.1 200 OK\r\n").containsIgnoringCase("content-type: text/event-stream");
            HttpServerResponse response = RouterFixture.result(open);
            // The next event is only written once the one before has been read by the client.
            for (int i = 1; i < 20; i++) {
                String event = "data: {\"i\":" + i + "}\n\n";
                response.write(event.substring(0, 7));
                response.write(event.substring(7));
                assertThat(client.readUntil(event)).endsWith(event);
            }
            response.end("data: [DONE]\n\n");
            assertThat(client.readUntil("0\r\n\r\n")).contains("data: [DONE]\n\n");
        }
    }

    /** Each write costs the router more than the event in it. */
    @Test
    void sseEventsThatArriveTogetherAreOneChunk() throws Exception {
        decode.behaviour = (request, response) -> response.putHeader("Content-Type", "text/event-stream")
                .setChunked(true)
                .end("data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
        try (RawClient client = new RawClient(router().port())) {
            String answer = client.post(RouterFixture.COMPLETIONS, BODY).readUntil("0\r\n\r\n");
            assertThat(answer.replace("\r\n", "|")).endsWith("||20|data: 1\n\ndata: 2\n\ndata: [DONE]\n\n|0||");
        }
    }

    @Test
    void sseEventsThatArriveTogetherAreWrittenToTheClientAtOnce() throws Exception {
        decode.behaviour = (request, response) -> response.putHeader("Content-Type", "text/event-stream")
                .setChunked(true)
                .end("data: 1\n\n".repeat(16) + "data: [DONE]\n\n");
        try (RawClient client = new RawClient(router().port())) {
            for (int i = 0; i < 20; i++) {
                assertThat(client.post(RouterFixture.COMPLETIONS, BODY).readOnce())
                        .startsWith("HTTP/1.1 200")
                        .endsWith("data: [DONE]\n\n\r\n0\r\n\r\n");
            }
        }
    }

    @Test
    void fiveHundredSseStreamsAtOnceAllComplete() throws Exception {
        int streams = 500;
        int events = 20;
        CountDownLatch allOpen = new CountDownLatch(streams);
        List<HttpServerResponse> open = java.util.Collections.synchronizedList(new ArrayList<>());
        decode.behaviour = (request, response) -> {
            FakeInstance.events(response, "data: " + request.body() + "\n\n");
            open.add(response);
            allOpen.countDown();
        };
        Router router = router();
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int i = 0; i < streams; i++) {
            answers.add(fixture.postAndGoOn(router, "{\"prompt\":\"" + i + "\"}"));
        }
        assertThat(allOpen.await(RouterFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                .isTrue();
        for (HttpServerResponse response : open) {
            for (int i = 0; i < events; i++) {
                response.write("data: " + i + "\n\n");
            }
            response.end("data: [DONE]\n\n");
        }
        StringBuilder tail = new StringBuilder();
        for (int i = 0; i < events; i++) {
            tail.append("data: ").append(i).append("\n\n");
        }
        for (int i = 0; i < streams; i++) {
            assertThat(RouterFixture.result(answers.get(i)).body())
                    .isEqualTo("data: {\"prompt\":\"" + i + "\"}\n\n" + tail + "data: [DONE]\n\n");
        }
        assertThat(fixture.metric(router, "baton:router_requests_total{outcome=\"ok\"}"))
                .isEqualTo(500);
        assertThat(fixture.metric(router, RUNNING)).isZero();
    }

    @Test
    void backPressureOfASlowClientReachesTheInstance() throws Exception {
        long total = 256L << 20;
        Buffer chunk = Buffer.buffer(new byte[64 << 10]);
        AtomicLong written = new AtomicLong();
        AtomicBoolean full = new AtomicBoolean();
        decode.behaviour = (request, response) -> {
            response.putHeader("Content-Type", "application/octet-stream")
                    .putHeader("Content-Length", String.valueOf(total));
            writeAll(response, chunk, total, written, full);
        };
        try (RawClient client = new RawClient(router().port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            String head = client.readUntil("\r\n\r\n");
            assertThat(head).startsWith("HTTP/1.1 200");
            AtomicLong last = new AtomicLong(-1);
            AtomicLong stableSince = new AtomicLong();
            Await.until("the instance has to wait", RouterFixture.SOON, () -> {
                if (last.getAndSet(written.get()) != written.get()) {
                    stableSince.set(System.nanoTime());
                }
                return full.get() && System.nanoTime() - stableSince.get() > 300_000_000;
            });
            assertThat(written.get()).isLessThan(total / 4);
            assertThat(client.readUpTo(total)).isEqualTo(total);
            // Bytes are counted after they are written.
            Await.until("all is written", RouterFixture.SOON, () -> written.get() == total);
        }
    }

    private static void writeAll(
            HttpServerResponse response, Buffer chunk, long total, AtomicLong written, AtomicBoolean full) {
        while (written.get() < total) {
            response.write(chunk);
            written.addAndGet(chunk.length());
            if (response.writeQueueFull()) {
                full.set(true);
                response.drainHandler(drained -> {
                    full.set(false);
                    writeAll(response, chunk, total, written, full);
                });
                return;
            }
        }
        response.end();
    }

    @Test
    void aClientThatNeverReadsIsDisconnectedAtTheDeadline() throws Exception {
        Buffer chunk = Buffer.buffer(new byte[64 << 10]);
        AtomicLong written = new AtomicLong();
        decode.behaviour = (request, response) -> {
            response.setChunked(true);
            writeAll(response, chunk, Long.MAX_VALUE, written, new AtomicBoolean());
        };
        // As much as a busy machine needs for the first byte of an answer.
        Router router = router(RouterFixture.LIMITS.withIdle(Duration.ofSeconds(2)));
        try (RawClient client = new RawClient(router.port())) {
            client.post(RouterFixture.COMPLETIONS, BODY);
            Await.until("decode leg closed", RouterFixture.SOON, () -> decode.aborted.get() == 1);
            fixture.awaitMetric(router, DISCONNECTS, 1);
        }
    }

    @Test
    void aClientDisconnectDuringPrefillClosesTheLegAtOnce() throws Exception {
        prefill.behaviour = (request, response) -> {};
        Router router = router();
        RawClient client = new RawClient(router.port()).post(RouterFixture.COMPLETIONS, BODY);
        Await.until("prefill asked", RouterFixture.SOON, () -> prefill.received.size() == 1);
        client.close();
        Await.until("prefill leg closed", RouterFixture.SOON, () -> prefill.aborted.get() == 1);
        assertThat(decode.received).isEmpty();
        fixture.awaitMetric(router, DISCONNECTS, 1);
        fixture.awaitRest(router);
    }

    @Test
    void aClientDisconnectDuringDecodeClosesTheLegAtOnce() throws Exception {
        CompletableFuture<HttpServerResponse> silent = new CompletableFuture<>();
        decode.behaviour = (request, response) -> silent.complete(response);
        Router router = router();
        RawClient early = new RawClient(router.port()).post(RouterFixture.COMPLETIONS, BODY);
        RouterFixture.result(silent);
        early.close();
        Await.until("decode leg closed", RouterFixture.SOON, () -> decode.aborted.get() == 1);

        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        RawClient late = new RawClient(router.port()).post(RouterFixture.COMPLETIONS, BODY);
        late.readUntil("data: 1\n\n");
        late.close();
        Await.until("decode leg closed", RouterFixture.SOON, () -> decode.aborted.get() == 2);
        fixture.awaitMetric(router, DISCONNECTS, 2);
        assertThat(fixture.metric(router, "baton:router_requests_total{outcome=\"client_disconnected\"}"))
                .isEqualTo(2);
    }

    @Test
    void aClientDisconnectInsideItsBodyReleasesTheRequest() throws Exception {
        Router router = router();
        try (RawClient client = new RawClient(router.port())) {
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    + "Content-Length: 100\r\n\r\n{\"prompt\":");
            fixture.awaitMetric(router, RUNNING, 1);
        }
        fixture.awaitRest(router);
        assertThat(prefill.received).isEmpty();
    }

    @Test
    void aRefusedPrefillLegIsRetriedOnAnotherInstance() throws Exception {
        FakeInstance gone = fixture.instance();
        Router router = router(NO_PROBES, List.of(gone.uri(), prefill.uri()), List.of(decode.uri()));
        gone.stop();
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Prefill"))
                .contains(prefill.uri().toString());
        assertThat(fixture.metric(router, "baton:router_retries_total{role=\"prefill\"}"))
                .isEqualTo(1);
        assertThat(fixture.metric(router, "baton:router_instances_up{role=\"prefill\"}"))
                .isEqualTo(1);
        // The instance is marked down and not tried again.
        fixture.post(router, BODY);
        fixture.post(router, BODY);
        assertThat(fixture.metric(router, "baton:router_retries_total{role=\"prefill\"}"))
                .isEqualTo(1);
        gone.restart();
    }

    @Test
    void aRefusedPrefillLegWithoutAnInstanceForARetryIsAClearError() throws Exception {
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(decode.uri()));
        prefill.stop();
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(error(response).path("message").asString())
                .isEqualTo("prefill instance " + prefill.uri() + ": connection refused");
        HttpResponse<String> next = fixture.post(router, BODY);
        assertThat(next.statusCode()).isEqualTo(503);
        assertThat(error(next).path("message").asString())
                .isEqualTo("no healthy prefill instance: " + prefill.uri() + " (connection refused)");
        assertThat(decode.received).isEmpty();
        prefill.restart();
    }

    @Test
    void aPrefillLegThatAnswers500IsRetriedOnce() throws Exception {
        FakeInstance second = fixture.instance();
        FakeInstance third = fixture.instance();
        for (FakeInstance instance : List.of(prefill, second, third)) {
            instance.behaviour = FakeInstance.json(500, "{\"error\":{\"message\":\"out of blocks\"}}");
        }
        Router router =
                router(RouterFixture.LIMITS, List.of(prefill.uri(), second.uri(), third.uri()), List.of(decode.uri()));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(502);
        assertThat(error(response).path("message").asString())
                .matches("prefill instance http://127\\.0\\.0\\.1:\\d+: HTTP 500: out of blocks");
        assertThat(prefill.received.size() + second.received.size() + third.received.size())
                .isEqualTo(2);
        assertThat(decode.received).isEmpty();
    }

    @Test
    void aPrefillLegThatDropsTheConnectionOrAnswersMalformedJsonIsAClearError() throws Exception {
        Router router = router();
        prefill.behaviour = (request, response) -> response.reset();
        assertThat(error(fixture.post(router, BODY)).path("message").asString())
                .startsWith("prefill instance " + prefill.uri() + ": ")
                .containsIgnoringCase("closed");
        prefill.behaviour = (request, response) -> response.end("<html>");
        HttpResponse<String> nonsense = fixture.post(router, BODY);
        assertThat(nonsense.statusCode()).isEqualTo(502);
        assertThat(error(nonsense).path("message").asString()).contains("its answer: not valid JSON");
        assertThat(decode.received).isEmpty();
    }

    @Test
    void aPrefillLegIsClosedAtItsDeadline() throws Exception {
        prefill.behaviour = (request, response) -> {};
        Router router = router(RouterFixture.LIMITS.withPrefill(Duration.ofSeconds(1)));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(502);
        assertThat(error(response).path("message").asString())
                .isEqualTo("prefill instance " + prefill.uri() + ": no answer within 1s");
        Await.until("prefill leg closed", RouterFixture.SOON, () -> prefill.aborted.get() == 1);
    }

    @Test
    void a4xxOfPrefillIsTheClientsAnswer() throws Exception {
        FakeInstance second = fixture.instance();
        String refusal = "{\"error\":{\"message\":\"prompt too long\"}}";
        prefill.behaviour = FakeInstance.json(400, refusal);
        second.behaviour = FakeInstance.json(400, refusal);
        Router router = router(RouterFixture.LIMITS, List.of(prefill.uri(), second.uri()), List.of(decode.uri()));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(response.body()).isEqualTo(refusal);
        assertThat(response.headers().firstValue("Content-Type")).contains("application/json");
        assertThat(prefill.received.size() + second.received.size()).isEqualTo(1);
        assertThat(decode.received).isEmpty();
    }

    @Test
    void aDecodeRetryAfterARefusedConnectionNeedsNoSecondPrefill() throws Exception {
        FakeInstance gone = fixture.instance();
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(gone.uri(), decode.uri()));
        gone.stop();
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(prefill.received).hasSize(1);
        assertThat(fixture.metric(router, "baton:router_retries_total{role=\"decode\"}"))
                .isEqualTo(1);
        gone.restart();
    }

    @Test
    void aDecodeLegThatAnswers503IsRetriedOnAnotherInstance() throws Exception {
        FakeInstance stopping = fixture.instance();
        stopping.behaviour = FakeInstance.json(503, "{\"error\":{\"message\":\"the server is stopping\"}}");
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(stopping.uri(), decode.uri()));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(stopping.received).hasSize(1);
        assertThat(prefill.received).hasSize(1);

        // Without another instance the 503 is the client's answer.
        decode.behaviour = stopping.behaviour;
        response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(response.body()).contains("the server is stopping");
    }

    @Test
    void aDecodeLegThatBreaksBeforeItsFirstSseEventIsRetried() throws Exception {
        FakeInstance dying = fixture.instance();
        // Head and half an event: the client has received nothing.
        dying.behaviour = (request, response) ->
                FakeInstance.events(response, "data: {\"half").write("\":").onComplete(done -> response.reset());
        decode.behaviour = (request, response) ->
                FakeInstance.events(response, "data: 1\n\n").end("data: [DONE]\n\n");
        Router router = router(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(dying.uri(), decode.uri()));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.body()).isEqualTo("data: 1\n\ndata: [DONE]\n\n");
        assertThat(dying.received).hasSize(1);
        assertThat(prefill.received).hasSize(1);
    }

    /** A prefill instance gives the blocks that it names once: the leg that is gone may have read them. */
    @Test
    void aDecodeLegThatBreaksWithReferencesToBlocksIsRetriedWithAnotherPrefillLeg() throws Exception {
        FakeInstance dying = fixture.instance();
        dying.behaviour = (request, response) -> response.reset();
        prefill.behaviour = (request, response) -> FakeInstance.json(
                        200, "{\"id\":\"p\",\"kv_transfer_params\":{\"block\":" + prefill.received.size() + "}}")
                .accept(request, response);
        Router router = router(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(dying.uri(), decode.uri()));
        assertThat(fixture.post(router, BODY).body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(dying.only().body()).contains("\"block\":1");
        assertThat(decode.only().body()).contains("\"block\":2");
    }

    @Test
    void anSseStreamThatBreaksEndsWithAnErrorEvent() throws Exception {
        FakeInstance other = fixture.instance();
        for (FakeInstance instance : List.of(decode, other)) {
            instance.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n")
                    .write("data: {\"half")
                    .onComplete(done -> response.reset());
        }
        Router router = router(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(decode.uri(), other.uri()));
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.body())
                .startsWith("data: 1\n\ndata: {\"error\":{")
                .endsWith("}}\n\n")
                .doesNotContain("half", "[DONE]");
        String event = response.body().lines().toList().get(2).substring("data: ".length());
        assertThat(MAPPER.readTree(event).path("error").path("message").asString())
                .startsWith("decode instance http://127.0.0.1:");
        assertThat(decode.received.size() + other.received.size()).isEqualTo(1);
        assertThat(fixture.metric(router, "baton:router_requests_total{outcome=\"decode_broken\"}"))
                .isEqualTo(1);
    }

    /** An error event behind a part of an event would belong to it. */
    @Test
    void aStreamThatBreaksInALongEventEndsTheClientsConnection() throws Exception {
        decode.behaviour =
                (request, response) -> FakeInstance.events(response, "data: 1\n\n", "data: " + "x".repeat(3 << 20))
                        .write("x")
                        .onComplete(done -> response.reset());
        Router router = router();
        assertThatThrownBy(() -> fixture.post(router, BODY)).hasCauseInstanceOf(IOException.class);
    }

    @Test
    void aJsonAnswerThatBreaksAndDoesNotContinueEndsTheClientsConnection() throws Exception {
        decode.behaviour = (request, response) -> response.putHeader("Content-Type", "application/json")
                .putHeader("Content-Length", "1000")
                .write("{\"id\":")
                .onComplete(done -> response.reset());
        Router router = router(RouterFixture.LIMITS.withContinueAfter(Optional.empty()));
        assertThatThrownBy(() -> fixture.post(router, BODY)).hasCauseInstanceOf(IOException.class);
        assertThat(decode.received).hasSize(1);
    }

    @Test
    void aSilentDecodeLegIsClosedAtTheIdleDeadline() throws Exception {
        Router router = router(RouterFixture.LIMITS.withIdle(Duration.ofSeconds(1)));
        decode.behaviour = (request, response) -> {};
        HttpResponse<String> silent = fixture.post(router, BODY);
        assertThat(silent.statusCode()).isEqualTo(502);
        assertThat(error(silent).path("message").asString())
                .isEqualTo("decode instance " + decode.uri() + ": no answer within 1s");

        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        assertThat(fixture.post(router, BODY).body()).contains("no bytes for 1s");
        Await.until("decode legs closed", RouterFixture.SOON, () -> decode.aborted.get() == 2);
    }

    @Test
    void healthProbesMarkInstancesDownAndUp() throws Exception {
        Router router = router();
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(200);
        decode.health = 503;
        awaitHealth(router, 503);
        JsonNode answer = MAPPER.readTree(fixture.get(router, "/health").body());
        assertThat(answer.path("missing").toString()).isEqualTo("[\"decode\"]");
        assertThat(answer.path("down").path(decode.uri().toString()).asString()).isEqualTo("GET /health answers 503");
        HttpResponse<String> response = fixture.post(router, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(error(response).path("message").asString()).startsWith("no healthy decode instance: ");
        assertThat(prefill.received).isEmpty();
        decode.health = 200;
        awaitHealth(router, 200);

        prefill.stop();
        awaitHealth(router, 503);
        assertThat(fixture.metric(router, "baton:router_instances_up{role=\"prefill\"}"))
                .isEqualTo(0);
        prefill.restart();
        awaitHealth(router, 200);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    private void awaitHealth(Router router, int status) {
        Await.until(
                "health is " + status,
                RouterFixture.SOON,
                () -> fixture.get(router, "/health").statusCode() == status);
    }

    @Test
    void aRouterMayStartBeforeItsInstances() throws Exception {
        URI refusing = URI.create("http://127.0.0.1:" + FreePorts.inARow(1));
        Router router = router(RouterFixture.LIMITS, List.of(refusing), List.of(decode.uri()));
        HttpResponse<String> health = fixture.get(router, "/health");
        assertThat(health.statusCode()).isEqualTo(503);
        assertThat(MAPPER.readTree(health.body()).path("missing").toString()).isEqualTo("[\"prefill\"]");
        assertThat(MAPPER.readTree(fixture.get(router, "/healthcheck").body()).toString())
                .isEqualTo("{\"status\":\"ok\",\"prefill_instances\":1,\"decode_instances\":1}");
    }

    @Test
    void requestsWithoutAPromptGoToADecodeInstance() throws Exception {
        Router router = router();
        decode.behaviour = FakeInstance.json(200, "{\"object\":\"list\"}");
        HttpResponse<String> models = fixture.get(router, "/v1/models?a=b");
        assertThat(models.body()).isEqualTo("{\"object\":\"list\"}");
        assertThat(models.headers().firstValue("X-Baton-Prefill")).isEmpty();
        fixture.get(router, "/v1/models/tiny");
        fixture.get(router, "/version");
        fixture.postTo(router, "/tokenize", "{ \"prompt\":1 }");
        fixture.postTo(router, "/v1/completions/render", "{ \"prompt\":2 }");
        fixture.postTo(router, "/v1/chat/completions/render", "{ \"messages\":3 }");
        assertThat(decode.received.stream().map(r -> r.method() + " " + r.uri() + " " + r.body()))
                .containsExactly(
                        "GET /v1/models?a=b ",
                        "GET /v1/models/tiny ",
                        "GET /version ",
                        "POST /tokenize { \"prompt\":1 }",
                        "POST /v1/completions/render { \"prompt\":2 }",
                        "POST /v1/chat/completions/render { \"messages\":3 }");
        assertThat(prefill.received).isEmpty();
    }

    @Test
    void metricsCountLegsAndOutcomes() throws Exception {
        Router router = router();
        fixture.post(router, BODY);
        fixture.post(router, "{");
        String metrics = fixture.get(router, "/metrics").body();
        assertThat(metrics)
                .contains(
                        "baton:router_requests_total{outcome=\"ok\"} 1.0",
                        "baton:router_requests_total{outcome=\"rejected\"} 1.0",
                        "baton:router_prefill_seconds_count 1",
                        "baton:router_prefill_seconds_bucket{le=\"+Inf\"} 1",
                        "baton:router_decode_first_byte_seconds_count 1",
                        "baton:router_request_seconds_count 2",
                        "baton:router_instances{role=\"decode\"} 1.0");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "POST|/v1/completions|application/json|{\"prompt\":|400|body: not valid JSON",
                "POST|/v1/completions|application/json|[1]|400|body: must be a JSON object",
                "POST|/v1/completions|application/json|{} {}|400|body: has text after",
                "POST|/v1/completions|text/plain|{}|415|Content-Type is 'text/plain'",
                "GET|/v1/completions|application/json|{}|405|takes POST, not GET",
                "DELETE|/v1/models|application/json|{}|405|takes GET, not DELETE",
                "POST|/v1/nothing|application/json|{}|404|no such path: /v1/nothing"
            })
    void badRequestsGetAClearError(String method, String path, String type, String body, int status, String message)
            throws Exception {
        Router router = router();
        HttpResponse<String> response =
                fixture.send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + router.port() + path))
                        .header("Content-Type", type)
                        .method(method, HttpRequest.BodyPublishers.ofString(body)));
        assertThat(response.statusCode()).isEqualTo(status);
        assertThat(error(response).path("message").asString()).contains(message);
        assertThat(prefill.received).isEmpty();
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void emptyAndOversizedBodiesGetAClearError() throws Exception {
        Router router = router();
        assertThat(error(fixture.post(router, "")).path("message").asString()).isEqualTo("body: is empty");

        String large = "{\"prompt\":\"" + "x".repeat(RouterFixture.LIMITS.maxBodyBytes()) + "\"}";
        HttpResponse<String> declared = fixture.post(router, large);
        assertThat(declared.statusCode()).isEqualTo(413);
        assertThat(error(declared).path("message").asString()).contains("1048576 bytes");
        HttpResponse<String> chunked = fixture.send(RouterFixture.request(router, RouterFixture.COMPLETIONS)
                .POST(HttpRequest.BodyPublishers.ofInputStream(
                        () -> new java.io.ByteArrayInputStream(large.getBytes(StandardCharsets.UTF_8)))));
        assertThat(chunked.statusCode()).isEqualTo(413);
        assertThat(prefill.received).isEmpty();
        assertThat(fixture.metric(router, RUNNING)).isZero();
    }

    @Test
    void malformedHttpIsHarmless() throws Exception {
        Router router = router();
        try (RawClient client = new RawClient(router.port())) {
            assertThat(client.send("\u0001\u0002 nonsense\r\n\r\n").readUntil("\r\n"))
                    .contains("400");
        }
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void anUnknownTransferEncodingIsRefusedAndTheConnectionCloses() throws Exception {
        Router router = router();
        String head = "POST " + RouterFixture.COMPLETIONS
                + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: ";
        String next = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for (String broken : List.of("zz\r\n", "3\r\n{\"proOOPS\r\n", "9\r\n{\"prompt\"\r\n-1\r\n")) {
            try (RawClient client = new RawClient(router.port())) {
                String answer =
                        client.send(head + "chunked\r\n\r\n" + broken + next).readUntil("nothing");
                assertThat(answer).startsWith("HTTP/1.1 400 ").contains("chunks are malformed");
                assertThat(answer.split("HTTP/1.1", -1)).hasSize(2);
            }
        }
        try (RawClient client = new RawClient(router.port())) {
            String answer = client.send(head + "gzip, chunked\r\n\r\n" + next).readUntil("nothing");
            assertThat(answer).startsWith("HTTP/1.1 501 ").contains("must be chunked or absent");
            assertThat(answer.split("HTTP/1.1", -1)).hasSize(2);
        }
        assertThat(fixture.metric(router, RUNNING)).isZero();
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void memoryOfAllBodiesIsLimited() throws Exception {
        Router router = router();
        String head = "POST " + RouterFixture.COMPLETIONS
                + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + RouterFixture.LIMITS.maxBodyBytes() + "\r\n\r\n";
        String part = head + "x".repeat(RouterFixture.LIMITS.maxBodyBytes() - 1);
        List<RawClient> clients = new ArrayList<>();
        try {
            List<CompletableFuture<String>> answers = new ArrayList<>();
            for (int i = 0; i <= BodyMemory.BODIES; i++) {
                RawClient client = new RawClient(router.port());
                clients.add(client);
                answers.add(CompletableFuture.supplyAsync(
                        () -> {
                            try {
                                return client.send(part).readUntil("the most allowed");
                            } catch (IOException e) {
                                return "";
                            }
                        },
                        Thread::startVirtualThread));
            }
            // The last body finds no room; the connections before wait for the rest of their bodies.
            Object first = RouterFixture.result(CompletableFuture.anyOf(answers.toArray(CompletableFuture<?>[]::new)));
            assertThat(first.toString())
                    .startsWith("HTTP/1.1 503 ")
                    .containsIgnoringCase("retry-after: 1")
                    .contains("overloaded: requests with ");
        } finally {
            for (RawClient client : clients) {
                client.close();
            }
        }
        fixture.awaitRest(router);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void requestsOverTheInFlightLimitAreRefusedAtOnce() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(response);
        Router router = router(RouterFixture.LIMITS.withMaxInFlight(1));
        CompletableFuture<HttpResponse<String>> first = fixture.postAndGoOn(router, BODY);
        HttpServerResponse response = RouterFixture.result(open);
        HttpResponse<String> second = fixture.post(router, BODY);
        assertThat(second.statusCode()).isEqualTo(503);
        assertThat(error(second).path("message").asString()).startsWith("overloaded: 1 ");
        response.end(RouterFixture.ANSWER);
        assertThat(RouterFixture.result(first).statusCode()).isEqualTo(200);
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void closeLetsRunningRequestsFinishAndTakesNoMore() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(FakeInstance.events(response, "data: 1\n\n"));
        Router router = Router.start(config(
                RouterFixture.LIMITS.withDrain(RouterFixture.SOON),
                List.of(prefill.uri()),
                List.of(decode.uri()),
                RouterConfig.DEFAULT_FLOW));
        try (RawClient client = new RawClient(router.port()).post(RouterFixture.COMPLETIONS, BODY)) {
            client.readUntil("data: 1\n\n");
            CompletableFuture<Void> closed = CompletableFuture.runAsync(router::close);
            Await.until("the port refuses", RouterFixture.SOON, () -> refuses(router.port()));
            assertThat(closed).isNotDone();
            RouterFixture.result(open).end("data: [DONE]\n\n");
            assertThat(client.readUntil("0\r\n\r\n")).contains("data: [DONE]\n\n");
            RouterFixture.result(closed);
        }
    }

    @Test
    void closeEndsWhatDoesNotFinish() throws Exception {
        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        Router router = Router.start(
                config(RouterFixture.LIMITS, List.of(prefill.uri()), List.of(decode.uri()), RouterConfig.DEFAULT_FLOW));
        try (RawClient client = new RawClient(router.port()).post(RouterFixture.COMPLETIONS, BODY)) {
            client.readUntil("data: 1\n\n");
            router.close();
            Await.until("decode leg closed", RouterFixture.SOON, () -> decode.aborted.get() == 1);
        }
    }

    private static boolean refuses(int port) {
        try {
            new RawClient(port).close();
            return false;
        } catch (IOException e) {
            return true;
        }
    }

    @Test
    void aPortInUseIsAClearError() {
        FakeInstance other = fixture.instance();
        RouterConfig taken = TestConfigs.router(
                "127.0.0.1",
                other.uri().getPort(),
                List.of(prefill.uri()),
                List.of(decode.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                RouterFixture.LIMITS);
        assertThatThrownBy(() -> Router.start(taken))
                .isInstanceOf(baton.kv.ConfigException.class)
                .hasMessageStartingWith(
                        "port: cannot listen on 127.0.0.1:" + other.uri().getPort());
    }

    @Test
    void connectionsToInstancesAreReused() throws Exception {
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(decode.uri()));
        int afterProbe = prefill.connections.get();
        try (RawClient client = new RawClient(router.port())) {
            for (int i = 0; i < 20; i++) {
                client.post(RouterFixture.COMPLETIONS, BODY).readUntil(RouterFixture.ANSWER);
            }
        }
        assertThat(prefill.received).hasSize(20);
        assertThat(prefill.connections.get() - afterProbe).isEqualTo(1);
    }
}
