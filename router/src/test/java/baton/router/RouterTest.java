package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.router.body.BodyMemory;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerResponse;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.http.RequestOptions;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
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
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

@Timeout(30)
class RouterTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final String COMPLETIONS = "/v1/completions";
    private static final String PREFILLED = "{\"id\":\"p\",\"choices\":[{\"text\":\"x\"}]}";
    private static final String ANSWER = "{\"id\":\"d\",\"choices\":[{\"text\":\"an answer\"}]}";
    private static final String BODY = "{\"prompt\":\"hello\",\"max_tokens\":9}";
    private static final Duration SOON = Duration.ofSeconds(5);

    /** The longest time of "at once" after a disconnect: far below every deadline of the router. */
    private static final Duration AT_ONCE = Duration.ofSeconds(3);

    private static final RouterConfig.Limits LIMITS = TestConfigs.limits(
            Duration.ofSeconds(2),
            Duration.ofSeconds(10),
            Duration.ofSeconds(10),
            Duration.ofMillis(50),
            Duration.ofSeconds(5),
            1 << 20,
            1000);

    private final List<AutoCloseable> toClose = new ArrayList<>();
    private final java.net.http.HttpClient http = java.net.http.HttpClient.newHttpClient();
    private Vertx vertx;
    private FakeInstance prefill;
    private FakeInstance decode;

    @BeforeEach
    void startInstances() {
        vertx = Vertx.vertx();
        prefill = instance();
        prefill.behaviour = FakeInstance.json(200, PREFILLED);
        decode = instance();
        decode.behaviour = FakeInstance.json(200, ANSWER);
    }

    @AfterEach
    void stopAll() throws Exception {
        for (AutoCloseable closeable : toClose.reversed()) {
            closeable.close();
        }
        http.close();
        vertx.close().toCompletionStage().toCompletableFuture().get(10, TimeUnit.SECONDS);
    }

    private FakeInstance instance() {
        FakeInstance instance = new FakeInstance(vertx, FakeInstance.json(200, ANSWER));
        toClose.add(instance);
        return instance;
    }

    private Router router(RouterConfig config) {
        Router router = Router.start(config);
        toClose.add(router);
        return router;
    }

    private Router router() {
        return router(LIMITS, List.of(prefill.uri()), List.of(decode.uri()));
    }

    private Router router(RouterConfig.Limits limits, List<URI> prefills, List<URI> decodes) {
        return router(config(limits, prefills, decodes, RouterConfig.DEFAULT_FLOW));
    }

    private static RouterConfig config(RouterConfig.Limits limits, List<URI> prefills, List<URI> decodes, String flow) {
        return TestConfigs.router("127.0.0.1", 0, prefills, decodes, flow, Optional.empty(), limits);
    }

    private static RouterConfig.Limits limits(Duration prefillDeadline, Duration idle, Duration probe, int inFlight) {
        return TestConfigs.limits(
                LIMITS.connect(), prefillDeadline, idle, probe, LIMITS.drain(), LIMITS.maxBodyBytes(), inFlight);
    }

    /** Probes so rarely that health changes by failed requests only. */
    private static final RouterConfig.Limits NO_PROBES =
            limits(Duration.ofSeconds(10), Duration.ofSeconds(10), Duration.ofHours(1), 1000);

    private static HttpRequest.Builder request(Router router, String path) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + router.port() + path))
                .version(java.net.http.HttpClient.Version.HTTP_1_1)
                .header("Content-Type", "application/json");
    }

    private HttpResponse<String> post(Router router, String path, String body) throws Exception {
        return http.send(
                request(router, path)
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                BodyHandlers.ofString());
    }

    private HttpResponse<String> get(Router router, String path) throws Exception {
        return http.send(request(router, path).GET().build(), BodyHandlers.ofString());
    }

    private String metric(Router router, String line) throws Exception {
        return get(router, "/metrics")
                .body()
                .lines()
                .filter(l -> l.startsWith(line + " "))
                .findFirst()
                .map(l -> l.substring(line.length() + 1))
                .orElse("absent");
    }

    private static JsonNode error(HttpResponse<String> response) {
        JsonNode error = MAPPER.readTree(response.body()).path("error");
        assertThat(error.propertyNames()).containsExactlyInAnyOrder("message", "type", "param", "code");
        assertThat(error.path("code").asInt()).isEqualTo(response.statusCode());
        return error;
    }

    private static URI refusing() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return URI.create("http://127.0.0.1:" + socket.getLocalPort());
        }
    }

    @Test
    void prefillComesFirstAndDecodeGetsTheClientsBytes() throws Exception {
        String body =
                "{ \"prompt\" : \"h\\u00e9llo\",\n\t\"max_tokens\": 64, \"stream\": false, \"seed\": 123456789012345678901234567890,"
                        + " \"temperature\": 0.10, \"unknown\": {\"a\":[1, 2]} , \"n\":3 }";
        Router router = router();

        HttpResponse<String> response = http.send(
                request(router, "/v1/completions?x=1")
                        .header("Authorization", "Bearer mine")
                        .header("X-Request-Id", "req-7")
                        .header("X-Data-Parallel-Rank", "2")
                        .header("TE", "trailers")
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                BodyHandlers.ofString());

        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.body()).isEqualTo(ANSWER);
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
        CompletableFuture<HttpResponse<String>> answer = http.sendAsync(
                request(router, COMPLETIONS)
                        .POST(HttpRequest.BodyPublishers.ofString(BODY))
                        .build(),
                BodyHandlers.ofString());

        HttpServerResponse response = open.get(5, TimeUnit.SECONDS);
        long before = System.nanoTime();
        response.end("1}");
        assertThat(answer.get(5, TimeUnit.SECONDS).body()).isEqualTo(ANSWER);
        assertThat(decode.only().nanos()).isGreaterThan(before);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "bad id", "a;b", "x/../y"})
    void anUnsafeRequestIdIsReplacedByTheSameOneOnBothLegs(String id) throws Exception {
        Router router = router();
        HttpRequest.Builder request = request(router, "/v1/chat/completions");
        if (!id.isEmpty()) {
            request.header("X-Request-Id", id);
        }
        http.send(request.POST(HttpRequest.BodyPublishers.ofString(BODY)).build(), BodyHandlers.ofString());

        String made = prefill.only().headers().get("X-Request-Id");
        assertThat(UUID.fromString(made)).hasToString(made);
        assertThat(decode.only().headers().get("X-Request-Id")).isEqualTo(made);
    }

    @Test
    void aRequestIdThatCarriesAddressesIsReplaced() throws Exception {
        String id = "___prefill_addr_[2001:db8::1]:21001___decode_addr_10.0.1.3:22001_0123456789abcdef0123456789abcdef";
        http.send(
                request(router(), COMPLETIONS)
                        .header("X-Request-Id", id)
                        .POST(HttpRequest.BodyPublishers.ofString(BODY))
                        .build(),
                BodyHandlers.ofString());

        String made = prefill.only().headers().get("X-Request-Id");
        assertThat(UUID.fromString(made)).hasToString(made);
        assertThat(decode.only().headers().get("X-Request-Id")).isEqualTo(made);
    }

    @Test
    void theRoutersApiKeyStandsInForAnAbsentAuthorization() throws Exception {
        Router router = router(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.of("secret"),
                LIMITS));
        post(router, COMPLETIONS, BODY);
        assertThat(prefill.only().headers().get("Authorization")).isEqualTo("Bearer secret");
        assertThat(decode.only().headers().get("Authorization")).isEqualTo("Bearer secret");
    }

    @Test
    void instancesTakeTurnsByRole() throws Exception {
        FakeInstance secondDecode = instance();
        FakeInstance thirdDecode = instance();
        Router router =
                router(LIMITS, List.of(prefill.uri()), List.of(decode.uri(), secondDecode.uri(), thirdDecode.uri()));
        for (int i = 0; i < 6; i++) {
            post(router, COMPLETIONS, BODY);
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
        HttpResponse<String> response = post(router(), COMPLETIONS, BODY);
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
        Router router = router(config(LIMITS, List.of(prefill.uri()), List.of(decode.uri()), "kv_transfer_params"));

        post(router, COMPLETIONS, "{\"prompt\":[1,2,3], \"stream\":true, \"stream_options\":{\"include_usage\":true}}");

        assertThat(prefill.only().body())
                .isEqualTo(
                        "{\"prompt\":[1,2,3],\"stream\":false,\"max_tokens\":1,"
                                + "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                                + "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}}");
        assertThat(decode.only().body())
                .isEqualTo("{\"prompt\":[1,2,3],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                        + "\"kv_transfer_params\":" + params + "}");
        assertThat(metric(router, "baton:router_handoffs_total{params=\"carried\"}"))
                .isEqualTo("1.0");
    }

    @Test
    void aPrefillAnswerWithoutKvTransferParamsIsCounted() throws Exception {
        Router router = router(config(LIMITS, List.of(prefill.uri()), List.of(decode.uri()), "kv_transfer_params"));
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":null}");
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
        assertThat(decode.only().body()).isEqualTo(BODY);
        assertThat(metric(router, "baton:router_handoffs_total{params=\"none\"}"))
                .isEqualTo("1.0");
    }

    @Test
    void severalPromptsShareOneHandOffThatIsByContent() throws Exception {
        String two = "{\"prompt\":[\"a\",\"b\"]}";
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"first\":true}}");
        post(router(), COMPLETIONS, two);
        assertThat(decode.only().body()).isEqualTo(two);
    }

    @Test
    void contentKeyedFlowPassesOnKvTransferParamsOfPrefill() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"a\":1}}");
        post(router(), COMPLETIONS, "{\"prompt\":[[1,2]],\"kv_transfer_params\":null,\"x\":2}");
        assertThat(decode.only().body()).isEqualTo("{\"prompt\":[[1,2]],\"kv_transfer_params\":{\"a\":1},\"x\":2}");
    }

    @Test
    void sseEventsReachTheClientOneByOne() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(FakeInstance.events(response, "data: {\"i\":0}\n\n"));
        try (RawClient client = new RawClient(router().port())) {
            client.post(COMPLETIONS, BODY);
            String head = client.readUntil("data: {\"i\":0}\n\n");
            assertThat(head).startsWith("HTTP/1.1 200 OK\r\n").containsIgnoringCase("content-type: text/event-stream");
            HttpServerResponse response = open.get(5, TimeUnit.SECONDS);
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
            String answer = client.post(COMPLETIONS, BODY).readUntil("0\r\n\r\n");
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
                assertThat(client.post(COMPLETIONS, BODY).readOnce())
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
        HttpClient client = vertx.createHttpClient(new PoolOptions().setHttp1MaxSize(streams));
        List<CompletableFuture<Buffer>> answers = new ArrayList<>();
        for (int i = 0; i < streams; i++) {
            String body = "{\"prompt\":\"" + i + "\"}";
            answers.add(client.request(new RequestOptions()
                            .setHost("127.0.0.1")
                            .setPort(router.port())
                            .setMethod(HttpMethod.POST)
                            .setURI(COMPLETIONS)
                            .putHeader("Content-Type", "application/json"))
                    .compose(request -> request.send(body))
                    .compose(response -> response.body())
                    .toCompletionStage()
                    .toCompletableFuture());
        }
        assertThat(allOpen.await(15, TimeUnit.SECONDS)).isTrue();
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
            assertThat(answers.get(i).get(10, TimeUnit.SECONDS).toString())
                    .isEqualTo("data: {\"prompt\":\"" + i + "\"}\n\n" + tail + "data: [DONE]\n\n");
        }
        assertThat(metric(router, "baton:router_requests_total{outcome=\"ok\"}"))
                .isEqualTo("500.0");
        assertThat(metric(router, "baton:router_requests_running")).isEqualTo("0.0");
        client.close().toCompletionStage().toCompletableFuture().get(5, TimeUnit.SECONDS);
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
            client.post(COMPLETIONS, BODY);
            String head = client.readUntil("\r\n\r\n");
            assertThat(head).startsWith("HTTP/1.1 200");
            AtomicLong last = new AtomicLong(-1);
            AtomicLong stableSince = new AtomicLong();
            Await.until("the instance has to wait", Duration.ofSeconds(15), () -> {
                if (last.getAndSet(written.get()) != written.get()) {
                    stableSince.set(System.nanoTime());
                }
                return full.get() && System.nanoTime() - stableSince.get() > 300_000_000;
            });
            assertThat(written.get()).isLessThan(total / 4);
            assertThat(client.readUpTo(total)).isEqualTo(total);
            assertThat(written).hasValue(total);
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
        Router router = router(
                limits(Duration.ofSeconds(10), Duration.ofMillis(300), Duration.ofMillis(50), 100),
                List.of(prefill.uri()),
                List.of(decode.uri()));
        try (RawClient client = new RawClient(router.port())) {
            client.post(COMPLETIONS, BODY);
            Await.until("decode leg closed", Duration.ofSeconds(10), () -> decode.aborted.get() == 1);
            Await.until("counted", SOON, () -> disconnects(router).equals("1.0"));
        }
    }

    private String disconnects(Router router) {
        try {
            return metric(router, "baton:router_client_disconnects_total");
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void aClientDisconnectDuringPrefillClosesTheLegAtOnce() throws Exception {
        prefill.behaviour = (request, response) -> {};
        Router router = router();
        RawClient client = new RawClient(router.port()).post(COMPLETIONS, BODY);
        Await.until("prefill asked", SOON, () -> prefill.received.size() == 1);
        client.close();
        Await.until("prefill leg closed", AT_ONCE, () -> prefill.aborted.get() == 1);
        assertThat(decode.received).isEmpty();
        Await.until("counted", SOON, () -> disconnects(router).equals("1.0"));
        assertThat(metric(router, "baton:router_requests_running")).isEqualTo("0.0");
    }

    @Test
    void aClientDisconnectDuringDecodeClosesTheLegAtOnce() throws Exception {
        CompletableFuture<HttpServerResponse> silent = new CompletableFuture<>();
        decode.behaviour = (request, response) -> silent.complete(response);
        Router router = router();
        RawClient early = new RawClient(router.port()).post(COMPLETIONS, BODY);
        silent.get(5, TimeUnit.SECONDS);
        early.close();
        Await.until("decode leg closed", AT_ONCE, () -> decode.aborted.get() == 1);

        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        RawClient late = new RawClient(router.port()).post(COMPLETIONS, BODY);
        late.readUntil("data: 1\n\n");
        late.close();
        Await.until("decode leg closed", AT_ONCE, () -> decode.aborted.get() == 2);
        Await.until("counted", SOON, () -> disconnects(router).equals("2.0"));
        assertThat(metric(router, "baton:router_requests_total{outcome=\"client_disconnected\"}"))
                .isEqualTo("2.0");
    }

    @Test
    void aClientDisconnectInsideItsBodyReleasesTheRequest() throws Exception {
        Router router = router();
        try (RawClient client = new RawClient(router.port())) {
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    + "Content-Length: 100\r\n\r\n{\"prompt\":");
            Await.until("the request counts", SOON, () -> running(router).equals("1.0"));
        }
        Await.until("the request is gone", SOON, () -> running(router).equals("0.0"));
        assertThat(prefill.received).isEmpty();
    }

    private String running(Router router) {
        try {
            return metric(router, "baton:router_requests_running");
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void aRefusedPrefillLegIsRetriedOnAnotherInstance() throws Exception {
        FakeInstance gone = instance();
        Router router = router(NO_PROBES, List.of(gone.uri(), prefill.uri()), List.of(decode.uri()));
        gone.stop();
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Prefill"))
                .contains(prefill.uri().toString());
        assertThat(metric(router, "baton:router_retries_total{role=\"prefill\"}"))
                .isEqualTo("1.0");
        assertThat(metric(router, "baton:router_instances_up{role=\"prefill\"}"))
                .isEqualTo("1.0");
        // The instance is marked down and not tried again.
        post(router, COMPLETIONS, BODY);
        post(router, COMPLETIONS, BODY);
        assertThat(metric(router, "baton:router_retries_total{role=\"prefill\"}"))
                .isEqualTo("1.0");
        gone.restart();
    }

    @Test
    void aRefusedPrefillLegWithoutAnInstanceForARetryIsAClearError() throws Exception {
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(decode.uri()));
        prefill.stop();
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(error(response).path("message").asString())
                .isEqualTo("prefill instance " + prefill.uri() + ": connection refused");
        HttpResponse<String> next = post(router, COMPLETIONS, BODY);
        assertThat(next.statusCode()).isEqualTo(503);
        assertThat(error(next).path("message").asString())
                .isEqualTo("no healthy prefill instance: " + prefill.uri() + " (connection refused)");
        assertThat(decode.received).isEmpty();
        prefill.restart();
    }

    @Test
    void aPrefillLegThatAnswers500IsRetriedOnce() throws Exception {
        FakeInstance second = instance();
        FakeInstance third = instance();
        for (FakeInstance instance : List.of(prefill, second, third)) {
            instance.behaviour = FakeInstance.json(500, "{\"error\":{\"message\":\"out of blocks\"}}");
        }
        Router router = router(LIMITS, List.of(prefill.uri(), second.uri(), third.uri()), List.of(decode.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
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
        assertThat(error(post(router, COMPLETIONS, BODY)).path("message").asString())
                .startsWith("prefill instance " + prefill.uri() + ": ")
                .containsIgnoringCase("closed");
        prefill.behaviour = (request, response) -> response.end("<html>");
        HttpResponse<String> nonsense = post(router, COMPLETIONS, BODY);
        assertThat(nonsense.statusCode()).isEqualTo(502);
        assertThat(error(nonsense).path("message").asString()).contains("its answer: not valid JSON");
        assertThat(decode.received).isEmpty();
    }

    @Test
    void aPrefillLegIsClosedAtItsDeadline() throws Exception {
        prefill.behaviour = (request, response) -> {};
        Router router = router(
                limits(Duration.ofSeconds(1), Duration.ofSeconds(10), Duration.ofMillis(50), 100),
                List.of(prefill.uri()),
                List.of(decode.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(502);
        assertThat(error(response).path("message").asString())
                .isEqualTo("prefill instance " + prefill.uri() + ": no answer within 1s");
        Await.until("prefill leg closed", SOON, () -> prefill.aborted.get() == 1);
    }

    @Test
    void a4xxOfPrefillIsTheClientsAnswer() throws Exception {
        FakeInstance second = instance();
        String refusal = "{\"error\":{\"message\":\"prompt too long\"}}";
        prefill.behaviour = FakeInstance.json(400, refusal);
        second.behaviour = FakeInstance.json(400, refusal);
        Router router = router(LIMITS, List.of(prefill.uri(), second.uri()), List.of(decode.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(response.body()).isEqualTo(refusal);
        assertThat(response.headers().firstValue("Content-Type")).contains("application/json");
        assertThat(prefill.received.size() + second.received.size()).isEqualTo(1);
        assertThat(decode.received).isEmpty();
    }

    @Test
    void aDecodeRetryAfterARefusedConnectionNeedsNoSecondPrefill() throws Exception {
        FakeInstance gone = instance();
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(gone.uri(), decode.uri()));
        gone.stop();
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(prefill.received).hasSize(1);
        assertThat(metric(router, "baton:router_retries_total{role=\"decode\"}"))
                .isEqualTo("1.0");
        gone.restart();
    }

    @Test
    void aDecodeLegThatAnswers503IsRetriedOnAnotherInstance() throws Exception {
        FakeInstance stopping = instance();
        stopping.behaviour = FakeInstance.json(503, "{\"error\":{\"message\":\"the server is stopping\"}}");
        Router router = router(NO_PROBES, List.of(prefill.uri()), List.of(stopping.uri(), decode.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(stopping.received).hasSize(1);
        assertThat(prefill.received).hasSize(1);

        // Without another instance the 503 is the client's answer.
        decode.behaviour = stopping.behaviour;
        response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(response.body()).contains("the server is stopping");
    }

    @Test
    void aDecodeLegThatBreaksBeforeItsFirstSseEventIsRetried() throws Exception {
        FakeInstance dying = instance();
        // Head and half an event: the client has received nothing.
        dying.behaviour = (request, response) ->
                FakeInstance.events(response, "data: {\"half").write("\":").onComplete(done -> response.reset());
        decode.behaviour = (request, response) ->
                FakeInstance.events(response, "data: 1\n\n").end("data: [DONE]\n\n");
        Router router = router(LIMITS, List.of(prefill.uri()), List.of(dying.uri(), decode.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.body()).isEqualTo("data: 1\n\ndata: [DONE]\n\n");
        assertThat(dying.received).hasSize(1);
        assertThat(prefill.received).hasSize(1);
    }

    /** A prefill instance gives the blocks that it names once: the leg that is gone may have read them. */
    @Test
    void aDecodeLegThatBreaksWithReferencesToBlocksIsRetriedWithAnotherPrefillLeg() throws Exception {
        FakeInstance dying = instance();
        dying.behaviour = (request, response) -> response.reset();
        prefill.behaviour = (request, response) -> FakeInstance.json(
                        200, "{\"id\":\"p\",\"kv_transfer_params\":{\"block\":" + prefill.received.size() + "}}")
                .accept(request, response);
        Router router = router(LIMITS, List.of(prefill.uri()), List.of(dying.uri(), decode.uri()));
        assertThat(post(router, COMPLETIONS, BODY).body()).isEqualTo(ANSWER);
        assertThat(dying.only().body()).contains("\"block\":1");
        assertThat(decode.only().body()).contains("\"block\":2");
    }

    @Test
    void anSseStreamThatBreaksEndsWithAnErrorEvent() throws Exception {
        FakeInstance other = instance();
        for (FakeInstance instance : List.of(decode, other)) {
            instance.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n")
                    .write("data: {\"half")
                    .onComplete(done -> response.reset());
        }
        Router router = router(LIMITS, List.of(prefill.uri()), List.of(decode.uri(), other.uri()));
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.body())
                .startsWith("data: 1\n\ndata: {\"error\":{")
                .endsWith("}}\n\n")
                .doesNotContain("half", "[DONE]");
        String event = response.body().lines().toList().get(2).substring("data: ".length());
        assertThat(MAPPER.readTree(event).path("error").path("message").asString())
                .startsWith("decode instance http://127.0.0.1:");
        assertThat(decode.received.size() + other.received.size()).isEqualTo(1);
        assertThat(metric(router, "baton:router_requests_total{outcome=\"decode_broken\"}"))
                .isEqualTo("1.0");
    }

    /** An error event behind a part of an event would belong to it. */
    @Test
    void aStreamThatBreaksInALongEventEndsTheClientsConnection() throws Exception {
        decode.behaviour =
                (request, response) -> FakeInstance.events(response, "data: 1\n\n", "data: " + "x".repeat(3 << 20))
                        .write("x")
                        .onComplete(done -> response.reset());
        Router router = router();
        assertThatThrownBy(() -> post(router, COMPLETIONS, BODY)).isInstanceOf(IOException.class);
    }

    @Test
    void aJsonAnswerThatBreaksEndsTheClientsConnection() throws Exception {
        decode.behaviour = (request, response) -> response.putHeader("Content-Type", "application/json")
                .putHeader("Content-Length", "1000")
                .write("{\"id\":")
                .onComplete(done -> response.reset());
        Router router = router();
        assertThatThrownBy(() -> post(router, COMPLETIONS, BODY)).isInstanceOf(IOException.class);
        assertThat(decode.received).hasSize(1);
    }

    @Test
    void aSilentDecodeLegIsClosedAtTheIdleDeadline() throws Exception {
        Router router = router(
                limits(Duration.ofSeconds(10), Duration.ofSeconds(1), Duration.ofMillis(50), 100),
                List.of(prefill.uri()),
                List.of(decode.uri()));
        decode.behaviour = (request, response) -> {};
        HttpResponse<String> silent = post(router, COMPLETIONS, BODY);
        assertThat(silent.statusCode()).isEqualTo(502);
        assertThat(error(silent).path("message").asString())
                .isEqualTo("decode instance " + decode.uri() + ": no answer within 1s");

        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        assertThat(post(router, COMPLETIONS, BODY).body()).contains("no bytes for 1s");
        Await.until("decode legs closed", SOON, () -> decode.aborted.get() == 2);
    }

    @Test
    void healthProbesMarkInstancesDownAndUp() throws Exception {
        Router router = router();
        assertThat(get(router, "/health").statusCode()).isEqualTo(200);
        decode.health = 503;
        Await.until("decode down", SOON, () -> health(router) == 503);
        JsonNode answer = MAPPER.readTree(get(router, "/health").body());
        assertThat(answer.path("missing").toString()).isEqualTo("[\"decode\"]");
        assertThat(answer.path("down").path(decode.uri().toString()).asString()).isEqualTo("GET /health answers 503");
        HttpResponse<String> response = post(router, COMPLETIONS, BODY);
        assertThat(response.statusCode()).isEqualTo(503);
        assertThat(error(response).path("message").asString()).startsWith("no healthy decode instance: ");
        assertThat(prefill.received).isEmpty();
        decode.health = 200;
        Await.until("decode up", SOON, () -> health(router) == 200);

        prefill.stop();
        Await.until("prefill down", SOON, () -> health(router) == 503);
        assertThat(metric(router, "baton:router_instances_up{role=\"prefill\"}"))
                .isEqualTo("0.0");
        prefill.restart();
        Await.until("prefill up", SOON, () -> health(router) == 200);
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    private int health(Router router) {
        try {
            return get(router, "/health").statusCode();
        } catch (Exception e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void aRouterMayStartBeforeItsInstances() throws Exception {
        Router router = router(LIMITS, List.of(refusing()), List.of(decode.uri()));
        HttpResponse<String> health = get(router, "/health");
        assertThat(health.statusCode()).isEqualTo(503);
        assertThat(MAPPER.readTree(health.body()).path("missing").toString()).isEqualTo("[\"prefill\"]");
        assertThat(MAPPER.readTree(get(router, "/healthcheck").body()).toString())
                .isEqualTo("{\"status\":\"ok\",\"prefill_instances\":1,\"decode_instances\":1}");
    }

    @Test
    void requestsWithoutAPromptGoToADecodeInstance() throws Exception {
        Router router = router();
        decode.behaviour = FakeInstance.json(200, "{\"object\":\"list\"}");
        HttpResponse<String> models = get(router, "/v1/models?a=b");
        assertThat(models.body()).isEqualTo("{\"object\":\"list\"}");
        assertThat(models.headers().firstValue("X-Baton-Prefill")).isEmpty();
        get(router, "/v1/models/tiny");
        get(router, "/version");
        post(router, "/tokenize", "{ \"prompt\":1 }");
        post(router, "/v1/completions/render", "{ \"prompt\":2 }");
        post(router, "/v1/chat/completions/render", "{ \"messages\":3 }");
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
        post(router, COMPLETIONS, BODY);
        post(router, COMPLETIONS, "{");
        String metrics = get(router, "/metrics").body();
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
        HttpResponse<String> response = http.send(
                HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + router.port() + path))
                        .header("Content-Type", type)
                        .method(method, HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                BodyHandlers.ofString());
        assertThat(response.statusCode()).isEqualTo(status);
        assertThat(error(response).path("message").asString()).contains(message);
        assertThat(prefill.received).isEmpty();
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void emptyAndOversizedBodiesGetAClearError() throws Exception {
        Router router = router();
        assertThat(error(post(router, COMPLETIONS, "")).path("message").asString())
                .isEqualTo("body: is empty");

        String large = "{\"prompt\":\"" + "x".repeat(LIMITS.maxBodyBytes()) + "\"}";
        HttpResponse<String> declared = post(router, COMPLETIONS, large);
        assertThat(declared.statusCode()).isEqualTo(413);
        assertThat(error(declared).path("message").asString()).contains("1048576 bytes");
        HttpResponse<String> chunked = http.send(
                request(router, COMPLETIONS)
                        .POST(HttpRequest.BodyPublishers.ofInputStream(
                                () -> new java.io.ByteArrayInputStream(large.getBytes(StandardCharsets.UTF_8))))
                        .build(),
                BodyHandlers.ofString());
        assertThat(chunked.statusCode()).isEqualTo(413);
        assertThat(prefill.received).isEmpty();
        assertThat(running(router)).isEqualTo("0.0");
    }

    @Test
    void malformedHttpIsHarmless() throws Exception {
        Router router = router();
        try (RawClient client = new RawClient(router.port())) {
            assertThat(client.send("\u0001\u0002 nonsense\r\n\r\n").readUntil("\r\n"))
                    .contains("400");
        }
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void anUnknownTransferEncodingIsRefusedAndTheConnectionCloses() throws Exception {
        Router router = router();
        String head = "POST " + COMPLETIONS
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
        assertThat(running(router)).isEqualTo("0.0");
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void memoryOfAllBodiesIsLimited() throws Exception {
        Router router = router();
        String head = "POST " + COMPLETIONS
                + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + LIMITS.maxBodyBytes() + "\r\n\r\n";
        String part = head + "x".repeat(LIMITS.maxBodyBytes() - 1);
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
            Object first = CompletableFuture.anyOf(answers.toArray(CompletableFuture<?>[]::new))
                    .get(10, TimeUnit.SECONDS);
            assertThat(first.toString())
                    .startsWith("HTTP/1.1 503 ")
                    .containsIgnoringCase("retry-after: 1")
                    .contains("overloaded: requests with ");
        } finally {
            for (RawClient client : clients) {
                client.close();
            }
        }
        Await.until("all is given back", SOON, () -> running(router).equals("0.0"));
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void requestsOverTheInFlightLimitAreRefusedAtOnce() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(response);
        Router router = router(
                limits(Duration.ofSeconds(10), Duration.ofSeconds(10), Duration.ofMillis(50), 1),
                List.of(prefill.uri()),
                List.of(decode.uri()));
        CompletableFuture<HttpResponse<String>> first = http.sendAsync(
                request(router, COMPLETIONS)
                        .POST(HttpRequest.BodyPublishers.ofString(BODY))
                        .build(),
                BodyHandlers.ofString());
        HttpServerResponse response = open.get(5, TimeUnit.SECONDS);
        HttpResponse<String> second = post(router, COMPLETIONS, BODY);
        assertThat(second.statusCode()).isEqualTo(503);
        assertThat(error(second).path("message").asString()).startsWith("overloaded: 1 ");
        response.end(ANSWER);
        assertThat(first.get(5, TimeUnit.SECONDS).statusCode()).isEqualTo(200);
        decode.behaviour = FakeInstance.json(200, ANSWER);
        assertThat(post(router, COMPLETIONS, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void closeLetsRunningRequestsFinishAndTakesNoMore() throws Exception {
        CompletableFuture<HttpServerResponse> open = new CompletableFuture<>();
        decode.behaviour = (request, response) -> open.complete(FakeInstance.events(response, "data: 1\n\n"));
        Router router = router();
        try (RawClient client = new RawClient(router.port()).post(COMPLETIONS, BODY)) {
            client.readUntil("data: 1\n\n");
            CompletableFuture<Void> closed = CompletableFuture.runAsync(router::close);
            Await.until("the port refuses", SOON, () -> refuses(router.port()));
            assertThat(closed).isNotDone();
            open.get(5, TimeUnit.SECONDS).end("data: [DONE]\n\n");
            assertThat(client.readUntil("0\r\n\r\n")).contains("data: [DONE]\n\n");
            closed.get(3, TimeUnit.SECONDS);
        }
        toClose.remove(router);
    }

    @Test
    void closeEndsWhatDoesNotFinish() throws Exception {
        decode.behaviour = (request, response) -> FakeInstance.events(response, "data: 1\n\n");
        RouterConfig.Limits impatient = TestConfigs.limits(
                LIMITS.connect(),
                LIMITS.prefill(),
                LIMITS.idle(),
                LIMITS.probeInterval(),
                Duration.ofMillis(200),
                LIMITS.maxBodyBytes(),
                LIMITS.maxInFlight());
        Router router = router(impatient, List.of(prefill.uri()), List.of(decode.uri()));
        try (RawClient client = new RawClient(router.port()).post(COMPLETIONS, BODY)) {
            client.readUntil("data: 1\n\n");
            router.close();
            Await.until("decode leg closed", SOON, () -> decode.aborted.get() == 1);
        }
        toClose.remove(router);
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
        FakeInstance other = instance();
        RouterConfig taken = TestConfigs.router(
                "127.0.0.1",
                other.uri().getPort(),
                List.of(prefill.uri()),
                List.of(decode.uri()),
                RouterConfig.DEFAULT_FLOW,
                Optional.empty(),
                LIMITS);
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
                client.post(COMPLETIONS, BODY).readUntil(ANSWER);
            }
        }
        assertThat(prefill.received).hasSize(20);
        assertThat(prefill.connections.get() - afterProbe).isEqualTo(1);
    }
}
