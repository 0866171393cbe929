package baton.router;

import baton.router.body.SseFramer;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.upstream.Instance;
import baton.router.upstream.Leg;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpHeaders;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Relays the decode leg's answer to the client, no faster than the client reads. */
final class DecodeRelay implements Leg.Receiver {
    /** Bytes of an instance's refusal. */
    private static final int MOST_QUOTED = 500;

    private final ProxiedRequest request;
    private final Answer client;
    private final RequestReport report;
    private final Optional<StreamPosition> position;
    /** That ends the leg of a stream that can continue elsewhere, once it has had tokens. */
    private final Optional<Duration> silence;

    private final long sent;
    /** Whether the client has the beginning of the stream from another instance. */
    private final boolean continues;

    private @Nullable HttpClientResponse head;
    /** Of a continuation: the instance that answers. */
    private @Nullable Instance refusing;

    private @Nullable SseFramer framer;

    /** Bytes of the answer until its declared length is reached; negative without a declared length. */
    private long undelivered = -1;

    /** The end of an answer of declared length: the client has all of it with these bytes, so they wait for the leg's end. */
    private @Nullable Buffer last;

    /** Events of this turn of the event loop, which the client gets at its end: one write for all costs as much as that of one. */
    private Buffer ready = Buffer.buffer();

    private int readyEvents;

    DecodeRelay(ProxiedRequest request) {
        this.request = request;
        this.client = request.client();
        this.report = request.report();
        this.position = request.position();
        this.silence = request.context().config().limits().continueAfter();
        this.sent = report.now();
        this.continues = position.isPresent() && report.hasFirstByte();
    }

    @Override
    public void onHead(Leg leg, HttpClientResponse head) {
        this.head = head;
        if (continues) {
            onHeadOfContinuation(leg, head);
            return;
        }
        // The instance is stopping or overloaded; another may take the request.
        if (head.statusCode() == 503 && request.hasOtherDecode()) {
            leg.fail(Kind.REFUSED, "HTTP 503");
            return;
        }
        if (isStream(head)) {
            framer = new SseFramer();
            position.ifPresent(stream -> stream.begin(head.headers()));
            return;
        }
        String length = head.getHeader(HttpHeaders.CONTENT_LENGTH);
        if (length != null && length.matches("\\d{1,18}")) {
            undelivered = Long.parseLong(length);
        }
    }

    private static boolean isStream(HttpClientResponse head) {
        String type = head.getHeader(HttpHeaders.CONTENT_TYPE);
        return type != null && type.regionMatches(true, 0, "text/event-stream", 0, 17);
    }

    private void onHeadOfContinuation(Leg leg, HttpClientResponse head) {
        refusing = leg.instance();
        if (head.statusCode() == 503) {
            leg.fail(Kind.REFUSED, "HTTP 503");
        } else if (head.statusCode() == 200
                && isStream(head)
                && position.filter(stream -> stream.resume(head.headers())).isPresent()) {
            framer = new SseFramer();
        }
    }

    @Override
    public void onChunk(Leg leg, Buffer chunk) {
        if (continues && framer == null) {
            String message =
                    chunk.slice(0, Math.min(chunk.length(), MOST_QUOTED)).toString();
            leg.fail(Kind.ANSWER, refusal() + ", " + message);
            return;
        }
        if (framer == null) {
            undelivered -= chunk.length();
            if (undelivered == 0) {
                last = chunk;
                return;
            }
            writeHead();
            count(chunk, 0);
            client.write(chunk);
            pauseIfFull(leg);
            return;
        }
        boolean isFirst = readyEvents == 0;
        complete(leg, framer.accept(chunk)).forEach(this::add);
        Optional<String> refused = position.flatMap(StreamPosition::refusal);
        if (refused.isPresent()) {
            leg.fail(Kind.ANSWER, "it cannot continue the stream: " + refused.get());
            return;
        }
        Optional<Kind> leaves = request.leaves();
        if (leaves.isPresent()) {
            leg.fail(leaves.get(), leaves.get() == Kind.LEAVING ? "it is drained" : "another instance has more room");
        } else if (isFirst && readyEvents > 0) {
            request.vertx().runOnContext(_ -> {
                if (writeReady()) {
                    pauseIfFull(leg);
                }
            });
        }
    }

