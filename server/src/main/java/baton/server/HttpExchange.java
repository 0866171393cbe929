package baton.server;

import baton.kv.Ticker;
import baton.kv.WebGuard;
import baton.trace.OtlpExporter;
import io.netty.handler.codec.DecoderException;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpConnection;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import io.vertx.core.http.HttpVersion;
import io.vertx.core.http.impl.HttpServerConnection;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One HTTP request and its answer. Confined to its event loop, except {@link #clientLeft()}. Answers once: later answers, and
 * answers after a disconnect, are dropped.
 */
sealed class HttpExchange permits GrpcExchange {
    private static final Logger LOG = LoggerFactory.getLogger(ApiServer.class);

    /** The access log's status of a request after its client disconnected before the end of the answer; nginx's convention. */
    static final int CLIENT_LEFT = 499;

    private static final Duration GO_AWAY = Duration.ofSeconds(1);

    private static final Pattern JSON_TYPE = Pattern.compile("application/([a-z0-9.-]+\\+)?json *(;.*)?");

    private final HttpServerRequest request;
    private final HttpServerResponse response;
    private final Context context;
    private final ReplyWriter writer;
    private final ServerConfig config;
    private final boolean warmsUp;
    private final Ticker ticker;
    private final long startNanos;
    private volatile boolean clientLeft;
    /** Whether the request has its line in the access log, or must have none. */
    private boolean logged;

    private String id = "-";
    private Optional<Runnable> whenClientLeaves = Optional.empty();
    private Optional<Runnable> whenOver = Optional.empty();

    /**
     * @param warmsUp whether the request is one of the warm-up
     * @param logged whether it may have a line in the access log
     */
    HttpExchange(
            HttpServerRequest request,
            Context context,
            ReplyWriter writer,
            ServerConfig config,
            boolean warmsUp,
            boolean logged,
            Ticker ticker) {
        this.ticker = ticker;
        this.startNanos = ticker.nanos();
        this.request = request;
        this.response = request.response();
        this.context = context;
        this.writer = writer;
        this.config = config;
        this.warmsUp = warmsUp;
        this.logged = !logged;
        response.closeHandler(_ -> left());
        // A broken connection is reported to these handlers too; the close handler handles it.
        response.exceptionHandler(
                failure -> LOG.debug("{}: connection failed: {}", request.path(), failure.toString()));
        request.exceptionHandler(failure -> {
            LOG.debug("{}: connection failed: {}", request.path(), failure.toString());
            // The connection is closed after this.
            if (failure instanceof NumberFormatException || failure instanceof DecoderException) {
                whenClientLeaves.ifPresent(Runnable::run);
                fail(ApiException.badRequest("the body's chunks are malformed: " + failure.getMessage()));
            }
        });
    }

    /**
     * The end of a body with an unknown encoding is unknown, so nothing more can be read from its connection.
     *
     * @throws ApiException if the body is encoded in another way than in chunks
     */
    void requireKnownEncoding() {
        List<String> encodings = request.headers().getAll("Transfer-Encoding");
        if (!encodings.isEmpty() && !String.join(",", encodings).strip().equalsIgnoreCase("chunked")) {
            // Closes the connection after the answer, and reads nothing until then.
            Future<Void> _ = request.connection().shutdown(1, TimeUnit.SECONDS);
            throw ApiException.notImplemented("Transfer-Encoding is '" + Json.shortened(String.join(", ", encodings))
                    + "', must be chunked or absent");
        }
    }

    /**
     * Goes on with the request if it is to be served. A browser's question about one of another origin is answered.
     *
     * @throws ApiException if it is malformed, or of a web page that may not use the server
     */
    void admit(WebGuard guard, Consumer<HttpExchange> next) {
        MultiMap headers = request.headers();
        WebGuard.Verdict verdict = guard.judge(new WebGuard.Request(
                request.method().name(),
                request.version() == HttpVersion.HTTP_1_1,
                headers.getAll("Host"),
                headers.getAll("Origin"),
                Optional.ofNullable(headers.get("Sec-Fetch-Site")),
                Optional.ofNullable(headers.get("Access-Control-Request-Method")),
                Optional.ofNullable(headers.get("Access-Control-Request-Headers"))));
        switch (verdict) {
            case WebGuard.Verdict.Admitted(Map<String, String> added) -> {
                added.forEach(response::putHeader);
                if (request.path() == null || !request.path().startsWith("/")) {
                    throw ApiException.badRequest("the request's target is '" + Json.shortened(request.uri())
                            + "', must begin with / or be a whole URL");
                }
                next.accept(this);
            }
            case WebGuard.Verdict.Preflight(Map<String, String> added) -> {
                added.forEach(response::putHeader);
                reply(200, "text/plain", Buffer.buffer());
            }
            case WebGuard.Verdict.Refused(int status, String message) ->
                throw status == 403 ? ApiException.forbidden(message) : ApiException.badRequest(message);
        }
    }

    /**
     * A web page may send other types to any server without asking it.
     *
     * @throws ApiException if the request is one of {@code POST} with another type, or with a body and none
     */
    void requireJson() {
        if (!request.method().equals(HttpMethod.POST)) {
            return;
        }
        String type = request.getHeader("Content-Type");
        boolean hasBody = request.headers().contains("Transfer-Encoding")
                || !Optional.ofNullable(request.getHeader("Content-Length"))
                        .orElse("0")
                        .equals("0");
        if (type == null
                ? hasBody
                : !JSON_TYPE.matcher(type.toLowerCase(Locale.ROOT)).matches()) {
            throw ApiException.unsupportedMediaType(
                    "Content-Type is '" + (type == null ? "" : Json.shortened(type)) + "', must be application/json");
        }
    }

    /** Sets the request's id in the log and in {@code X-Request-Id}. */
    void identify(String requestId) {
        id = requestId;
        response.putHeader("X-Request-Id", requestId);
    }

    HttpServerRequest request() {
        return request;
    }

    HttpServerResponse response() {
        return response;
    }

    /** Whether the request is one of the warm-up. */
    boolean warmsUp() {
        return warmsUp;
    }

    Context context() {
        return context;
    }

    /** Whether the client's connection is closed; any thread. */
    boolean clientLeft() {
        return clientLeft;
    }

    /** Runs {@code action} when the client disconnects before its answer is complete, or sends a malformed body. */
    void whenClientLeaves(Runnable action) {
        whenClientLeaves = Optional.of(action);
    }

    /** Takes the spans of requests. */
    Optional<OtlpExporter> spans() {
        return config.spans();
    }

    /** Nanoseconds since the request came. */
    long nanos() {
        return ticker.nanos() - startNanos;
    }

    double millis() {
        return nanos() / 1e6;
    }

    /** Answers; completes when the answer is written or cannot be. */
    Future<Void> reply(int status, String contentType, Buffer body) {
        if (clientLeft || response.ended()) {
            return Future.succeededFuture();
        }
        response.setStatusCode(status).putHeader("Content-Type", contentType);
        Future<Void> written = response.end(body);
        log(status, id, Optional.empty(), OptionalDouble.empty(), "-", Optional.empty());
        return written;
    }

    /** Answers with JSON, as {@link #reply}. */
    Future<Void> json(int status, Buffer body) {
        return reply(status, "application/json", body);
    }

    /** Answers with an error; an internal error is logged with its stack trace. */
    void fail(Throwable failure) {
        ApiException error = ApiException.of(failure);
        if (clientLeft || response.headWritten()) {
            LOG.debug("{} {}: no client to answer: {}", request.method(), request.path(), error.message());
            return;
        }
        if (!(failure instanceof ApiException) && error.status() >= 500 && error.status() != 503) {
            LOG.error("{} {} failed", request.method(), request.path(), failure);
        }
        error.retryAfterSeconds().ifPresent(seconds -> response.putHeader("Retry-After", Integer.toString(seconds)));
        log(
                error.status(),
                id,
                Optional.empty(),
                OptionalDouble.empty(),
                error.status() >= 500 && error.status() != 503 ? "error" : "refused",
                Optional.of(error.message()));
        refuse(error);
    }

    /** Writes an error answer. */
    void refuse(ApiException error) {
        json(error.status(), writer.error(error));
    }

    /** Answers with the whole of an {@link AnswerForm}, as {@link #reply}. */
    Future<Void> answer(Buffer whole) {
        return json(200, whole);
    }

    /** Sets the headers of a stream, or of a whole answer that is sent in parts. */
    void begin(boolean isStream) {
        response.setChunked(true)
                .putHeader("Content-Type", isStream ? "text/event-stream; charset=utf-8" : "application/json");
        if (isStream) {
            response.putHeader("Cache-Control", "no-cache");
        }
    }

    /** Ends a stream. */
    void end(Buffer last) {
        response.end(last);
    }

    /** Ends a stream that cannot be completed. */
    void breakOff(ApiException error, Buffer last) {
        response.end(last);
    }

    /** Whether the end of the answer is given to the connection. */
    boolean isAnswered() {
        return response.ended();
    }

    /** Runs {@code action} once, when nothing more can be written: after the answer's end, or when the client has left. */
    void whenOver(Runnable action) {
        whenOver = Optional.of(action);
        response.endHandler(_ -> over());
    }

    void over() {
        whenOver.ifPresent(Runnable::run);
        whenOver = Optional.empty();
    }

    /** Stops work on a request that has been answered. */
    final void drop() {
        clientLeft = true;
        whenClientLeaves.ifPresent(Runnable::run);
    }

    /** Closes the connection without writing pending bytes. */
    void reset() {
        reset(request.connection());
    }

    /** Closes a connection without requests. GOAWAY notifies a client of HTTP/2 that a call which it sends just now is not taken. */
    static void closeIdle(HttpConnection connection) {
        if (connection.protocolVersion() == HttpVersion.HTTP_2) {
            var _ = connection.shutdown(GO_AWAY).onComplete(_ -> reset(connection));
        } else {
            reset(connection);
        }
    }

    /** Closes a connection without writing pending bytes. */
    static void reset(HttpConnection connection) {
        if (connection instanceof HttpServerConnection server) {
            // Vert.x's close waits until all is written, which never happens if the client does not read.
            Object _ = server.channelHandlerContext().close();
        } else {
            connection.close();
        }
    }

    /** Writes the request's line to the access log, unless it has one. */
    void log(
            int status,
            String shownId,
            Optional<AccessLine.Tokens> tokens,
            OptionalDouble ttftMillis,
            String finish,
            Optional<String> error) {
        if (logged) {
            return;
        }
        logged = true;
        if (status >= 400 || !config.unloggedPaths().contains(request.path())) {
            config.accessLog()
                    .accept(new AccessLine(
                                    String.valueOf(request.remoteAddress()),
                                    request.method() + " " + Json.shortened(request.path()),
                                    status,
                                    shownId,
                                    tokens,
                                    ttftMillis,
                                    millis(),
                                    finish,
                                    error)
                            .toString());
        }
    }

    private void left() {
        if (!clientLeft && !isAnswered()) {
            clientLeft = true;
            whenClientLeaves.ifPresent(Runnable::run);
            log(CLIENT_LEFT, id, Optional.empty(), OptionalDouble.empty(), "client_left", Optional.empty());
        }
        over();
    }
}
