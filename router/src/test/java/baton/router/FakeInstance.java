package baton.router;

import baton.router.upstream.ConnectorAddressQuery;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;

/** An instance for tests: an HTTP server that answers as configured and records its requests. */
final class FakeInstance implements AutoCloseable {

    /** A request as received, except for {@code /health} and {@link ConnectorAddressQuery#PATH}. */
    record Received(String method, String uri, MultiMap headers, String body, long nanos) {}

    private final Vertx vertx;
    private HttpServer server;
    private final int port;

    final List<Received> received = new CopyOnWriteArrayList<>();

    /** Requests with a connection that was closed before their answer had ended. */
    final AtomicInteger aborted = new AtomicInteger();

    final AtomicInteger connections = new AtomicInteger();

    /** Requests to {@link ConnectorAddressQuery#PATH}. */
    final List<Received> asked = new CopyOnWriteArrayList<>();

    final AtomicInteger probes = new AtomicInteger();

    /** The status of {@code /health}; 0 if that gets no answer. */
    volatile int health = 200;

    /** The answer of {@link ConnectorAddressQuery#PATH}; by default that of a server without this path. */
    volatile BiConsumer<Received, HttpServerResponse> ahead = json(404, "{\"detail\":\"Not Found\"}");

    volatile BiConsumer<Received, HttpServerResponse> behaviour;

    FakeInstance(Vertx vertx, BiConsumer<Received, HttpServerResponse> behaviour) {
        this.vertx = vertx;
        this.behaviour = behaviour;
        this.server = listen(0);
        this.port = server.actualPort();
    }

    URI uri() {
        return URI.create("http://127.0.0.1:" + port);
    }

    Received only() {
        if (received.size() != 1) {
            throw new AssertionError("expected one request, got " + received);
        }
        return received.getFirst();
    }

    /** Closes the server and its connections; its port then refuses. */
    void stop() {
        await(server.close());
    }

    /** Refuses connections; requests that it has go on. */
    void stopListening() {
        var _ = server.shutdown(1, TimeUnit.HOURS);
    }

    /** Listens again on the same port. */
    void restart() {
        server = listen(port);
    }

    /** The answers of requests that come from now on: the test gives them. */
    BlockingQueue<HttpServerResponse> hold() {
        BlockingQueue<HttpServerResponse> held = new LinkedBlockingQueue<>();
        behaviour = (_, response) -> held.add(response);
        return held;
    }

    @Override
    public void close() {
        stop();
    }

    private HttpServer listen(int onPort) {
        return await(vertx.createHttpServer(
                        new HttpServerOptions().setHost("127.0.0.1").setPort(onPort))
                .connectionHandler(connected -> connections.incrementAndGet())
                .requestHandler(this::handle)
                .listen());
    }

    private void handle(HttpServerRequest request) {
        HttpServerResponse response = request.response();
        if (request.path().equals("/health")) {
            int status = health;
            if (status > 0) {
                response.setStatusCode(status).end();
            }
            probes.incrementAndGet();
            return;
        }
        response.closeHandler(closed -> {
            if (!response.ended() && !request.path().equals(ConnectorAddressQuery.PATH)) {
                aborted.incrementAndGet();
            }
        });
        request.body().onSuccess(body -> {
            Received it = new Received(
                    request.method().name(),
                    request.uri(),
                    request.headers(),
                    body.toString(StandardCharsets.UTF_8),
                    System.nanoTime());
            boolean isQuestion = request.path().equals(ConnectorAddressQuery.PATH);
            (isQuestion ? asked : received).add(it);
            (isQuestion ? ahead : behaviour).accept(it, response);
        });
    }

    private static <T> T await(io.vertx.core.Future<T> future) {
        try {
            return future.toCompletionStage()
                    .toCompletableFuture()
                    .get(RouterFixture.SOON.toSeconds(), TimeUnit.SECONDS);
        } catch (InterruptedException | ExecutionException | TimeoutException e) {
            throw new AssertionError(e);
        }
    }

    static BiConsumer<Received, HttpServerResponse> json(int status, String body) {
        return (request, response) -> response.setStatusCode(status)
                .putHeader("Content-Type", "application/json")
                .end(body);
    }

    /** Starts an event stream; the answer is left open. */
    static HttpServerResponse events(HttpServerResponse response, String... events) {
        response.putHeader("Content-Type", "text/event-stream; charset=utf-8").setChunked(true);
        for (String event : events) {
            response.write(Buffer.buffer(event));
        }
        return response;
    }
}
