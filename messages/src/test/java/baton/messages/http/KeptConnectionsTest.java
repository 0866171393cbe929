package baton.messages.http;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.vertx.core.Future;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.http.RequestOptions;
import io.vertx.core.http.StreamResetException;
import io.vertx.core.net.NetSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Against real servers that close connections. */
@Timeout(300)
class KeptConnectionsTest {
    private static final String OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    private final Vertx vertx = Vertx.vertx();
    private final KeptConnections client = KeptConnections.open(
            vertx,
            new HttpClientOptions().setKeepAliveTimeout(30),
            new PoolOptions().setHttp1MaxSize(16).setMaxWaitQueueSize(-1),
            Optional.empty());

    /** Requests that servers of this test have read. */
    private final AtomicInteger read = new AtomicInteger();

    @AfterEach
    void stop() throws Exception {
        await(client.close());
        await(vertx.close());
    }

    private static <T> T await(Future<T> future) throws Exception {
        return future.toCompletionStage().toCompletableFuture().get(240, TimeUnit.SECONDS);
    }

    private Future<String> ask(int port) {
        return client.send(options(port), request -> request.send(Buffer.buffer("a question")))
                .compose(response -> response.body().map(Buffer::toString));
    }

    @Test
    void aRequestOfAClosedClientFails() throws Exception {
        await(client.close());
        assertThat(ask(1).cause()).isInstanceOf(IllegalStateException.class);
    }

    private static RequestOptions options(int port) {
        return new RequestOptions()
                .setMethod(HttpMethod.POST)
                .setHost("127.0.0.1")
                .setPort(port)
                .setURI("/");
    }

    /** Asks so many times, sixteen at once. */
    private List<Future<String>> askAll(int port, int requests) throws Exception {
        List<Future<String>> all = new ArrayList<>();
        Promise<Void> done = Promise.promise();
        vertx.runOnContext(_ -> {
            for (int i = 0; i < 16; i++) {
                askAgain(port, requests, all, done);
            }
        });
        await(done.future());
        return all;
    }

    private void askAgain(int port, int requests, List<Future<String>> all, Promise<Void> done) {
        if (all.size() >= requests) {
            if (all.stream().allMatch(Future::isComplete)) {
                done.tryComplete();
            }
            return;
        }
        Future<String> each = ask(port);
        all.add(each);
        each.onComplete(_ -> askAgain(port, requests, all, done));
    }

    private int serve(BiConsumer<HttpServerRequest, Integer> answer) throws Exception {
        ConcurrentHashMap<Object, Integer> requests = new ConcurrentHashMap<>();
        return await(vertx.createHttpServer()
                        .requestHandler(request -> {
                            read.incrementAndGet();
                            answer.accept(request, requests.merge(request.connection(), 1, Integer::sum));
                        })
                        .listen(0, "127.0.0.1"))
                .actualPort();
    }

    /** @param answer is called for each request, with its number on the connection */
    private int serveRaw(BiConsumer<NetSocket, Integer> answer) throws Exception {
        return await(vertx.createNetServer()
                        .connectHandler(socket -> {
                            AtomicInteger number = new AtomicInteger();
                            socket.handler(bytes -> {
                                if (bytes.toString().endsWith("a question")) {
                                    read.incrementAndGet();
                                    answer.accept(socket, number.incrementAndGet());
                                }
                            });
                        })
                        .listen(0, "127.0.0.1"))
                .actualPort();
    }

    @Test
    void noRequestIsLostToConnectionsThatEndWhenTheNextOneArrives() throws Exception {
        int port = serve((request, number) -> {
            if (number == 1) {
                request.response().end("ok");
            } else {
                request.connection().close();
            }
        });
        assertThat(askAll(port, 3000))
                .hasSize(3000)
                .allSatisfy(each -> assertThat(each.result()).isEqualTo("ok"));
        assertThat(read.get()).isGreaterThan(4000);
    }

    @Test
    void noRequestIsLostToConnectionsThatEndWhileIdle() throws Exception {
        // Within the time in which the client sends its next request, more or less.
        int port = serve((request, number) -> request.response()
                .end("ok")
                .onComplete(_ -> vertx.setTimer(
                        1 + read.get() % 3, _ -> request.connection().close())));
        assertThat(askAll(port, 3000))
                .hasSize(3000)
                .allSatisfy(each -> assertThat(each.result()).isEqualTo("ok"));
    }

    @Test
    void aRequestOnANewConnectionDoesNotGoAgain() throws Exception {
        int port = serve((request, _) -> request.connection().close());
        assertThatThrownBy(() -> await(ask(port))).isInstanceOf(ExecutionException.class);
        assertThat(read).hasValue(1);
    }

    @Test
    void aRequestGoesAgainOnce() throws Exception {
        AtomicInteger all = new AtomicInteger();
        int port = serve((request, _) -> {
            if (all.incrementAndGet() == 1) {
                request.response().end("ok");
            } else {
                request.connection().close();
            }
        });
        assertThat(await(ask(port))).isEqualTo("ok");
        assertThatThrownBy(() -> await(ask(port))).isInstanceOf(ExecutionException.class);
        assertThat(read).hasValue(3);
    }

    @Test
    void aRequestThatItsSenderResetsDoesNotGoAgain() throws Exception {
        Promise<Void> arrived = Promise.promise();
        int port = serve((request, number) -> {
            if (number == 1) {
                request.response().end("ok");
            } else {
                arrived.complete();
            }
        });
        assertThat(await(ask(port))).isEqualTo("ok");
        AtomicInteger sent = new AtomicInteger();
        Future<?> second = client.send(options(port), request -> {
            sent.incrementAndGet();
            arrived.future().onComplete(_ -> request.reset());
            return request.send(Buffer.buffer("a question"));
        });
        assertThatThrownBy(() -> await(second)).hasCauseInstanceOf(StreamResetException.class);
        assertThat(sent).hasValue(1);
    }

    @Test
    void aRequestWithABegunAnswerIsNotSentAgain() throws Exception {
        int port = serveRaw((socket, number) -> {
            if (number == 1) {
                socket.write(OK);
            } else {
                socket.write("HTTP/1.1 20").onComplete(_ -> socket.close());
            }
        });
        assertThat(await(ask(port))).isEqualTo("ok");
        assertThatThrownBy(() -> await(ask(port))).isInstanceOf(ExecutionException.class);
        assertThat(read).hasValue(2);
    }
}
