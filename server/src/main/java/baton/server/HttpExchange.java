package baton.server;

import io.netty.handler.codec.DecoderException;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpConnection;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import io.vertx.core.http.impl.HttpServerConnection;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One HTTP request and its answer. Confined to its event loop, save for {@link #clientLeft()}. Answers once: what comes
 * after an answer or after the client has left is dropped.
 */
final class HttpExchange {
    private static final Logger LOG = LoggerFactory.getLogger(ApiServer.class);

    /** What the access log says when a client leaves before its answer is complete; nginx's convention. */
    static final int CLIENT_LEFT = 499;

    private final HttpServerRequest request;
    private final HttpServerResponse response;
    private final Context context;
    private final ReplyWriter writer;
    private final ServerConfig config;
    private final boolean warmsUp;
    private final long startNanos = System.nanoTime();
    private volatile boolean clientLeft;
    /** It has its line, or is to have none. */
    private boolean logged;

    private String id = "-";
    private Optional<Runnable> whenClientLeaves = Optional.empty();

    /**
     * @param warmsUp the request is the server's own
     * @param logged whether it may have a line in the access log
     */
    HttpExchange(
            HttpServerRequest request,
            Context context,
            ReplyWriter writer,
            ServerConfig config,
            boolean warmsUp,
            boolean logged) {
        this.request = request;
        this.response = request.response();
        this.context = context;
        this.writer = writer;
        this.config = config;
        this.warmsUp = warmsUp;
        this.logged = !logged;
        response.closeHandler(_ -> left());
        // Both sides report a broken connection; it is the close handler that acts.
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
     * Where a body ends that is encoded in an unknown way is not known, so nothing more can be read from its connection.
     *
     * @throws ApiException if the body is encoded in another way than in chunks
     */
    void requireKnownEncoding() {
        List<String> encodings = request.headers().getAll("Transfer-Encoding");
        if (!encodings.isEmpty() && !String.join(",", encodings).strip().equalsIgnoreCase("chunked")) {
            // Closes it after the answer, and reads nothing until then.
            Future<Void> _ = request.connection().shutdown(1, TimeUnit.SECONDS);
            throw ApiException.notImplemented("Transfer-Encoding is '" + Json.shortened(String.join(", ", encodings))
                    + "', must be chunked or absent");
        }
    }

    /** What the log calls the request, and what its client finds in {@code X-Request-Id}. */
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

    /** True of those requests that the server sends itself. */
    boolean warmsUp() {
        return warmsUp;
    }

    Context context() {
        return context;
    }

    /** True once the client's connection is gone; from any thread. */
    boolean clientLeft() {
        return clientLeft;
    }

    /** Runs {@code action} when the client goes before its answer is complete, or breaks its body. */
    void whenClientLeaves(Runnable action) {
        whenClientLeaves = Optional.of(action);
    }

    double millis() {
        return (System.nanoTime() - startNanos) / 1e6;
    }

    /** Completes when the client has all of it, or never will. */
    Future<Void> reply(int status, String contentType, Buffer body) {
        if (clientLeft || response.ended()) {
            return Future.succeededFuture();
        }
        response.setStatusCode(status).putHeader("Content-Type", contentType);
        Future<Void> written = response.end(body);
        log(status, id, Optional.empty(), OptionalDouble.empty(), "-", Optional.empty());
        return written;
    }

    /** As {@link #reply}. */
    Future<Void> json(int status, Buffer body) {
        return reply(status, "application/json", body);
    }

    /** Answers with an error; one that is nobody's fault is logged with its origin. */
    void fail(Throwable failure) {
        ApiException error = ApiException.of(failure);
        if (clientLeft || response.headWritten()) {
            LOG.debug("{} {}: nobody to tell: {}", request.method(), request.path(), error.message());
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
        json(error.status(), writer.error(error));
    }

    /** Breaks the connection off, whatever is still to be written. */
    void reset() {
        reset(request.connection());
    }

    /** Breaks a connection off. */
    static void reset(HttpConnection connection) {
        if (connection instanceof HttpServerConnection server) {
            // Vert.x's own close waits until all is written, which a client that does not read can put off for ever.
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
        if (!clientLeft && !response.ended()) {
            clientLeft = true;
            whenClientLeaves.ifPresent(Runnable::run);
            log(CLIENT_LEFT, id, Optional.empty(), OptionalDouble.empty(), "client_left", Optional.empty());
        }
    }
}
