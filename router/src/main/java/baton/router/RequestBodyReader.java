package baton.router;

import baton.router.body.ReceivedBody;
import io.netty.handler.codec.DecoderException;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpServerRequest;
import java.time.Duration;
import java.util.function.Consumer;

/** Collects one request's body within the limits of size, time and memory. Confined to the request's event loop. */
final class RequestBodyReader {
    /** A body's first buffer, in bytes: the declared length alone reserves no more memory. */
    private static final int INITIAL_BODY = 64 << 10;

    private final Vertx vertx;
    private final RouterConfig.Limits limits;
    private final RouterContext.InFlight inFlight;
    private final HttpServerRequest request;
    private final Consumer<ReceivedBody> complete;
    private final Consumer<ApiError> refused;
    private ReceivedBody body;
    private boolean over;

    /**
     * @param complete takes the body; the request stays counted as running and its body's bytes as taken
     * @param refused takes the reason; the request and its bytes are counted off before
     */
    RequestBodyReader(
            Vertx vertx,
            RouterConfig.Limits limits,
            RouterContext.InFlight inFlight,
            HttpServerRequest request,
            Consumer<ReceivedBody> complete,
            Consumer<ApiError> refused) {
        this.vertx = vertx;
        this.limits = limits;
        this.inFlight = inFlight;
        this.request = request;
        this.complete = complete;
        this.refused = refused;
        this.body = new ReceivedBody((int) Math.min(declaredLength(request), INITIAL_BODY));
    }

    /** The declared length in bytes; the largest number if {@code Content-Length} is malformed. */
    static long declaredLength(HttpServerRequest request) {
        String length = request.getHeader(HttpHeaders.CONTENT_LENGTH);
        try {
            return length == null ? 0 : Long.parseLong(length.strip());
        } catch (NumberFormatException e) {
            return Long.MAX_VALUE;
        }
    }

    static ApiError tooLarge(int max) {
        return ApiError.of(413, "RequestTooLargeError", "the body is longer than " + max + " bytes, the most allowed");
    }

    /** Begins to read. The request is counted as running. */
    void read() {
        int max = limits.maxBodyBytes();
        Duration deadline = limits.idle();
        long timer = vertx.setTimer(
                deadline.toMillis(),
                late -> refuse(ApiError.of(
                        408,
                        "RequestTimeoutError",
                        "the body was not complete within " + deadline.toMillis() + " ms")));
        request.handler(chunk -> {
            if (!over && body.length() + chunk.length() > max) {
                vertx.cancelTimer(timer);
                refuse(tooLarge(max));
            } else if (!over && inFlight.bodies().take(chunk.length())) {
                body.append(chunk);
            } else if (!over) {
                vertx.cancelTimer(timer);
                request.response().putHeader("Retry-After", "1");
                refuse(ApiError.upstream(
                        503,
                        "overloaded: requests with " + inFlight.bodies().limit()
                                + " bytes are in flight, the most allowed"));
            }
        });
        request.endHandler(ended -> {
            vertx.cancelTimer(timer);
            if (!over) {
                over = true;
                ReceivedBody whole = body;
                // The connection keeps this reader until the answer has ended.
                body = new ReceivedBody(0);
                complete.accept(whole);
            }
        });
        request.exceptionHandler(cause -> {
            vertx.cancelTimer(timer);
            if (cause instanceof NumberFormatException || cause instanceof DecoderException) {
                // The connection is closed after this.
                refuse(ApiError.of(400, "BadRequestError", "the body's chunks are malformed: " + cause.getMessage()));
            } else if (!over) {
                drop();
            }
        });
    }

    private void refuse(ApiError error) {
        if (!over) {
            drop();
            refused.accept(error);
        }
    }

    private void drop() {
        over = true;
        inFlight.running().decrementAndGet();
        inFlight.bodies().giveBack(body.length());
        body = new ReceivedBody(0);
    }
}
