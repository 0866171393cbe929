package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.server.FakeEngine.Session;
import baton.server.ServerFixture.RawClient;
import baton.testkit.Await;
import java.net.SocketException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Clients that disconnect or do not read, and a server that drains and closes. */
class DisconnectTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.maxPendingBytes(200_000));

    @Test
    void aDisconnectAbortsAWaitingRequest() throws Exception {
        for (boolean stream : new boolean[] {false, true}) {
            try (RawClient client = fixture.raw()) {
                client.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":" + stream + "}");
                Session session = fixture.engine.nextSubmitted();
                client.leave();
                assertThat(fixture.engine.nextAbandoned()).isEqualTo(session.request.id());
            }
        }
    }

    @Test
    void aDisconnectAbortsAStream() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
            Session session = fixture.engine.nextSubmitted();
            session.output(0, "x");
            client.head();
            assertThat(client.chunk()).contains("\"text\":\"x\"");
            client.leave();
            assertThat(fixture.engine.nextAbandoned()).isEqualTo(session.request.id());
        }
    }

    @Test
    void aDisconnectByResetAbortsTheRequest() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":\"a\"}");
            Session session = fixture.engine.nextSubmitted();
            client.socket().setSoLinger(true, 0);
            client.leave();
            assertThat(fixture.engine.nextAbandoned()).isEqualTo(session.request.id());
        }
    }

    @Test
    void aDisconnectAbortsEveryPromptOfARequest() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":[[5],[6]]}");
            List<String> submitted = List.of(
                    fixture.engine.nextSubmitted().request.id(),
                    fixture.engine.nextSubmitted().request.id());
            client.leave();
            assertThat(List.of(fixture.engine.nextAbandoned(), fixture.engine.nextAbandoned()))
                    .hasSameElementsAs(submitted)
                    .doesNotHaveDuplicates();
        }
    }

    @Test
    void aRequestIsAbortedIfItsClientDoesNotRead() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
            Session session = fixture.engine.nextSubmitted();
            String text = "x".repeat(50_000);
            CompletableFuture<String> aborted = CompletableFuture.supplyAsync(() -> {
                try {
                    return fixture.engine.nextAbandoned();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            // Socket buffers hold some megabytes; the server must not hold the rest.
            for (int i = 0; i < 2000 && !aborted.isDone(); i++) {
                session.output(0, text);
            }
            assertThat(aborted.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                    .isEqualTo(session.request.id());
            // The server closes the connection although the client has read nothing: further bytes are answered by a
            // reset.
            Await.until("the connection ends", ServerFixture.SOON, () -> {
                try {
                    client.send("x");
                    return false;
                } catch (SocketException _) {
                    return true;
                }
            });
        }
    }

    /** The peer that keeps the prompt's blocks is notified that no request will take them. */
    @ParameterizedTest
    @ValueSource(strings = {"\"prompt\":\"a\"", "\"prompt\":[5],\"echo\":true"})
    void aRequestWhoseClientLeavesBeforeItIsSubmittedIsRefused(String prompt) throws Exception {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        try (ServerFixture logging = new ServerFixture(config -> config.accessLog(lines::add))) {
            CountDownLatch preparing = new CountDownLatch(1);
            logging.engine.whenTokenizerIsTaken(() -> {
                preparing.countDown();
                // Goes on when the server knows that the client has left.
                assertThat(poll(lines)).contains(" 499 ");
                logging.engine.whenTokenizerIsTaken(() -> {});
            });
            try (RawClient client = logging.raw()) {
                client.post("/v1/completions", "{" + prompt + ",\"kv_transfer_params\":{\"k\":1}}");
                assertThat(preparing.await(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                        .isTrue();
                client.leave();
            }
            assertThat(logging.engine.nextRefused().toJson().toString()).isEqualTo("{\"k\":1}");
            assertThat(logging.engine.submittedCount()).isZero();
        }
    }

    private static String poll(BlockingQueue<String> lines) {
        try {
            return String.valueOf(lines.poll(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS));
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void aConnectionServesSeveralRequests() throws Exception {
        fixture.engine.answers("x");
        try (RawClient client = fixture.raw()) {
            for (String id : List.of("first", "second", "third")) {
                client.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"request_id\":\"" + id + "\"}");
                assertThat(client.head()).startsWith("HTTP/1.1 200 ");
                StringBuilder body = new StringBuilder();
                for (String chunk = client.chunk(); !chunk.isEmpty(); chunk = client.chunk()) {
                    body.append(chunk);
                }
                assertThat(body.toString()).contains("\"cmpl-" + id + "\"").endsWith("data: [DONE]\n\n");
            }
        }
    }

    @Test
    void expect100ContinueIsAnswered() throws Exception {
        fixture.engine.answers("x");
        try (RawClient client = fixture.raw()) {
            client.send(String.join(
                    "\r\n",
                    "POST /v1/completions HTTP/1.1",
                    "Host: localhost",
                    "Content-Type: application/json",
                    "Content-Length: 14",
                    "Expect: 100-continue",
                    "",
                    ""));
            assertThat(client.head()).startsWith("HTTP/1.1 100 ");
            client.send("{\"prompt\":\"a\"}");
            assertThat(client.head()).startsWith("HTTP/1.1 200 ");
        }
    }

    @Test
    void drainLetsRunningRequestsFinishAndRefusesNewOnes() throws Exception {
        CompletableFuture<HttpResponse<String>> answer = ask("{\"prompt\":\"a\"}");
        Session session = fixture.engine.nextSubmitted();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(() -> fixture.server.close(ServerFixture.SOON));
        Await.until("it accepts no more", ServerFixture.SOON, () -> !accepts());
        session.output(0, "done");
        session.finish(0, FinishReason.STOP);
        assertThat(answer.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS).body())
                .contains("\"text\":\"done\"");
        closed.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
    }

    @Test
    void drainAbortsRequestsAtItsDeadline() throws Exception {
        CompletableFuture<HttpResponse<String>> answer = ask("{\"prompt\":\"a\",\"stream\":true}");
        Session session = fixture.engine.nextSubmitted();
        session.output(0, "so far");
        fixture.server.close(Duration.ofMillis(50));
        assertThat(fixture.engine.nextAborted()).isEqualTo(session.request.id());
        // Its answer reaches its client.
        assertThat(fixture.engine.abandonedCount()).isZero();
        assertThat(answer.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS).body())
                .contains("so far", "\"finish_reason\":\"abort\"")
                .endsWith("data: [DONE]\n\n");
    }

    /** A router continues the stream elsewhere; an end would prevent that. */
    @Test
    void drainBreaksStreamsThatCanBeContinuedAtItsDeadline() throws Exception {
        try (RawClient client = fixture.raw()) {
            Session session = askForTokenIds(client, "{\"prompt\":\"a\",\"stream\":true}");
            session.output(0, "so far");
            assertThat(client.head()).contains("X-Baton-Stream: {\"id\":\"cmpl-");
            assertThat(client.chunk()).contains("so far").contains("\n\n:t 0 ").endsWith("\n\n");
            fixture.server.close(Duration.ofMillis(50));
            assertThat(client.closed()).isTrue();
            assertThat(fixture.engine.nextAbandoned()).isEqualTo(session.request.id());
        }
    }

    /** A router begins the answer anew elsewhere, as its client has nothing of it. */
    @Test
    void drainBreaksAnswersWithoutTokenIdsAtItsDeadline() throws Exception {
        try (RawClient client = fixture.raw()) {
            Session session = askForTokenIds(client, "{\"prompt\":\"a\",\"best_of\":2}");
            session.output(0, "so far");
            fixture.server.close(Duration.ofMillis(50));
            assertThat(client.closed()).isTrue();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"", ",\"stream\":true", ",\"best_of\":2"})
    void anEngineThatFailsBreaksAnswersThatARouterGetsElsewhere(String fields) throws Exception {
        try (RawClient client = fixture.raw()) {
            Session session = askForTokenIds(client, "{\"prompt\":\"a\"" + fields + "}");
            session.output(0, "so far");
            if (fields.contains("stream")) {
                assertThat(client.head()).contains("X-Baton-Stream: ");
                assertThat(client.chunk()).contains("so far");
            }
            fixture.engine.fails("no memory");
            session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("no memory"));
            assertThat(client.closed()).isTrue();
            assertThat(fixture.engine.nextAbandoned()).isEqualTo(session.request.id());
        }
    }

    private Session askForTokenIds(RawClient client, String body) throws Exception {
        client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                + "X-Baton-Token-Ids: 1\r\nContent-Length: " + body.length() + "\r\n\r\n" + body);
        return fixture.engine.nextSubmitted();
    }

    @Test
    void aDrainingServerServesLegsThatMoveStreamsAway() throws Exception {
        fixture.server.drain(Duration.ZERO);
        fixture.engine.answers("moved");
        assertThat(ask("{\"prompt\":\"a\"}")
                        .get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS)
                        .statusCode())
                .isEqualTo(503);
        HttpResponse<String> answer =
                ask("{\"prompt\":\"a\"}", "X-Baton-Move", "1").get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
        assertThat(answer.body()).contains("\"text\":\"moved\"");
    }

    private CompletableFuture<HttpResponse<String>> ask(String body, String... headers) {
        HttpRequest.Builder request = HttpRequest.newBuilder(fixture.uri("/v1/completions"));
        return fixture.client.sendAsync(
                (headers.length == 0 ? request : request.headers(headers))
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                HttpResponse.BodyHandlers.ofString());
    }

    private boolean accepts() throws Exception {
        try (RawClient client = fixture.raw()) {
            client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            return client.head().startsWith("HTTP/1.1 200");
        } catch (java.io.IOException _) {
            return false;
        }
    }
}
