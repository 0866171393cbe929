package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.testkit.Await;
import java.io.IOException;
import java.net.SocketException;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Clients that break the protocol, leave, or send too much or too slowly: the router goes on, and instances get nothing of it. */
@Timeout(300)
class HostileClientsTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String HEAD =
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    /** Must not be taken for a request when it is in a body. */
    private static final String SMUGGLED = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Smuggled: 1\r\n"
            + "Content-Type: application/json\r\nContent-Length: " + BODY.length() + "\r\n\r\n" + BODY;

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(Duration idle) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS.withIdle(idle)));
    }

    private void assertUnharmed(Router router) {
        Await.until("a good request is answered", RouterFixture.SOON, () -> {
            HttpResponse<String> answer = fixture.post(router, BODY, "X-Good", "1");
            // On a busy machine an instance may miss the short idle deadline of a test.
            assertThat(answer.body()).containsAnyOf(RouterFixture.ANSWER, "no answer within");
            return answer.statusCode() == 200;
        });
        fixture.awaitRest(router);
    }

    private void assertOnlyGoodRequests() {
        assertThat(prefill.received).allMatch(each -> each.headers().contains("X-Good"));
        assertThat(decode.received).allMatch(each -> each.headers().contains("X-Good"));
    }

    static List<String> refused() {
        String chunked = "Transfer-Encoding: chunked\r\n";
        return List.of(
                "\u0001\u0002 nonsense\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Large: " + "x".repeat(100_000) + "\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "X-Many: y\r\n".repeat(20_000) + "\r\n",
                "GET /" + "x".repeat(100_000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
                HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: 5, 6\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: -1\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: +5\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: 0x5\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: 99999999999999999999\r\n\r\n" + SMUGGLED,
                HEAD + "Content-Length: 4\r\n" + chunked + "\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + "Transfer-Encoding:\u000bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
                HEAD + chunked + "\r\n-1\r\n" + SMUGGLED,
                HEAD + chunked + "\r\nfffffffffffffffff\r\n" + SMUGGLED,
                HEAD + chunked + "\r\n5;" + "x".repeat(200_000) + "\r\n" + SMUGGLED,
                HEAD + "X-Bad\u0000: 1\r\nContent-Length: 0\r\n\r\n",
                HEAD + " X-Folded: 1\r\nContent-Length: 0\r\n\r\n",
                HEAD + "no colon\r\nContent-Length: 0\r\n\r\n",
                SMUGGLED.replace("Host: localhost\r\n", ""),
                SMUGGLED.replace("Host: localhost\r\n", "Host: localhost\r\nHost: localhost\r\n"),
                SMUGGLED.replace("Host: localhost\r\n", "Host: a b\r\n"),
                SMUGGLED.replace("Host: localhost\r\n", "Host: evil.example\r\nOrigin: http://evil.example\r\n"),
                SMUGGLED.replace("X-Smuggled: 1", "Origin: https://evil.example"),
                SMUGGLED.replace("X-Smuggled: 1", "Origin: null"),
                SMUGGLED.replace("X-Smuggled: 1", "Sec-Fetch-Site: cross-site"),
                SMUGGLED.replace("Content-Type: application/json\r\n", ""),
                SMUGGLED.replace("application/json", "text/plain"),
                SMUGGLED.replace(BODY, "{\"n\":1,\"n\":1    }"),
                "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    }

    /** Refused, and nothing that follows is a request. */
    @ParameterizedTest
    @MethodSource("refused")
    void malformedRequestsAreRefused(String request) throws Exception {
        // Some are refused with an answer, after which the connection may be used again.
        Router router = router(Duration.ofMillis(300));
        try (RawClient client = new RawClient(router.port())) {
            String answer = sendAndRead(client, request);
            assertThat(answer).doesNotContain("HTTP/1.1 2", "HTTP/1.0 2", "an answer");
        }
        assertOnlyGoodRequests();
        assertUnharmed(router);
    }

    /** Reads until the router closes the connection, which may be while the request is sent. */
    private static String sendAndRead(RawClient client, String request) throws IOException {
        try {
            return client.send(request).readUntil("nothing has this");
        } catch (SocketException e) {
            return "";
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "/v1/models/../../reset_prefix_cache",
                "/v1/models/%2e%2E/x",
                "/v1/models/a%2f..%5cx",
                "/v1/models/./x",
                "/v1/models/..\\x"
            })
    void pathsThatClimbAreNotFound(String path) throws Exception {
        Router router = router(RouterFixture.LIMITS.idle());
        try (RawClient client = new RawClient(router.port())) {
            assertThat(client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                            .readUntil("\r\n"))
                    .contains(" 40");
        }
        assertThat(decode.received).isEmpty();
    }

    @Test
    void theTargetOfARequestIsNoOtherHost() throws Exception {
        Router router = router(RouterFixture.LIMITS.idle());
        try (RawClient client = new RawClient(router.port())) {
            client.send(
                            "GET http://evil.example/v1/models?a=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    .readUntil("nothing");
        }
        assertThat(decode.only().uri()).isEqualTo("/v1/models?a=1");
        assertThat(decode.only().headers().get("Host")).isEqualTo(decode.uri().getAuthority());
    }

    @Test
    void pagesOfAllowedOriginsUseTheRouterByCors() throws Exception {
        String origin = "https://ui.example";
        Router router = fixture.start(TestConfigs.router(
                        "127.0.0.1",
                        0,
                        List.of(prefill.uri()),
                        List.of(decode.uri()),
                        ContentKeyedFlow.NAME,
                        Optional.empty(),
                        RouterFixture.LIMITS)
                .withSecurity(new Security(
                        Optional.empty(), Optional.empty(), Security.NO_INSTANCE_FILES, false, List.of(origin))));
        try (RawClient client = new RawClient(router.port())) {
            String answers = client.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: ui.example\r\nOrigin: " + origin
                            + "\r\nAccess-Control-Request-Method: POST\r\n\r\n" + HEAD + "Origin: " + origin
                            + "\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\nContent-Length: " + BODY.length()
                            + "\r\n\r\n" + BODY)
                    .readUntil("nothing has this");
            assertThat(answers.split("HTTP/1.1 200 ", -1)).hasSize(3);
            assertThat(answers.toLowerCase(Locale.ROOT).split("access-control-allow-origin: " + origin, -1))
                    .hasSize(3);
        }
        // An instance would compare the origin with its own.
        assertThat(decode.only().headers()).noneMatch(header -> header.getKey().matches("(?i)origin|sec-fetch-site"));
    }

    /** Characters that a header may not have are not sent on, and do not stop the request. */
    @ParameterizedTest
    @ValueSource(strings = {"\u0001", "\u007f", "\u00e9", "a\tb"})
    void headersWithOddBytesAreAnswered(String value) throws Exception {
        Router router = router(RouterFixture.LIMITS.idle());
        try (RawClient client = new RawClient(router.port())) {
            assertThat(client.send(HEAD + "X-Good: 1\r\nConnection: close\r\nX-Odd: " + value + "\r\nContent-Length: "
                                    + BODY.length() + "\r\n\r\n" + BODY)
                            .readUntil("\r\n"))
                    .containsAnyOf(" 200 ", " 400 ");
        }
        assertUnharmed(router);
    }

    @Test
    void manyPipelinedRequestsAreAnsweredInTurn() throws Exception {
        Router router = router(RouterFixture.LIMITS.idle());
        int requests = 50;
        String one = HEAD + "X-Good: 1\r\nContent-Length: " + BODY.length() + "\r\n\r\n" + BODY;
        try (RawClient client = new RawClient(router.port())) {
            client.send(one.repeat(requests) + "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            assertThat(client.readUntil("nothing").split("HTTP/1.1 200", -1)).hasSize(requests + 2);
        }
        assertThat(decode.received).hasSize(requests);
        assertUnharmed(router);
    }

    /** Byte by byte, so that the connection is never silent. */
    @Test
    void headsAndBodiesThatComeTooSlowlyAreEnded() throws Exception {
        Router router = router(Duration.ofMillis(600));
        List<RawClient> slow = new ArrayList<>();
        try {
            for (int i = 0; i < 50; i++) {
                slow.add(new RawClient(router.port())
                        .send(i % 2 == 0 ? "POST /v1/comp" : HEAD + "Content-Length: 50\r\n\r\n"));
            }
            Await.until("all are ended", RouterFixture.SOON, () -> {
                for (RawClient each : slow) {
                    try {
                        each.send("x");
                    } catch (IOException e) {
                        // It is.
                    }
                }
                return fixture.metric(router, "baton:router_requests_running") == 0
                        && slow.stream().noneMatch(HostileClientsTest::isOpen);
            });
        } finally {
            for (RawClient each : slow) {
                each.close();
            }
        }
        assertOnlyGoodRequests();
        assertUnharmed(router);
    }

    private static boolean isOpen(RawClient client) {
        try {
            client.send("x").send("x");
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /** A body without end to a path that takes none. */
    @Test
    void aBodyThatIsNotReadIsNotTakenForever() throws Exception {
        Router router = router(RouterFixture.LIMITS.idle());
        try (RawClient client = new RawClient(router.port())) {
            client.send("POST /no/such/path HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
            assertThat(client.readUntil("\r\n")).contains(" 404 ");
            String piece = "x".repeat(1 << 16);
            int sent = 0;
            try {
                while (sent < 1000) {
                    client.send(piece);
                    sent++;
                }
            } catch (IOException e) {
                // The router has closed the connection.
            }
            assertThat(sent).isLessThan(1000);
        }
        assertUnharmed(router);
    }
}
