package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.server.ServerFixture.RawClient;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;

class AccessLogTest {
    private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.accessLog(lines::add));

    @Test
    void aRequestHasOneAccessLogLine() throws Exception {
        fixture.engine.answers("Hello", " world");
        for (String stream : new String[] {"false", "true"}) {
            fixture.post("/v1/completions", "{\"prompt\":[5,6,7,8],\"request_id\":\"r-1\",\"stream\":" + stream + "}");
            assertThat(line())
                    .matches("127\\.0\\.0\\.1:\\d+ \"POST /v1/completions\" 200 cmpl-r-1 prompt=4 cached=3"
                            + " transferred=2 output=2 ttft=\\d+\\.\\dms total=\\d+\\.\\dms finish=stop");
        }
        fixture.get("/v1/models");
        assertThat(line()).matches("127\\.0\\.0\\.1:\\d+ \"GET /v1/models\" 200 - total=\\d+\\.\\dms finish=-");
        assertThat(lines).isEmpty();
    }

    @Test
    void accessLogLinesOfRefusalsAndErrorsHaveTheReason() throws Exception {
        fixture.post("/v1/completions", "{\"prompt\":\"a\",\"n\":0}");
        assertThat(line())
                .contains("\"POST /v1/completions\" 400 - total=")
                .endsWith("finish=refused error=\"n: is 0, must be between 1 and 16384\"");
        fixture.engine.refuses(new EngineUnavailableException("full"));
        fixture.post("/v1/completions", "{\"prompt\":\"a\",\"request_id\":\"r\"}");
        assertThat(line()).contains(" 503 cmpl-r prompt=").endsWith("finish=refused error=\"full\"");
        fixture.engine.refuses(new IllegalStateException("surprise"));
        fixture.post("/v1/completions", "{\"prompt\":\"a\"}");
        assertThat(line()).contains(" 500 ", "finish=error error=\"internal error: ", "surprise");
    }

    @Test
    void controlCharactersOfAClientCannotForgeAnAccessLogLine() throws Exception {
        fixture.post("/v1/completions", "{\"prompt\":\"a\",\"model\":\"x\\nforged\\u0007\"}");
        assertThat(line()).contains(" 404 ", "x?forged?").doesNotContain("\n");
    }

    @Test
    void aClientDisconnectIsInTheAccessLog() throws Exception {
        fixture.engine.script(session -> session.output(0, "Hello"));
        try (RawClient client = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":[5,6],\"stream\":true,\"request_id\":\"r\"}");
            client.head();
            client.chunk();
            client.leave();
        }
        assertThat(line())
                .contains(" 499 cmpl-r prompt=2 cached=0 transferred=0 output=1 ttft=")
                .endsWith("finish=client_left");
        try (RawClient client = fixture.raw()) {
            client.send(
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
            // The server has received the request once it has answered a later one.
            fixture.get("/v1/models");
            assertThat(line()).contains("/v1/models");
            client.leave();
        }
        assertThat(line()).contains(" 499 - total=").endsWith("finish=client_left");
    }

    @Test
    void anAbortIsInTheAccessLog() throws Exception {
        fixture.engine.script(session -> {
            session.output(0, "Hello");
            session.finish(0, FinishReason.ABORT);
        });
        fixture.post("/v1/completions", "{\"prompt\":[5,6]}");
        assertThat(line()).contains(" 200 ", " output=1 ").endsWith("finish=abort");
    }

    @Test
    void healthAndMetricsRequestsAreLoggedOnlyWhenTheyFail() throws Exception {
        for (String path : new String[] {"/health", "/ping", "/metrics", "/load", "/kv_transfer_params"}) {
            assertThat(fixture.get(path).statusCode()).isEqualTo(200);
        }
        fixture.engine.fails("out of memory");
        fixture.get("/health");
        assertThat(line()).contains("\"GET /health\" 503 ", "out of memory");
        assertThat(lines).isEmpty();
        try (ServerFixture all =
                new ServerFixture(config -> config.accessLog(lines::add).unloggedPaths(Set.of("/version")))) {
            all.get("/version");
            all.get("/health");
            assertThat(line()).contains("\"GET /health\" 200 ");
        }
    }

    private String line() throws InterruptedException {
        return FakeEngine.next(lines, "no line came");
    }
}
