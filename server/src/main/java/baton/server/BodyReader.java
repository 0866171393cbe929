package baton.server;

import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerRequest;
import java.util.function.Consumer;

/** Collects a request's body, within the limits of size, time and memory. Confined to the event loop. */
final class BodyReader {
    /** A growing buffer has room for up to twice its content. */
    private static final int BYTES_PER_BYTE = 2;

    private final HttpExchange exchange;
    private final Preparation preparation;
    private final int maxBytes;
    private Buffer body = Buffer.buffer();

    private BodyReader(HttpExchange exchange, Preparation preparation, int maxBytes) {
        this.exchange = exchange;
        this.preparation = preparation;
        this.maxBytes = maxBytes;
    }

    /**
     * Calls {@code next} with the body when it is complete; the preparation then holds the body's memory. Answers with an error otherwise.
     */
    static void read(
            HttpExchange exchange, Preparation preparation, ServerConfig config, Vertx vertx, Consumer<Buffer> next) {
        HttpServerRequest request = exchange.request();
        BodyReader reader = new BodyReader(exchange, preparation, config.maxBodyBytes());
        String length = request.getHeader("Content-Length");
        if (length != null && isMoreThan(length, config.maxBodyBytes())) {
            exchange.fail(reader.tooLarge("has " + Json.shortened(length) + " bytes"));
        }
        // Also ends the reading of a refused body.
        long timer = vertx.setTimer(config.bodyTimeout().toMillis(), _ -> {
            reader.refuse(ApiException.timeout("the body did not arrive within " + config.bodyTimeout()));
            exchange.reset();
        });
        exchange.whenClientLeaves(() -> {
            vertx.cancelTimer(timer);
            reader.drop();
        });
        request.handler(reader::take);
        request.endHandler(_ -> {
            vertx.cancelTimer(timer);
            // From here on the preparing thread releases the memory held.
            exchange.whenClientLeaves(() -> {});
            if (exchange.response().ended()) {
                return;
            }
            next.accept(reader.body);
        });
    }

    private void take(Buffer part) {
        if (exchange.response().ended()) {
            return;
        }
        if (body.length() + part.length() > maxBytes) {
            refuse(tooLarge("has more"));
            return;
        }
        try {
            preparation.reserve((long) BYTES_PER_BYTE * part.length());
            body.appendBuffer(part);
        } catch (ApiException e) {
            refuse(e);
        }
    }

    private void refuse(ApiException why) {
        drop();
        exchange.fail(why);
    }

    private void drop() {
        body = Buffer.buffer();
        preparation.release();
    }

    private ApiException tooLarge(String found) {
        return ApiException.tooLarge("a request body may have " + maxBytes + " bytes, this one " + found);
    }

    private static boolean isMoreThan(String length, long limit) {
        try {
            return Long.parseLong(length) > limit;
        } catch (NumberFormatException _) {
            return true;
        }
    }
}
