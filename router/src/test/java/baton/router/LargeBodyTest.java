package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.PolicySettings;
import io.vertx.core.Context;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.net.URI;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Bodies that are too large to be read on an event loop. */
class LargeBodyTest {
    private static final int BODIES = 3;
    private static final int BODY_BYTES = 8 << 20;
    private static final RouterConfig.Limits LIMITS = TestConfigs.limits(
            Duration.ofSeconds(5),
            Duration.ofSeconds(60),
            Duration.ofSeconds(60),
            Duration.ofSeconds(1),
            Duration.ofSeconds(5),
            16 << 20,
            100);

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    @ParameterizedTest
    @ValueSource(strings = {ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME})
    void healthIsAnsweredWhileLargeBodiesAreHandedOff(String flow) throws Exception {
        FakeInstance prefill = fixture.instance();
        FakeInstance decode = fixture.instance();
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                flow,
                Optional.empty(),
                LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT));
        List<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < BODIES; i++) {
            String body = body(i);
            bodies.add(body);
            answers.add(fixture.postAndGoOn(router, body));
        }
        CompletableFuture<Void> all = CompletableFuture.allOf(answers.toArray(CompletableFuture[]::new));
        int asked = 0;
        while (!all.isDone() || asked == 0) {
            assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(200);
            asked++;
        }
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            HttpResponse<String> response = RouterFixture.result(answer);
            assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
            assertThat(response.body()).isEqualTo(RouterFixture.ANSWER);
        }
        // Compared by hash: a failure message with whole bodies would not fit into memory.
        assertThat(hashes(decode.received.stream().map(FakeInstance.Received::body)))
                .isEqualTo(hashes(bodies.stream()));
        assertThat(hashes(prefill.received.stream().map(received -> withoutHandoff(received.body()))))
                .isEqualTo(hashes(bodies.stream().map(body -> body.replace("}", ",\"max_tokens\":1}"))));
    }

    @Test
    void aConnectionIsClosedIfTheInstanceAnswersBeforeItHasReadTheBody() throws Exception {
        try (ServerSocket refusing = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
            CountDownLatch answered = new CountDownLatch(1);
            CompletableFuture<Long> unread = new CompletableFuture<>();
            Thread.ofVirtual().start(() -> {
                while (!refusing.isClosed()) {
                    try {
                        Socket socket = refusing.accept();
                        Thread.ofVirtual().start(() -> serve(socket, answered, unread));
                    } catch (IOException e) {
                        return;
                    }
                }
            });
            Router router = fixture.start(TestConfigs.router(
                    "127.0.0.1",
                    0,
                    List.of(URI.create("http://127.0.0.1:" + refusing.getLocalPort())),
                    List.of(fixture.instance().uri()),
                    ContentKeyedFlow.NAME,
                    Optional.empty(),
                    LIMITS,
                    Optional.empty(),
                    PolicySettings.DEFAULT));

            HttpResponse<String> answer = fixture.postAndGoOn(router, "{\"prompt\":\"" + "a".repeat(15 << 20) + "\"}")
                    .get(60, TimeUnit.SECONDS);

            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(401);
            answered.countDown();
            // The rest of the router's bytes, then the end of the connection.
            assertThat(RouterFixture.result(unread)).isLessThan(15 << 20);
        }
    }

    /** Answers probes with 200, and completions with 401; reads their bodies when the client has that answer. */
    private static void serve(Socket socket, CountDownLatch answered, CompletableFuture<Long> unread) {
        try (socket) {
            socket.setSoTimeout(60_000);
            StringBuilder head = new StringBuilder();
            while (head.indexOf("\r\n\r\n") < 0) {
                int next = socket.getInputStream().read();
                if (next < 0) {
                    return;
                }
                head.append((char) next);
            }
            boolean probe = head.toString().startsWith("GET");
            socket.getOutputStream()
                    .write(("HTTP/1.1 " + (probe ? "200 OK" : "401 Unauthorized") + "\r\ncontent-length: 2\r\n\r\n{}")
                            .getBytes(StandardCharsets.US_ASCII));
            if (!probe) {
                // Sockets buffer far less than the body.
                assertThat(answered.await(60, TimeUnit.SECONDS)).isTrue();
                long bytes = 0;
                byte[] some = new byte[64 << 10];
                try {
                    for (int n = 0; n >= 0; n = socket.getInputStream().read(some)) {
                        bytes += n;
                    }
                } catch (SocketException _) {
                    // A reset is an end, too.
                }
                unread.complete(bytes);
            }
        } catch (IOException | InterruptedException | AssertionError e) {
            unread.completeExceptionally(e);
        }
    }

    private static String withoutHandoff(String body) {
        int added = body.indexOf(",\"kv_transfer_params\"");
        return added < 0 ? body : body.substring(0, added) + "}";
    }

    private static List<Integer> hashes(Stream<String> bodies) {
        return bodies.map(String::hashCode).sorted().toList();
    }

    @Test
    void aLargeBodyThatIsNotJsonIsRejected() throws Exception {
        FakeInstance instance = fixture.instance();
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(instance.uri()),
                List.of(instance.uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                LIMITS));
        HttpResponse<String> answer = fixture.post(router, body(0).replace("\"n\":1}", "\"n\":1"));
        assertThat(answer.statusCode()).isEqualTo(400);
        assertThat(answer.body()).contains("not valid JSON");
        assertThat(instance.received).isEmpty();
        assertThat(fixture.metric(router, "baton:router_requests_running")).isZero();
    }

    @Test
    void workOnALargeBodyDoesNotHoldTheEventLoop() throws Exception {
        Vertx vertx = Vertx.vertx();
        try {
            Context loop = vertx.getOrCreateContext();
            CountDownLatch loopWasFree = new CountDownLatch(1);
            Promise<Boolean> result = Promise.promise();
            loop.runOnContext(start -> {
                // Ends only after the event loop has run another task.
                new BodyWorker(vertx)
                        .run(BodyWorker.LARGE + 1, () -> loopWasFree.await(30, TimeUnit.SECONDS))
                        .map(waited -> waited && Context.isOnEventLoopThread())
                        .onComplete(result);
                loop.runOnContext(next -> loopWasFree.countDown());
            });
            assertThat(result.future().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS))
                    .isTrue();
        } finally {
            Router.await(vertx.close(), Duration.ofSeconds(10));
        }
    }

    @Test
    void workOnASmallBodyIsDoneAtOnce() {
        Thread caller = Thread.currentThread();
        Vertx vertx = Vertx.vertx();
        try {
            assertThat(new BodyWorker(vertx).run(BodyWorker.LARGE, Thread::currentThread))
                    .satisfies(done -> assertThat(done.result()).isEqualTo(caller));
            assertThat(new BodyWorker(vertx)
                            .run(1, () -> {
                                throw new IllegalStateException("failed");
                            })
                            .cause())
                    .hasMessage("failed");
        } finally {
            assertThat(vertx.close().toCompletionStage().toCompletableFuture()).succeedsWithin(Duration.ofSeconds(10));
        }
    }

    /** Many values, so that reading takes time. */
    private static String body(int number) {
        StringBuilder body =
                new StringBuilder(BODY_BYTES + 100).append("{\"prompt\":[").append(number);
        while (body.length() < BODY_BYTES) {
            body.append(",123456");
        }
        return body.append("],\"stream\":false,\"n\":1}").toString();
    }
}
