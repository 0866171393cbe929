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
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Relays the decode leg's answer to the client, no faster than the client reads. */
final class DecodeRelay implements Leg.Receiver {
    /** Bytes of an instance's refusal. */
    private static final int MOST_QUOTED = 500;

    /** An instance begins to continue an answer within so many times the silence after which an answer continues elsewhere. */
    private static final int BEGINS_WITHIN = 3;

    private final ProxiedRequest request;
    private final Answer client;
    private final RequestReport report;
    private final Optional<StreamPosition> position;
    private final long sent;

    /** Whether another instance has sent the beginning of the answer. */
    private final boolean continues;

    /** Whether the request asks for a whole answer, of which the client has nothing before its end unless it is long. */
    private final boolean isWhole;

    private @Nullable HttpClientResponse head;
    /** The instance that answers a continuation. */
    private @Nullable Instance refusing;

    private @Nullable SseFramer framer;
    private boolean sendsEvents;

    /** Bytes of the answer until its declared length is reached; negative without a declared length. */
    private long undelivered = -1;

    /** The end of an answer of declared length: the client has all of it with these bytes, so they wait for the leg's end. */
    private @Nullable Buffer last;

    /** Bytes of this turn of the event loop, which the client gets at its end: one write for all costs as much as that of one. */
    private Buffer ready = Buffer.buffer();

    /** The number of ready events of a stream. */
    private int readyEvents;

    /** How often the leg of a continuation was silent for too long. */
    private int silences;

    DecodeRelay(ProxiedRequest request) {
        this.request = request;
        this.client = request.client();
        this.report = request.report();
        this.position = request.continuation().map(StreamContinuation::position);
        this.isWhole = request.continuation().filter(each -> !each.isStream()).isPresent();
        this.sent = report.now();
        this.continues = position.isPresent() && request.hasBegun();
    }

    @Override
    public void onHead(Leg leg, HttpClientResponse head) {
        this.head = head;
        String type = head.getHeader(HttpHeaders.CONTENT_TYPE);
        sendsEvents = type != null && type.regionMatches(true, 0, "text/event-stream", 0, 17);
        boolean isFramed = sendsEvents || isWhole;
        int status = head.statusCode();
        // The instance is stopping or overloaded; another may take the request.
        if (status == 503 && (continues || request.hasOtherDecode())) {
            leg.fail(Kind.REFUSED, "HTTP 503");
        } else if (continues && !(status == 200 && isFramed && resumes(head))) {
            refusing = leg.instance();
        } else if (isFramed) {
            framer = new SseFramer();
            position.filter(_ -> !continues).ifPresent(answer -> answer.begin(head.headers()));
        } else {
            String length = head.getHeader(HttpHeaders.CONTENT_LENGTH);
            undelivered = length != null && length.matches("\\d{1,18}") ? Long.parseLong(length) : -1;
        }
    }

    /** Whether the answer is the rest of a stream, or a whole one, which has no token ids if it comes at once. */
    private boolean resumes(HttpClientResponse head) {
        return position.filter(answer -> answer.resume(head.headers())).isPresent() || isWhole;
    }

    @Override
    public void onChunk(Leg leg, Buffer chunk) {
        if (refusing != null) {
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
        boolean isFirst = ready.length() == 0;
        complete(framer.accept(chunk)).forEach(this::add);
        Optional<String> refused = position.flatMap(StreamPosition::refusal);
        if (refused.isPresent()) {
            leg.fail(Kind.ANSWER, "it cannot continue the stream: " + refused.get());
            return;
        }
        Optional<Kind> leaves = request.leaves();
        if (leaves.isPresent()) {
            leg.fail(leaves.get(), leaves.get() == Kind.LEAVING ? "it is drained" : "another instance has more room");
        } else if (isFirst && ready.length() > 0) {
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
    private List<Buffer> complete(List<Buffer> events) {
        if (position.isEmpty() || !position.get().isKnown() || events.isEmpty()) {
            return events;
        }
        StreamPosition answer = position.get();
        long before = answer.tokens();
        List<Buffer> complete = new ArrayList<>(events.size());
        events.forEach(event -> answer.accept(event, complete));
        boolean hasTokens = answer.tokens() > before;
        if (continues ? answer.refusal().isEmpty() : isWhole && hasTokens) {
            request.answering();
        }
        if (isWhole && before == 0 && hasTokens) {
            report.trace().step("first tokens of the whole answer");
        }
        return complete;
    }

    /** For an answer that has begun a silent instance is better than none. One that is to continue it may have to compute the prompt. */
    @Override
    public boolean waitsOn(boolean isHung) {
        if (!request.hasBegun()) {
            return !isHung;
        }
        boolean mayBegin = request.pause().isPresent() && !isHung && ++silences < BEGINS_WITHIN;
        return mayBegin || !request.canContinueElsewhere();
    }

    private String refusal() {
        return "it cannot continue the stream: HTTP " + (head == null ? 0 : head.statusCode());
    }

    @Override
    public void onEnd() {
        if (refusing != null) {
            request.streamBrokenOff(new UpstreamFailure(refusing, Kind.ANSWER, refusal()));
            return;
        }
        if (framer != null) {
            List<Buffer> held = new ArrayList<>();
            position.ifPresent(stream -> stream.release(held));
            held.forEach(this::add);
            Buffer end = framer.rest();
            if (!sendsEvents && ready.length() == 0 && !report.hasFirstByte()) {
                client.headers().set(HttpHeaders.CONTENT_LENGTH, Integer.toString(end.length()));
            }
            add(end);
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
        if (!request.hasBegun()) {
            request.failedBeforeFirstByte(failure);
            return;
        }
        boolean _ = writeReady();
        // An event behind a part of another one would belong to that; a client drops the part at the connection's end.
        boolean isPart = framer != null && sendsEvents ? framer.insideEvent() : isWhole && report.hasFirstByte();
        if (failure.kind() != Kind.CLIENT_STALLED && (continues || framer != null) && !isPart) {
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
            readyEvents += sendsEvents ? 1 : 0;
        }
    }

    /** Returns false if there is nothing to write. */
    private boolean writeReady() {
        if (ready.length() == 0 || request.isEnded()) {
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
        report.firstByte(sent, sendsEvents && head.statusCode() == 200);
        client.status(
                head.statusCode() == 200 ? position.map(StreamPosition::status).orElse(200) : head.statusCode());
        Headers.toClient(head.headers(), client.headers());
        if (!client.headers().contains(HttpHeaders.CONTENT_LENGTH)) {
            client.chunked();
        }
        request.begins();
    }
}
