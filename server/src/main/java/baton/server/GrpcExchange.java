package baton.server;

import baton.kv.Ticker;
import baton.server.grpc.ProtoWriter;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpVersion;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * One call of gRPC and its answer: messages with a length in front, as gRPC's "PROTOCOL-HTTP2" says, and a status in the trailers of a
 * stream of HTTP/2.
 */
final class GrpcExchange extends HttpExchange {
    private static final String TYPE = "application/grpc";
    private static final Pattern TIMEOUT = Pattern.compile("([0-9]{1,8})([HMSmun])");
    private static final int PREFIX_BYTES = 5;
    private static final long CANCEL = 8;

    private final Vertx vertx;
    private OptionalLong timer = OptionalLong.empty();
    private boolean answered;

    GrpcExchange(
            HttpServerRequest request,
            Context context,
            ReplyWriter writer,
            ServerConfig config,
            Ticker ticker,
            Vertx vertx) {
        super(request, context, writer, config, false, true, ticker);
        this.vertx = vertx;
    }

    /** A message as it is sent. */
    static Buffer frame(ProtoWriter message) {
        byte[] bytes = message.toBytes();
        return Buffer.buffer(PREFIX_BYTES + bytes.length)
                .appendByte((byte) 0)
                .appendInt(bytes.length)
                .appendBytes(bytes);
    }

    /**
     * The one message of a call's body.
     *
     * @throws ApiException if there is none, or more, or if it is compressed
     */
    static byte[] message(Buffer body) {
        if (body.length() < PREFIX_BYTES || body.getUnsignedInt(1) != body.length() - PREFIX_BYTES) {
            throw ApiException.badRequest("a call must have one message with its length in front of it, this one has "
                    + body.length() + " bytes");
        }
        if (body.getByte(0) != 0) {
            throw ApiException.notImplemented("the message is compressed, must be sent as it is");
        }
        return body.getBytes(PREFIX_BYTES, body.length());
    }

    /**
     * Begins the call's deadline, if it has one.
     *
     * @throws ApiException if the request is not a call of gRPC
     */
    void admitCall() {
        if (!isCall()) {
            throw ApiException.unsupportedMediaType("this port takes gRPC only: HTTP/2 with the Content-Type " + TYPE
                    + "; the request is " + request().version() + " with '" + Json.shortened(type()) + "'");
        }
        Optional.ofNullable(request().getHeader("grpc-timeout")).ifPresent(this::beginDeadline);
    }

    private boolean isCall() {
        String type = type();
        return request().version() == HttpVersion.HTTP_2
                && (type.equals(TYPE) || type.startsWith(TYPE + "+proto") || type.startsWith(TYPE + ";"));
    }

    private String type() {
        return Optional.ofNullable(request().getHeader("Content-Type")).orElse("");
    }

    private void beginDeadline(String timeout) {
        Matcher matcher = TIMEOUT.matcher(timeout);
        if (!matcher.matches()) {
            throw ApiException.badField(
                    "grpc-timeout",
                    "is '" + Json.shortened(timeout) + "', must be 1 to 8 digits and one of H M S m u n");
        }
        TimeUnit unit = switch (matcher.group(2)) {
            case "H" -> TimeUnit.HOURS;
            case "M" -> TimeUnit.MINUTES;
            case "S" -> TimeUnit.SECONDS;
            case "m" -> TimeUnit.MILLISECONDS;
            case "u" -> TimeUnit.MICROSECONDS;
            default -> TimeUnit.NANOSECONDS;
        };
        long millis = Math.max(1, unit.toMillis(Long.parseLong(matcher.group(1))));
        timer = OptionalLong.of(vertx.setTimer(millis, _ -> expire("the call's deadline of " + timeout + " is over")));
    }

    private void expire(String why) {
        ApiException error = ApiException.timeout(why);
        if (clientLeft() || response().ended()) {
            return;
        }
        if (response().headWritten()) {
            breakOff(error, Buffer.buffer());
        } else {
            fail(error);
        }
        drop();
    }

    @Override
    void over() {
        timer.ifPresent(vertx::cancelTimer);
        super.over();
    }

    @Override
    void begin(boolean isStream) {
        response().putHeader("Content-Type", TYPE);
    }

    @Override
    Future<Void> answer(Buffer whole) {
        if (clientLeft() || response().ended()) {
            return Future.succeededFuture();
        }
        begin(false);
        return close(0, "", whole);
    }

    @Override
    void end(Buffer last) {
        close(0, "", last);
    }

    @Override
    void breakOff(ApiException error, Buffer last) {
        close(status(error.status()), error.message(), last);
    }

    /** With a status of HTTP if the request is no call: its client knows no other. */
    @Override
    void refuse(ApiException error) {
        if (!isCall()) {
            super.refuse(error);
            return;
        }
        begin(false);
        close(status(error.status()), error.message(), Buffer.buffer());
    }

    /** Ends this call, not those that share its connection. */
    @Override
    void reset() {
        response().reset(CANCEL);
    }

    /** Of a stream of HTTP/2 the end is known to the response only after its trailers. */
    @Override
    boolean isAnswered() {
        return answered || super.isAnswered();
    }

    private Future<Void> close(int status, String message, Buffer last) {
        answered = true;
        response().putTrailer("grpc-status", Integer.toString(status));
        if (!message.isEmpty()) {
            response().putTrailer("grpc-message", percentEncoded(message));
        }
        return response().end(last);
    }

    /** The status of gRPC that says the same as one of HTTP. */
    private static int status(int http) {
        return switch (http) {
            case 400 -> 3; // INVALID_ARGUMENT
            case 401 -> 16; // UNAUTHENTICATED
            case 403 -> 7; // PERMISSION_DENIED
            case 404 -> 5; // NOT_FOUND
            case 408 -> 4; // DEADLINE_EXCEEDED
            case 409 -> 9; // FAILED_PRECONDITION
            case 413 -> 8; // RESOURCE_EXHAUSTED
            case 415, 501 -> 12; // UNIMPLEMENTED
            case 503 -> 14; // UNAVAILABLE
            default -> 13; // INTERNAL
        };
    }

    private static String percentEncoded(String message) {
        StringBuilder encoded = new StringBuilder();
        for (byte next : message.getBytes(StandardCharsets.UTF_8)) {
            if (next >= ' ' && next <= '~' && next != '%') {
                encoded.append((char) next);
            } else {
                encoded.append(String.format(Locale.ROOT, "%%%02X", next));
            }
        }
        return encoded.toString();
    }
}
