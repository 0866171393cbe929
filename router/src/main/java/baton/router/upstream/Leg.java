package baton.router.upstream;

import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientRequest;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.RequestOptions;
import java.net.ConnectException;
import java.time.Duration;
import java.util.Locale;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * One request to one instance, under a deadline. Confined to one event loop, on which it is made and calls its receiver. After
 * {@link #abort()}, {@code onEnd} or {@code onFailure} the receiver is not called again.
 */
public final class Leg {

    /** Takes an answer piece by piece: {@code onHead}, {@code onChunk} any number of times, then {@code onEnd} or {@code onFailure}. */
    public interface Receiver {
        void onHead(Leg leg, HttpClientResponse head);

        void onChunk(Leg leg, Buffer chunk);

        void onEnd();

        void onFailure(UpstreamFailure failure);

        /**
         * Whether it waits on, up to the leg's own deadline, when there has been no piece for the time of {@link #within}.
         *
         * @param isHung whether the instance has answered no health probe for as long either
         */
        default boolean waitsOn(boolean isHung) {
            return !isHung;
        }
    }

    /** Which times a deadline bounds. */
    public enum Bounds {
        /** The time from sending to the answer's end. */
        WHOLE,
        /** The time to the first byte, and between bytes. */
        SILENCE
    }

    /** Bytes written at once: the socket's buffer is filled by copying, on the event loop. */
    private static final int SLICE = 256 << 10;

    private final UpstreamClient upstream;
    private final Instance instance;
    private final Receiver receiver;
    private final long deadlineNanos;
    /** As {@link #deadlineNanos}, while the receiver reads. */
    private long silenceNanos;

    private final Bounds bounds;
    private final Optional<Instance.RunningRequest> counted;

    private @Nullable HttpClientRequest request;
    private @Nullable HttpClientResponse response;
    /** Bytes of a body that is written in slices; 0 for others. */
    private int toWrite;

    private int written;
    private long since;
    private long timer;
    private boolean paused;
    private boolean over;

    /** @param counted receives the leg's end; empty for questions of the router itself */
    public Leg(
            UpstreamClient upstream,
            Instance instance,
            Receiver receiver,
            Duration deadline,
            Bounds bounds,
            Optional<Instance.RunningRequest> counted) {
        this.counted = counted;
        this.upstream = upstream;
        this.instance = instance;
        this.receiver = receiver;
        this.deadlineNanos = deadline.toNanos();
        this.silenceNanos = deadlineNanos;
        this.bounds = bounds;
    }

    /** Connects and sends the request. To be called once. */
    public void send(HttpMethod method, String uri, MultiMap headers, Buffer body) {
        since = upstream.ticker().nanos();
        arm(deadlineNanos);
        upstream.http()
                .send(
                        new RequestOptions()
                                .setHost(instance.host())
                                .setPort(instance.port())
                                .setSsl(instance.hasTls())
                                .setMethod(method)
                                .setURI(uri),
                        connected -> sendOn(connected, headers, body))
                .onComplete(this::receive, cause -> fail(request == null ? Kind.CONNECT : Kind.LOST, describe(cause)));
    }

    /** Called again for a request that goes again. */
    private Future<HttpClientResponse> sendOn(HttpClientRequest connected, MultiMap headers, Buffer body) {
        if (over) {
            connected.reset();
            return connected.response();
        }
        request = connected;
        connected.exceptionHandler(cause -> {
            if (response != null) {
                fail(Kind.LOST, describe(cause));
            }
        });
        connected.headers().addAll(headers);
        if (body.length() > SLICE) {
            connected.putHeader(HttpHeaders.CONTENT_LENGTH, Integer.toString(body.length()));
            toWrite = body.length();
            written = 0;
            writeSlices(connected, body);
            return connected.response();
        }
        return body.length() == 0 ? connected.send() : connected.send(body);
    }

    /** Writes the rest of the body, as fast as the instance reads. */
    private void writeSlices(HttpClientRequest connected, Buffer body) {
        while (!over && connected.equals(request) && written < body.length()) {
            if (connected.writeQueueFull()) {
                connected.drainHandler(drained -> writeSlices(connected, body));
                return;
            }
            int start = written;
            written = Math.min(body.length(), start + SLICE);
            if (written == body.length()) {
                connected.drainHandler(null);
                connected.end(body.slice(start, written));
            } else {
                connected.write(body.slice(start, written));
            }
        }
    }

    private void receive(HttpClientResponse head) {
        if (over) {
            return;
        }
        response = head;
        counted.ifPresent(each -> each.answered(head.statusCode()));
        active();
        head.exceptionHandler(cause -> fail(Kind.LOST, describe(cause)));
        head.handler(chunk -> {
            if (!over) {
                active();
                receiver.onChunk(this, chunk);
            }
        });
        head.endHandler(ended -> {
            if (!over) {
                counted.ifPresent(Instance.RunningRequest::succeeded);
                finish();
                if (written < toWrite) {
                    // Answered before it was all sent, such as a refusal: the connection cannot be used again.
                    head.request().reset();
                }
                receiver.onEnd();
            }
        });
        receiver.onHead(this, head);
    }

    /** Stops reading from the instance. The deadline then bounds the time until {@link #resume()}. */
    public void pause() {
        if (response != null && !over) {
            paused = true;
            active();
            response.pause();
        }
    }

    /** Reads on after {@link #pause()}. */
    public void resume() {
        if (response != null && !over && paused) {
            paused = false;
            active();
            response.resume();
            if (silenceNanos < deadlineNanos) {
                armAnew();
            }
        }
    }

    /** Limits the time between two pieces that the receiver waits for, from now on. The time for which it is paused keeps its deadline. */
    public void within(Duration silence) {
        if (!over && silence.toNanos() < silenceNanos) {
            silenceNanos = silence.toNanos();
            armAnew();
        }
    }

    private void armAnew() {
        upstream.vertx().cancelTimer(timer);
        arm(silenceNanos);
    }

    /** The instance that answers. */
    public Instance instance() {
        return instance;
    }

    /** Ends the leg now by closing its connection. */
    public void abort() {
        if (!over) {
            finish();
            if (request != null) {
                request.reset();
            }
        }
    }

    /** Ends the leg as {@link #abort()} does, and calls {@link Receiver#onFailure}. */
    public void fail(Kind kind, String reason) {
        fail(new UpstreamFailure(instance, kind, reason));
    }

    private void fail(UpstreamFailure failure) {
        if (!over) {
            abort();
            if (failure.kind() == Kind.LOST || failure.kind() == Kind.TIMEOUT) {
                counted.ifPresent(each -> each.failed(failure.reason()));
            }
            receiver.onFailure(failure);
        }
    }

    private void active() {
        if (bounds == Bounds.SILENCE) {
            since = upstream.ticker().nanos();
        }
    }

    private void finish() {
        over = true;
        upstream.vertx().cancelTimer(timer);
        counted.ifPresent(Instance.RunningRequest::run);
    }

    /** One timer per leg, set again for the rest of the deadline if bytes arrived in the meantime: cheaper than one per chunk. */
    private void arm(long nanos) {
        timer = upstream.vertx().setTimer(Math.max(1, nanos / 1_000_000), fired -> {
            long now = upstream.ticker().nanos();
            long silent = now - since;
            boolean isHung = instance.isHungSince(now - silenceNanos);
            boolean isSlow = !isHung && instance.isUp();
            boolean waitsOn = !paused
                    && silenceNanos < deadlineNanos
                    && silenceNanos - silent <= 1_000_000
                    && receiver.waitsOn(isHung);
            long deadline = paused || waitsOn ? deadlineNanos : silenceNanos;
            long left = deadline - silent;
            if (left > 1_000_000) {
                arm(waitsOn ? Math.min(left, silenceNanos) : left);
            } else if (paused) {
                fail(Kind.CLIENT_STALLED, "the client took no bytes for " + words(deadline));
            } else {
                String reason = bounds == Bounds.WHOLE || response == null
                        ? "no answer within " + words(deadline) + (isHung ? ", nor to health probes" : "")
                        : "no bytes for " + words(deadline);
                fail(new UpstreamFailure(instance, Kind.TIMEOUT, reason, isSlow));
            }
        });
    }

    private static String words(long nanos) {
        return Duration.ofNanos(nanos).toString().substring(2).toLowerCase(Locale.ROOT);
    }

    private static String describe(Throwable cause) {
        if (cause instanceof ConnectException && cause.getMessage() != null) {
            return cause.getMessage().toLowerCase(Locale.ROOT).contains("refused")
                    ? "connection refused"
                    : cause.getMessage();
        }
        String message = cause.getMessage();
        if (message == null) {
            return cause.getClass().getSimpleName();
        }
        // Of TLS the first message says only that there is no connection.
        return cause.getCause() == null
                ? message
                : message + ": " + cause.getCause().getMessage();
    }
}
