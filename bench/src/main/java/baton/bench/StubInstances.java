package baton.bench;

import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import io.vertx.core.json.JsonArray;
import io.vertx.core.json.JsonObject;
import java.io.IOException;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A prefill and a decode instance that compute nothing: prefill answers at once, decode streams as many events as {@code max_tokens}
 * says. The field {@code user} has the request's name and the time between its events: {@code NAME/MILLISECONDS}. A router that asks for token ids gets them in
 * comments, if they are to be sent, as from Baton's decode instances.
 */
record StubInstances(Vertx vertx, HttpServer prefill, HttpServer decode) implements AutoCloseable {
    private static final Duration DEADLINE = Duration.ofSeconds(10);
    private static final String HOST = "127.0.0.1";
    private static final String MODEL = "stub";

    private static final String TOKEN_IDS = "X-Baton-Token-Ids";

    /** The queries by which some routers find the model and others the load. */
    private static final Map<String, String> QUERIES = Map.of(
            "/health",
            "{}",
            "/v1/models",
            "{\"object\":\"list\",\"data\":[{\"id\":\"" + MODEL + "\",\"object\":\"model\"}]}",
            "/metrics",
            "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n");

    /**
     * @param tokenIds whether decode sends them to a router that asks for them
     * @throws IOException if a port cannot be had
     */
    static StubInstances start(Vertx vertx, boolean tokenIds) throws IOException, InterruptedException {
        HttpServer prefill = await(vertx.createHttpServer()
                .requestHandler(request -> serve(request, StubInstances::prefill))
                .listen(0, HOST));
        HttpServer decode = await(vertx.createHttpServer()
                .requestHandler(request -> serve(
                        request,
                        (response, body) -> decode(
                                vertx,
                                response,
                                body,
                                tokenIds && request.headers().contains(TOKEN_IDS))))
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
            String told = QUERIES.get(request.path());
            var _ = request.response().setStatusCode(told == null ? 404 : 200).end(told == null ? "" : told);
        }
    }

    private static void prefill(HttpServerResponse response, Buffer body) {
        JsonObject json = body.toJsonObject();
        int tokens = json.getString("prompt").split(" ").length;
        String ids = json.getBoolean("return_token_ids", false)
                ? ",\"prompt_token_ids\":" + new JsonArray(Collections.nCopies(tokens, 12_345))
                : "";
        var _ = response.putHeader("Content-Type", "application/json")
                .end(("{\"id\":\"cmpl\",\"object\":\"text_completion\",\"model\":\"stub\",\"kv_transfer_params\":"
                                + "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_engine_id\":\"stub\",\"remote_block_ids\":[1,2,3,4],"
                                + "\"remote_host\":\"127.0.0.1\",\"remote_port\":1,\"tp_size\":1},\"usage\":{\"prompt_tokens\":%1$d,\"completion_tokens\":1,"
                                + "\"total_tokens\":%1$d},\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"%2$s}]}")
                        .formatted(tokens, ids));
    }

    private static void decode(Vertx vertx, HttpServerResponse response, Buffer body, boolean tokenIds) {
        JsonObject json = body.toJsonObject();
        String user = json.getString("user");
        int slash = user.indexOf('/');
        String name = user.substring(0, slash);
        long millis = Long.parseLong(user.substring(slash + 1));
        int events = json.getInteger("max_tokens");
        response.setChunked(true).putHeader("Content-Type", "text/event-stream");
        if (tokenIds) {
            response.putHeader("X-Baton-Stream", "{\"id\":\"cmpl-" + name + "\",\"created\":1,\"seed\":1}");
        }
        next(vertx, response, name, millis, 0, events, tokenIds ? ":t 0 12345\n\n" : "");
    }

    private static void next(
            Vertx vertx, HttpServerResponse response, String name, long millis, int event, int events, String comment) {
        int at = event;
        while (at < events) {
            var _ = response.write(event(name, at++) + comment);
            if (millis > 0) {
                int then = at;
                var _ = vertx.setTimer(millis, _ -> next(vertx, response, name, millis, then, events, comment));
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

    /**
     * The body of a request.
     *
     * @param promptTokens words in the prompt
     */
    static Buffer request(String name, int events, long millisBetween, int promptTokens) {
        return new JsonObject()
                .put("model", MODEL)
                .put("prompt", "word ".repeat(promptTokens))
                .put("user", name + "/" + millisBetween)
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
