package baton.bench;

import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import io.vertx.core.json.JsonObject;
import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A prefill and a decode instance that compute nothing: prefill answers at once, decode streams as many events as {@code max_tokens}
 * says. The prompt's text names the request and the time between its events: {@code NAME/MILLISECONDS}.
 */
final class StubInstances implements AutoCloseable {
    private static final Duration DEADLINE = Duration.ofSeconds(10);
    private static final String HOST = "127.0.0.1";
    private static final Buffer PREFILLED = Buffer.buffer(
            "{\"id\":\"cmpl\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}");

    private final Vertx vertx;
    private final HttpServer prefill;
    private final HttpServer decode;

    private StubInstances(Vertx vertx, HttpServer prefill, HttpServer decode) {
        this.vertx = vertx;
        this.prefill = prefill;
        this.decode = decode;
    }

    /** @throws IOException if a port cannot be had */
    static StubInstances start(Vertx vertx) throws IOException, InterruptedException {
        HttpServer prefill = await(vertx.createHttpServer()
                .requestHandler(request -> serve(request, StubInstances::prefill))
                .listen(0, HOST));
        HttpServer decode = await(vertx.createHttpServer()
                .requestHandler(request -> serve(request, (response, body) -> decode(vertx, response, body)))
                .listen(0, HOST));
        return new StubInstances(vertx, prefill, decode);
    }

    static <T> T await(Future<T> future) throws IOException, InterruptedException {
        try {
            return future.toCompletionStage().toCompletableFuture().get(DEADLINE.toMillis(), TimeUnit.MILLISECONDS);
        } catch (java.util.concurrent.ExecutionException | TimeoutException e) {
            throw new IOException("stub instances: " + e, e);
        }
    }

    int prefillPort() {
        return prefill.actualPort();
    }

    int decodePort() {
        return decode.actualPort();
    }

    String prefillUrl() {
        return "http://" + HOST + ":" + prefillPort();
    }

    String decodeUrl() {
        return "http://" + HOST + ":" + decodePort();
    }

    private interface Answer {
        void send(HttpServerResponse response, Buffer body);
    }

    private static void serve(HttpServerRequest request, Answer answer) {
        if (request.method().equals(HttpMethod.POST)) {
            var _ = request.body().onSuccess(body -> answer.send(request.response(), body));
        } else {
            var _ = request.response()
                    .setStatusCode(request.path().equals("/health") ? 200 : 404)
                    .end();
        }
    }

    private static void prefill(HttpServerResponse response, Buffer body) {
        var _ = response.putHeader("Content-Type", "application/json").end(PREFILLED);
    }

    private static void decode(Vertx vertx, HttpServerResponse response, Buffer body) {
        JsonObject json = body.toJsonObject();
        String prompt = json.getString("prompt");
        int slash = prompt.indexOf('/');
        String name = prompt.substring(0, slash);
        long millis = Long.parseLong(prompt.substring(slash + 1));
        int events = json.getInteger("max_tokens");
        response.setChunked(true).putHeader("Content-Type", "text/event-stream");
        next(vertx, response, name, millis, 0, events);
    }

    private static void next(
            Vertx vertx, HttpServerResponse response, String name, long millis, int event, int events) {
        int at = event;
        while (at < events) {
            var _ = response.write(event(name, at++));
            if (millis > 0) {
                int then = at;
                var _ = vertx.setTimer(millis, _ -> next(vertx, response, name, millis, then, events));
                return;
            }
        }
        var _ = response.end("data: [DONE]\n\n");
    }

    private static String event(String name, int index) {
        return "data: {\"id\":\"cmpl-" + name
                + "\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"" + name + ":" + index
                + " \",\"finish_reason\":null}]}\n\n";
    }

    /** The body of a request. */
    static Buffer request(String name, int events, long millisBetween) {
        return new JsonObject()
                .put("model", "stub")
                .put("prompt", name + "/" + millisBetween)
                .put("max_tokens", events)
                .put("stream", true)
                .toBuffer();
    }

    /** All that decode answers to such a request. */
    static String answer(String name, int events) {
        StringBuilder text = new StringBuilder();
        for (int event = 0; event < events; event++) {
            text.append(event(name, event));
        }
        return text.append("data: [DONE]\n\n").toString();
    }

    @Override
    public void close() {
        var _ = vertx.close();
    }
}
