package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Discovery;
import baton.testkit.Await;
import io.vertx.core.http.HttpServerResponse;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.json.JsonMapper;

/** A router with clients that need keys. */
@Timeout(300)
class ClientKeysTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String ADMIN = "an-admin-key";
    private static final Duration IDLE = Duration.ofSeconds(2);
    private static final JsonMapper JSON = JsonMapper.builder().build();

    @TempDir
    Path directory;

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private static String entry(String name, String limits) throws Exception {
        return "{\"name\": \"%s\", \"sha256\": \"%s\"%s}"
                .formatted(
                        name,
                        HexFormat.of()
                                .formatHex(MessageDigest.getInstance("SHA-256")
                                        .digest(("key-" + name).getBytes(StandardCharsets.UTF_8))),
                        limits);
    }

    private Path file(String... entries) throws Exception {
        Path file = directory.resolve("keys.json");
        Path next = Files.writeString(directory.resolve("next"), "{\"keys\": [" + String.join(", ", entries) + "]}");
        return Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }

    private Router router(Optional<String> instanceKey, String... entries) throws Exception {
        return router(instanceKey, RouterFixture.LIMITS.idle(), entries);
    }

    private Router router(Optional<String> instanceKey, Duration idle, String... entries) throws Exception {
        return fixture.start(TestConfigs.router(
                        "127.0.0.1",
                        0,
                        List.of(prefill.uri()),
                        List.of(decode.uri()),
                        ContentKeyedFlow.NAME,
                        instanceKey,
                        RouterFixture.LIMITS.withIdle(idle),
                        Optional.empty(),
                        PolicySettings.DEFAULT,
                        false,
                        new RouterConfig.Sources(Discovery.Settings.NONE, Optional.of(ADMIN)))
                .withSecurity(new Security(
                        Optional.of(file(entries)), Optional.empty(), Security.NO_INSTANCE_FILES, false, List.of())));
    }

    private HttpResponse<String> post(Router router, String key) throws Exception {
        return fixture.post(router, BODY, "Authorization", "Bearer " + key);
    }

    private HttpResponse<String> get(Router router, String path, String key) throws Exception {
        return fixture.get(router, path, "Authorization", "Bearer " + key);
    }

    private double running(Router router, String name) {
        return fixture.metric(router, "baton:router_client_requests_running{key=\"" + name + "\"}");
    }

    @Test
    void requestsWithoutAKnownKeyAreRefused() throws Exception {
        Router router = router(Optional.empty(), entry("a", ""));
        HttpResponse<String> none = fixture.post(router, BODY);
        assertThat(none.statusCode()).isEqualTo(401);
        assertThat(none.headers().firstValue("WWW-Authenticate")).contains("Bearer");
        assertThat(none.body()).contains("\"error\":{", "\"type\":\"AuthenticationError\"", "\"code\":401");
        assertThat(post(router, "key-b").statusCode()).isEqualTo(401);
        assertThat(get(router, "/v1/models", ADMIN).statusCode()).isEqualTo(401);
        assertThat(decode.received).isEmpty();
        assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        for (String open : List.of("/health", "/healthcheck", "/metrics", "/ui", "/ui/ui.js")) {
            assertThat(fixture.get(router, open).statusCode()).as(open).isEqualTo(200);
        }
        assertThat(fixture.metric(router, "baton:router_client_requests_total{key=\"\",result=\"unknown\"}"))
                .isEqualTo(3);
        assertThat(fixture.metric(router, "baton:router_client_requests_total{key=\"a\",result=\"admitted\"}"))
                .isEqualTo(1);
    }

    @Test
    void aClientsKeyDoesNotReachInstances() throws Exception {
        post(router(Optional.empty(), entry("a", "")), "key-a");
        assertThat(prefill.only().headers().contains("Authorization")).isFalse();
        assertThat(decode.only().headers().contains("Authorization")).isFalse();
        post(router(Optional.of("for-instances"), entry("a", "")), "key-a");
        assertThat(decode.received.getLast().headers().getAll("Authorization")).containsExactly("Bearer for-instances");
    }

    private String salt(Router router, String key, String own) throws Exception {
        prefill.received.clear();
        decode.received.clear();
        HttpResponse<String> answer =
                fixture.post(router, "{\"prompt\":\"hello\"" + own + "}", "Authorization", "Bearer " + key);
        assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
        String salt = JSON.readTree(prefill.only().body()).path("cache_salt").asString("none");
        assertThat(JSON.readTree(decode.only().body()).path("cache_salt").asString("none"))
                .isEqualTo(salt);
        return salt;
    }

    @Test
    void eachKeyHasACacheOfItsOwnUnlessItsTenantHasMore() throws Exception {
        Router router = router(
                Optional.empty(),
                entry("a", ""),
                entry("b", ""),
                entry("c", ", \"tenant\": \"x\""),
                entry("d", ", \"tenant\": \"x\""),
                entry("e", ", \"tenant\": \"\""));
        String a = salt(router, "key-a", "");
        String b = salt(router, "key-b", "");
        assertThat(a).matches("[0-9a-f]{32}").isEqualTo(salt(router, "key-a", ",\"cache_salt\":null"));
        assertThat(b).isNotEqualTo(a);
        String own = ",\"cache_salt\":\"" + b + "\"";
        assertThat(salt(router, "key-a", own)).startsWith(a + ":").isEqualTo(salt(router, "key-a", own));
        String escaped = ",\"cache\\u005fsalt\":\"" + b + "\"";
        assertThat(salt(router, "key-a", escaped)).isEqualTo(salt(router, "key-a", own));
        assertThat(salt(router, "key-c", ""))
                .isEqualTo(salt(router, "key-d", ""))
                .isNotIn(a, b, "none");
        assertThat(salt(router, "key-e", "")).isEqualTo("none");
        assertThat(salt(router, "key-e", own)).isEqualTo(b);
        for (String wrong : List.of("\"\"", "7", "[]")) {
            HttpResponse<String> answer = fixture.post(
                    router, "{\"prompt\":\"x\",\"cache_salt\":" + wrong + "}", "Authorization", "Bearer key-a");
            assertThat(answer.statusCode()).isEqualTo(400);
            assertThat(answer.body()).contains("cache_salt", "must be a non-empty string");
        }
    }

    @Test
    void limitsAreAnsweredWith429AndWhenToComeAgain() throws Exception {
        Router router = router(Optional.empty(), entry("a", ", \"requests_per_minute\": 2"), entry("b", ""));
        assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        HttpResponse<String> limited = post(router, "key-a");
        assertThat(limited.statusCode()).isEqualTo(429);
        assertThat(limited.headers().firstValueAsLong("Retry-After").orElse(0)).isBetween(1L, 30L);
        assertThat(limited.body()).contains("\"type\":\"RateLimitError\"", "'a'", "2 requests a minute");
        assertThat(post(router, "key-b").statusCode()).isEqualTo(200);
        assertThat(fixture.metric(router, "baton:router_client_requests_total{key=\"a\",result=\"limited\"}"))
                .isEqualTo(1);
    }

    @Test
    void aRequestIsCountedUntilItsAnswerHasEnded() throws Exception {
        BlockingQueue<HttpServerResponse> open = new LinkedBlockingQueue<>();
        decode.behaviour = (_, response) -> open.add(FakeInstance.events(response, "data: 1\n\n"));
        Router router = router(Optional.empty(), entry("a", ", \"max_requests_in_flight\": 1"));
        var first = fixture.postAndGoOn(router, BODY, "Authorization", "Bearer key-a");
        HttpServerResponse response = RouterFixture.take(open);
        assertThat(post(router, "key-a").statusCode()).isEqualTo(429);
        assertThat(running(router, "a")).isEqualTo(1);
        response.end("data: [DONE]\n\n");
        assertThat(RouterFixture.result(first).statusCode()).isEqualTo(200);
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        // A client that has its answer may send the next request at once.
        for (int i = 0; i < 50; i++) {
            assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        }
        assertThat(running(router, "a")).isZero();
    }

    /** Requests that end early: malformed, too large, with a wrong type, failed at an instance. */
    @Test
    void aRequestThatFailsIsCountedOff() throws Exception {
        Router router = router(Optional.empty(), entry("a", ", \"max_requests_in_flight\": 1"));
        String[] key = {"Authorization", "Bearer key-a"};
        decode.behaviour = (_, response) -> response.setStatusCode(500).end();
        for (int i = 0; i < 3; i++) {
            assertThat(fixture.post(router, "{no", key).statusCode()).isEqualTo(400);
            assertThat(fixture.post(router, "x".repeat(2 << 20), key).statusCode())
                    .isEqualTo(413);
            assertThat(fixture.post(router, BODY, "Authorization", "Bearer key-a", "Content-Encoding", "gzip")
                            .statusCode())
                    .isEqualTo(415);
            assertThat(fixture.post(router, BODY, key).statusCode()).isEqualTo(500);
            assertThat(get(router, "/v1/models/x", "key-a").statusCode()).isEqualTo(500);
            Await.until("none", RouterFixture.SOON, () -> running(router, "a") == 0);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"body", "prefill", "stream"})
    void aClientThatLeavesIsCountedOff(String stage) throws Exception {
        AtomicInteger reached = new AtomicInteger();
        if (stage.equals("prefill")) {
            prefill.behaviour = (_, _) -> reached.incrementAndGet();
        }
        decode.behaviour = (_, response) -> FakeInstance.events(response, "data: 1\n\n");
        Router router = router(Optional.empty(), entry("a", ", \"max_requests_in_flight\": 1"));
        for (int i = 0; i < 3; i++) {
            try (RawClient client = new RawClient(router.port())) {
                client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-a\r\n"
                        + "Content-Type: application/json\r\nContent-Length: "
                        + (stage.equals("body") ? BODY.length() + 10 : BODY.length())
                        + "\r\n\r\n" + BODY);
                switch (stage) {
                    case "prefill" -> {
                        int wanted = i + 1;
                        Await.until("prefill", RouterFixture.SOON, () -> reached.get() == wanted);
                    }
                    case "stream" -> assertThat(client.readUntil("data: 1\n\n")).contains("200 OK");
                    default -> Await.until("the head is read", RouterFixture.SOON, () -> running(router, "a") == 1);
                }
            }
            Await.until("counted off", RouterFixture.SOON, () -> running(router, "a") == 0);
        }
    }

    @Test
    void theFileIsFollowed() throws Exception {
        Router router = router(Optional.empty(), entry("a", ""));
        assertThat(post(router, "key-b").statusCode()).isEqualTo(401);
        file(entry("b", ""));
        Await.until(
                "b is known", RouterFixture.SOON, () -> post(router, "key-b").statusCode() == 200);
        assertThat(post(router, "key-a").statusCode()).isEqualTo(401);
        file("no JSON");
        awaitRefusal(router, 1);
        assertThat(post(router, "key-b").statusCode()).isEqualTo(200);
        Files.delete(directory.resolve("keys.json"));
        awaitRefusal(router, 2);
        assertThat(post(router, "key-b").statusCode()).isEqualTo(200);
    }

    private void awaitRefusal(Router router, int refusals) {
        Await.until(
                "the file is read and refused",
                RouterFixture.SOON,
                () -> fixture.metric(
                                router,
                                "baton:router_followed_files_total{file=\"client keys file\",result=\"refused\"}")
                        >= refusals);
    }

    @Test
    void tokensOfAMinuteAreLimitedByKey() throws Exception {
        Router router = router(
                Optional.empty(),
                entry("a", ", \"tokens_per_minute\": 100"),
                entry("b", ", \"tokens_per_minute\": 100"));
        decode.behaviour = FakeInstance.json(
                200, "{\"choices\":[{\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":60,\"total_tokens\":70}}");
        assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        // 30 are left; the answer's tokens are known at its end.
        assertThat(post(router, "key-a").statusCode()).isEqualTo(200);
        HttpResponse<String> limited = post(router, "key-a");
        assertThat(limited.statusCode()).isEqualTo(429);
        assertThat(limited.body()).contains("the API key 'a' has taken the 100 tokens of a minute");
        assertThat(Integer.parseInt(limited.headers().firstValue("Retry-After").orElseThrow()))
                .isBetween(10, 30);
        assertThat(post(router, "key-b").statusCode()).isEqualTo(200);
    }

    /** A stream without usage has a token in each event, and the prompt that prefill counted. */
    @Test
    void tokensOfStreamsAreCountedByTheirEvents() throws Exception {
        Router router = router(Optional.empty(), entry("a", ", \"tokens_per_minute\": 100"));
        // Either alone leaves tokens of the minute. Both take so many that it is long until one comes back.
        prefill.behaviour = FakeInstance.json(200, "{\"usage\":{\"prompt_tokens\":91}}");
        decode.behaviour = (_, response) ->
                FakeInstance.events(response, "data: {}\n\n".repeat(91)).end("data: [DONE]\n\n");
        assertThat(fixture.post(router, "{\"prompt\":\"a\",\"stream\":true}", "Authorization", "Bearer key-a")
                        .statusCode())
                .isEqualTo(200);
        assertThat(post(router, "key-a").statusCode()).isEqualTo(429);
    }

    /** After a request with a key, too, a connection has no more time for a head than any. */
    @Test
    void aConnectionWithHalfAHeadAfterARequestWithAKeyIsClosed() throws Exception {
        Router router = router(Optional.empty(), IDLE, entry("a", ""));
        try (RawClient client = new RawClient(router.port())) {
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-a\r\n"
                    + "Content-Type: application/json\r\nContent-Length: " + BODY.length() + "\r\n\r\n" + BODY);
            assertThat(client.readUntil("an answer\"}]}")).contains("200 OK");
            client.send("POST /v1/comp");
            long start = System.nanoTime();
            // Up to the end of the connection: without one, the client's read fails.
            assertThat(client.readUntil("nothing has this")).isEmpty();
            assertThat(Duration.ofNanos(System.nanoTime() - start)).isGreaterThan(IDLE.dividedBy(4));
        }
    }

    @Test
    void aFileThatCannotBeUsedAtTheStartIsNamed() {
        assertThatThrownBy(() -> router(Optional.empty(), "1"))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("client keys file: ")
                .hasMessageContaining("keys[0]");
    }

    @Test
    void explanationsNeedTheKeyOfTheirRequestOrTheAdminKey() throws Exception {
        Router router = router(Optional.empty(), entry("a", ""), entry("b", ""));
        fixture.post(router, BODY, "Authorization", "Bearer key-a", "X-Request-Id", "of-a");
        fixture.post(router, BODY, "Authorization", "Bearer key-b", "X-Request-Id", "of-b");
        String explain = "/v1/requests/of-a/explain";
        assertThat(fixture.get(router, explain).statusCode()).isEqualTo(401);
        assertThat(fixture.get(router, "/v1/requests").statusCode()).isEqualTo(401);
        assertThat(fixture.get(router, "/v1/instances").statusCode()).isEqualTo(401);
        assertThat(get(router, explain, "key-b").statusCode()).isEqualTo(404);
        assertThat(get(router, explain, "key-a").statusCode()).isEqualTo(200);
        assertThat(get(router, explain, ADMIN).statusCode()).isEqualTo(200);
        assertThat(get(router, "/v1/requests", "key-b").body()).contains("of-b").doesNotContain("of-a");
        assertThat(get(router, "/v1/requests", ADMIN).body()).contains("of-b", "of-a");
        assertThat(get(router, "/v1/instances", "key-a").statusCode()).isEqualTo(200);
    }
}
