package baton.router;

import baton.router.UpstreamFailure.Kind;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientRequest;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.RequestOptions;
import java.net.ConnectException;
import java.time.Duration;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * One request to one instance, under a deadline. Lives on one event loop: made, used and called back there. After
 * {@link #abort()}, {@code onEnd} or {@code onFailure} the receiver hears nothing more.
 */
final class Leg {

    /** Takes an answer as it comes. */
    interface Receiver {
        void onHead(HttpClientResponse head);

        void onChunk(Buffer chunk);

        void onEnd();

        void onFailure(UpstreamFailure failure);
    }

    /** Which times a deadline bounds. */
    enum Bounds {
        /** From sending to the answer's end. */
        WHOLE,
        /** To the first byte, and between bytes. */
        SILENCE
    }

    private final Vertx vertx;
    private final Instance instance;
    private final Receiver receiver;
    private final long deadlineNanos;
    private final Bounds bounds;
    private final Runnable whenOver;

    private @Nullable HttpClientRequest request;
    private @Nullable HttpClientResponse response;
    private long since;
    private long timer;
    private boolean paused;
    private boolean over;

    Leg(Vertx vertx, Instance instance, Receiver receiver, Duration deadline, Bounds bounds) {
        this(vertx, instance, receiver, deadline, bounds, () -> {});
    }

    /** @param whenOver runs once, however it ends */
    Leg(Vertx vertx, Instance instance, Receiver receiver, Duration deadline, Bounds bounds, Runnable whenOver) {
        this.whenOver = whenOver;
        this.vertx = vertx;
        this.instance = instance;
        this.receiver = receiver;
        this.deadlineNanos = deadline.toNanos();
        this.bounds = bounds;
    }

    void send(HttpClient client, HttpMethod method, String uri, MultiMap headers, Buffer body) {
        since = System.nanoTime();
        arm(deadlineNanos);
        client.request(new RequestOptions()
                        .setHost(instance.host())
                        .setPort(instance.port())
                        .setMethod(method)
                        .setURI(uri))
                .onComplete(
                        connected -> {
                            if (over) {
                                connected.reset();
                            } else {
                                sendOn(connected, headers, body);
                            }
                        },
                        cause -> fail(Kind.CONNECT, describe(cause)));
    }

    private void sendOn(HttpClientRequest connected, MultiMap headers, Buffer body) {
        request = connected;
        connected.exceptionHandler(cause -> fail(Kind.LOST, describe(cause)));
        connected.headers().addAll(headers);
        (body.length() == 0 ? connected.send() : connected.send(body))
                .onComplete(this::receive, cause -> fail(Kind.LOST, describe(cause)));
    }

    private void receive(HttpClientResponse head) {
        if (over) {
            return;
        }
        response = head;
        active();
        head.exceptionHandler(cause -> fail(Kind.LOST, describe(cause)));
        head.handler(chunk -> {
            if (!over) {
                active();
                receiver.onChunk(chunk);
            }
        });
        head.endHandler(ended -> {
            if (!over) {
                finish();
                receiver.onEnd();
            }
        });
        receiver.onHead(head);
    }

    /** Stops reading from the instance, so that it comes to stop writing. The deadline now waits for {@link #resume()}. */
    void pause() {
        if (response != null && !over) {
            paused = true;
            active();
            response.pause();
        }
    }

    void resume() {
        if (response != null && !over && paused) {
            paused = false;
            active();
            response.resume();
        }
    }

    /** Ends the leg now: its connection is closed, whatever state it is in. */
    void abort() {
        if (!over) {
            finish();
            if (request != null) {
                request.reset();
            }
        }
    }

    /** As {@link #abort()}, but tells the receiver. */
    void fail(Kind kind, String reason) {
        if (!over) {
            abort();
            receiver.onFailure(new UpstreamFailure(instance, kind, reason));
        }
    }

    private void active() {
        if (bounds == Bounds.SILENCE) {
            since = System.nanoTime();
        }
    }

    private void finish() {
        over = true;
        vertx.cancelTimer(timer);
        whenOver.run();
    }

    /** One timer per leg, set again for what is left when bytes came meanwhile: cheaper than one per chunk. */
    private void arm(long nanos) {
        timer = vertx.setTimer(Math.max(1, nanos / 1_000_000), fired -> {
            long left = deadlineNanos - (System.nanoTime() - since);
            if (left > 1_000_000) {
                arm(left);
            } else if (paused) {
                fail(Kind.CLIENT_STALLED, "the client took no bytes for " + deadline());
            } else if (bounds == Bounds.WHOLE || response == null) {
                fail(Kind.TIMEOUT, "no answer within " + deadline());
            } else {
                fail(Kind.TIMEOUT, "no bytes for " + deadline());
            }
        });
    }

    private String deadline() {
        return Duration.ofNanos(deadlineNanos).toString().substring(2).toLowerCase(Locale.ROOT);
    }

    private static String describe(Throwable cause) {
        if (cause instanceof ConnectException && cause.getMessage() != null) {
            return cause.getMessage().toLowerCase(Locale.ROOT).contains("refused")
                    ? "connection refused"
                    : cause.getMessage();
        }
        String message = cause.getMessage();
        return message == null ? cause.getClass().getSimpleName() : message;
    }
}
