package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.server.ServerFixture.RawClient;
import java.io.EOFException;
import java.net.SocketException;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Malformed requests, and those of web pages through the browser of this host's user, are refused; the server goes on. */
class HostileRequestsTest {
    private static final String BODY = "{\"prompt\":\"a\"}";
    private static final String LENGTH = "Content-Length: " + BODY.length() + "\r\n";
    private static final String JSON = "Content-Type: application/json\r\n";
    private static final String HOST = "Host: localhost\r\n";

    private final ServerFixture fixture =
            new ServerFixture(config -> config.allowedOrigins(List.of("https://ui.example:8443")));

    @AfterEach
    void close() {
        assertThat(fixture.engine.submittedCount()).isZero();
        fixture.close();
    }

    /** The head of the answer; empty if the connection is closed without one. */
    private String head(String request) throws Exception {
        try (RawClient client = fixture.raw()) {
            client.send(request);
            return client.head();
        } catch (EOFException | SocketException _) {
            return "";
        }
    }

    private static String generate(String headers) {
        return "POST /v1/completions HTTP/1.1\r\n" + headers + JSON + LENGTH + "\r\n" + BODY;
    }

    static List<String> malformed() {
        return List.of(
                "\u0001\u0002 nonsense\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                "GET /health\r\n\r\n",
                "GET nothing HTTP/1.1\r\n" + HOST + "\r\n",
                "OPTIONS * HTTP/1.1\r\n" + HOST + "\r\n",
                "GET /" + "x".repeat(100_000) + " HTTP/1.1\r\n" + HOST + "\r\n",
                "GET /health HTTP/1.1\r\n" + HOST + "X-Large: " + "x".repeat(100_000) + "\r\n\r\n",
                "GET /health HTTP/1.1\r\n" + HOST + "X-Many: y\r\n".repeat(20_000) + "\r\n",
                "GET /health HTTP/1.1\r\n" + HOST + "X-Bad\u0000: 1\r\n\r\n",
                "GET /health HTTP/1.1\r\n" + HOST + "X-Bad: \u0000\r\n\r\n",
                "GET /health HTTP/1.1\r\n" + HOST + " X-Folded: 1\r\nno colon\r\n\r\n",
                "GET /v1/models/%zz HTTP/1.1\r\n" + HOST + "\r\n",
                "GET /v1/models/%2 HTTP/1.1\r\n" + HOST + "\r\n",
                "GET /v1/requests/%zz/explain HTTP/1.1\r\n" + HOST + "\r\n",
                generate(HOST + "Content-Length: 5\r\n"),
                generate(HOST + "Content-Length: 5, 6\r\n"),
                generate(HOST + "Transfer-Encoding: chunked\r\n"),
                generate(HOST + "Transfer-Encoding : chunked\r\n"),
                generate(HOST + "Transfer-Encoding: xchunked\r\n"),
                "POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + "Content-Length: -1\r\n\r\n" + BODY,
                "POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + "Content-Length: +5\r\n\r\n" + BODY,
                "POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + "Content-Length: 0x5\r\n\r\n" + BODY,
                generate(""),
                generate(HOST + HOST),
                generate(HOST + "Host: 127.0.0.1\r\n"),
                generate("Host: a b\r\n"),
                generate("Host: user@localhost\r\n"),
                generate("Host: localhost/x\r\n"),
                generate("Host: localhost:port\r\n"));
    }

