package baton.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class FirstHandoversTest {
    private final List<String> paths = new CopyOnWriteArrayList<>();
    private final List<String> bodies = new CopyOnWriteArrayList<>();
    private final HttpServer server;

    FirstHandoversTest() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.ofLiteral("127.0.0.1"), 0), 0);
    }

    @AfterEach
    void stop() {
        server.stop(0);
    }

    private URI routerThatAnswers(int status, String answer) {
        server.createContext("/", exchange -> {
            paths.add(exchange.getRequestURI().getPath());
            bodies.add(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
            byte[] bytes = answer.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
        return URI.create("http://127.0.0.1:" + server.getAddress().getPort());
    }

    @Test
    void bothKindsOfRequestsAreSentEachWithAPromptOfItsOwn() throws Exception {
        URI router = routerThatAnswers(200, "data: [DONE]\n\n");
        FirstHandovers.send(router);
        FirstHandovers.send(router);
        assertThat(paths)
                .containsExactly("/v1/chat/completions", "/v1/completions", "/v1/chat/completions", "/v1/completions");
        assertThat(bodies).doesNotHaveDuplicates().allMatch(body -> body.contains("\"stream\":true"));
    }

    @Test
    void requestsThatTheModelCannotServeAreLeftOut() throws Exception {
        FirstHandovers.send(routerThatAnswers(400, "{\"error\":{\"message\":\"no chat template\"}}"));
        assertThat(paths).hasSize(2);
    }

    @Test
    void anErrorOfTheServersIsReportedWithTheirAnswer() {
        URI router = routerThatAnswers(502, "the decode instance has ended");
        assertThatThrownBy(() -> FirstHandovers.send(router))
                .isInstanceOf(IOException.class)
                .hasMessageContainingAll(
                        router.toString(), "/v1/chat/completions", "502", "the decode instance has ended");
    }
}