    private void pauseIfFull(Leg leg) {
        if (client.isFull()) {
            leg.pause();
            client.whenDrained(leg::resume);
        }
    }

    /** The events with those held before, as far as the client may have them. */
    private List<Buffer> complete(Leg leg, List<Buffer> events) {
        if (position.isEmpty() || !position.get().isKnown() || events.isEmpty()) {
            return events;
        }
        StreamPosition stream = position.get();
        long before = stream.tokens();
        List<Buffer> complete = new ArrayList<>(events.size());
        events.forEach(event -> stream.accept(event, complete));
        if (continues && stream.refusal().isEmpty()) {
            request.continued();
        }
        if (stream.tokens() > before) {
            silence.ifPresent(leg::within);
        }
        return complete;
    }

    /** For a stream that has begun a silent instance is better than none. */
    @Override
    public boolean waitsOn(boolean isHung) {
        return report.hasFirstByte() ? !request.canContinueElsewhere() : !isHung;
    }

    private String refusal() {
        return "it cannot continue the stream: HTTP " + (head == null ? 0 : head.statusCode());
    }

    @Override
    public void onEnd() {
        if (framer == null && refusing != null) {
            request.streamBrokenOff(new UpstreamFailure(refusing, Kind.ANSWER, refusal()));
            return;
        }
        if (framer != null) {
            List<Buffer> held = new ArrayList<>();
            position.ifPresent(stream -> stream.release(held));
            held.forEach(this::add);
            add(framer.rest());
        }
        writeHead();
        report.decodeEnded(sent, client.status());
        Buffer rest = last == null ? ready : last;
        count(rest, readyEvents);
        readyEvents = 0;
        request.end(client.status() < 500 ? Outcome.OK : Outcome.DECODE_FAILED);
        client.end(rest);
    }

    @Override
    public void onFailure(UpstreamFailure failure) {
        if (!report.hasFirstByte()) {
            request.failedBeforeFirstByte(failure);
            return;
        }
        boolean _ = writeReady();
        // An event behind a part of another one would belong to that; a client drops the part at the connection's end.
        boolean insideEvent = framer != null && framer.insideEvent();
        if (failure.kind() != Kind.CLIENT_STALLED && (continues || framer != null) && !insideEvent) {
            position.ifPresent(StreamPosition::drop);
            request.streamBrokenOff(failure);
            return;
        }
        request.brokenOff(failure);
        if (failure.kind() == Kind.CLIENT_STALLED) {
            request.clientLeft();
        } else {
            request.end(Outcome.DECODE_BROKEN);
        }
        client.reset();
    }

    private void add(Buffer event) {
        if (event.length() > 0) {
            writeHead();
            ready.appendBuffer(event);
            readyEvents++;
        }
    }

    /** Returns false if there is nothing to write. */
    private boolean writeReady() {
        if (readyEvents == 0 || request.isEnded()) {
            return false;
        }
        count(ready, readyEvents);
        client.write(ready);
        ready = Buffer.buffer();
        readyEvents = 0;
        return true;
    }

    private void count(Buffer bytes, int events) {
        report.tokens().answered(bytes, events);
        request.answered(bytes);
        if (events > 0) {
            report.sentEvents(bytes.length(), events);
        } else {
            report.sent(bytes.length());
        }
    }

    private void writeHead() {
        if (report.hasFirstByte() || head == null) {
            return;
        }
        report.firstByte(sent, framer != null && head.statusCode() == 200);
        client.status(head.statusCode());
        Headers.toClient(head.headers(), client.headers());
        if (!client.headers().contains(HttpHeaders.CONTENT_LENGTH)) {
            client.chunked();
        }
        request.begins();
    }
}