    @ParameterizedTest
    @MethodSource("malformed")
    void malformedRequestsAreRefused(String request) throws Exception {
        assertThat(head(request)).containsPattern("^(|HTTP/[12].[01] (4|501).*)(\n|$)");
        assertThat(head("GET /health HTTP/1.1\r\n" + HOST + "\r\n")).startsWith("HTTP/1.1 200 ");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
                "GET /health HTTP/1.1\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: a b\r\n\r\n"
            })
    void aRequestHasOneHost(String request) throws Exception {
        assertThat(head(request)).startsWith("HTTP/1.1 400 ");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "GET /health HTTP/1.0\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost:\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: LOCALHOST:8000\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: baton.localhost\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: 10.1.2.3\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: ui.example\r\n\r\n",
                "GET http://other.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n",
                "POST /ping HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
                "POST /ping HTTP/1.1\r\nHost: localhost\r\nOrigin: https://UI.example:8443\r\n\r\n",
                "POST /ping HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\nSec-Fetch-Site: same-origin\r\n\r\n",
                "POST /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
                "POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\n\r\n"
            })
    void requestsOfOtherClientsAreServed(String request) throws Exception {
        assertThat(head(request)).matches("(?s)HTTP/1.[01] 200 .*");
    }

    /** The requests that {@code fetch}, a form and {@code sendBeacon} send without asking the server. */
    @ParameterizedTest
    @CsvSource({
        "Origin: https://evil.example, 403",
        "Origin: http://localhost:9, 403",
        "Origin: null, 403",
        "Sec-Fetch-Site: cross-site, 403",
        "Sec-Fetch-Site: same-site, 403",
        "Content-Type: text/plain, 415",
        "Content-Type: application/x-www-form-urlencoded, 415",
        "Content-Type: multipart/form-data; boundary=x, 415",
        "X-Nothing: 1, 415"
    })
    void aWebPageOfAnotherOriginCannotPost(String header, int status) throws Exception {
        for (String path : List.of("/v1/completions", "/v1/chat/completions", "/tokenize", "/reset_prefix_cache")) {
            String type = header.startsWith("X") || header.startsWith("C") ? "" : JSON;
            assertThat(head("POST " + path + " HTTP/1.1\r\n" + HOST + type + header + "\r\n" + LENGTH + "\r\n" + BODY))
                    .as(path)
                    .startsWith("HTTP/1.1 " + status + " ");
        }
        if (status == 403) {
            assertThat(head("POST /reset_prefix_cache HTTP/1.1\r\n" + HOST + header + "\r\n\r\n"))
                    .startsWith("HTTP/1.1 403 ");
        }
    }

    /** A page with a name that resolves to this host is of the same origin to its browser. */
    @Test
    void aNameThatWasMadeToResolveToThisHostIsRefused() throws Exception {
        String rebound =
                "Host: evil.example:8000\r\nOrigin: http://evil.example:8000\r\nSec-Fetch-Site: same-origin\r\n";
        assertThat(head(generate(rebound))).startsWith("HTTP/1.1 403 ");
        assertThat(head("GET /metrics HTTP/1.1\r\n" + rebound + "\r\n")).startsWith("HTTP/1.1 403 ");
        assertThat(head("GET /metrics HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n"))
                .startsWith("HTTP/1.1 403 ");
    }

    @Test
    void pagesOfAllowedOriginsUseTheServerByCors() throws Exception {
        String origin = "Origin: https://ui.example:8443\r\n";
        assertThat(
                        head(
                                "OPTIONS /v1/completions HTTP/1.1\r\n" + HOST + origin
                                        + "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type,authorization\r\n\r\n"))
                .startsWith("HTTP/1.1 200 ")
                .contains("\nAccess-Control-Allow-Origin: https://ui.example:8443\n")
                .contains("\nAccess-Control-Allow-Headers: content-type,authorization\n")
                .contains("\nAccess-Control-Allow-Methods: GET, POST\n");
        assertThat(head("GET /v1/models HTTP/1.1\r\n" + HOST + origin + "\r\n"))
                .startsWith("HTTP/1.1 200 ")
                .contains("\nAccess-Control-Allow-Origin: https://ui.example:8443\n")
                .contains("\nVary: Origin\n");
        String other = "Origin: https://ui.example\r\n";
        assertThat(head("OPTIONS /v1/completions HTTP/1.1\r\n" + HOST + other
                        + "Access-Control-Request-Method: POST\r\n\r\n"))
                .startsWith("HTTP/1.1 405 ");
        assertThat(head("GET /v1/models HTTP/1.1\r\n" + HOST + other + "\r\n")).doesNotContain("Access-Control");
    }
}
