package baton.router;

import baton.router.body.SseFramer;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.upstream.Leg;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpHeaders;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Relays the decode leg's answer to the client, no faster than the client reads. */
final class DecodeRelay implements Leg.Receiver {

    /** The request of which this is the answer. */
    interface Request {
        /** Whether a decode instance is left that has not been tried. */
        boolean hasOtherDecode();

        /** Adds the router's own headers to the answer. */
        void addHeaders();

        /**
         * The leg failed before the client got anything.
         *
         * @param body of the leg
         */
        void failedBeforeFirstByte(UpstreamFailure failure, Buffer body);

        /** The leg failed after the client got a part of the answer. */
        void brokenOff(UpstreamFailure failure);

        /** The client reads no more. */
        void clientLeft();

        /** The request ends; its last bytes are sent after this. */
        void end(Outcome outcome);
    }

    private final Request request;
    private final Buffer body;
    private final Answer client;
    private final RequestReport report;
    private final long sent;
    private @Nullable HttpClientResponse head;
    private @Nullable SseFramer framer;

    /** Bytes of the answer until its declared length is reached; negative without a declared length. */
    private long undelivered = -1;

    /** The end of an answer of declared length: the client has all of it with these bytes, so they wait for the leg's end. */
    private @Nullable Buffer last;

    /** @param body of the leg */
    DecodeRelay(Request request, Buffer body, Answer client, RequestReport report) {
        this.request = request;
        this.body = body;
        this.client = client;
        this.report = report;
        this.sent = report.now();
    }

    @Override
    public void onHead(Leg leg, HttpClientResponse head) {
        this.head = head;
        // The instance is stopping or overloaded; another may take the request.
        if (head.statusCode() == 503 && request.hasOtherDecode()) {
            leg.fail(Kind.REFUSED, "HTTP 503");
            return;
        }
        String type = head.getHeader(HttpHeaders.CONTENT_TYPE);
        if (type != null && type.regionMatches(true, 0, "text/event-stream", 0, 17)) {
            framer = new SseFramer();
            return;
        }
        String length = head.getHeader(HttpHeaders.CONTENT_LENGTH);
        if (length != null && length.matches("\\d{1,18}")) {
            undelivered = Long.parseLong(length);
        }
    }

    @Override
    public void onChunk(Leg leg, Buffer chunk) {
        if (framer == null) {
            undelivered -= chunk.length();
            if (undelivered == 0) {
                last = chunk;
                return;
            }
            write(chunk);
        } else {
            writeEvents(framer.accept(chunk));
        }
        if (client.isFull()) {
            leg.pause();
            client.whenDrained(leg::resume);
        }
    }

    @Override
    public void onEnd() {
        if (framer != null) {
            write(framer.rest());
        }
        writeHead();
        report.decodeEnded(sent, client.status());
        Buffer rest = last == null ? Buffer.buffer() : last;
        report.tokens().answered(rest, false);
        report.sent(rest.length());
        request.end(client.status() < 500 ? Outcome.OK : Outcome.DECODE_FAILED);
        client.end(rest);
    }

    @Override
    public void onFailure(UpstreamFailure failure) {
        if (!report.hasFirstByte()) {
            request.failedBeforeFirstByte(failure, body);
            return;
        }
        request.brokenOff(failure);
        if (failure.kind() == Kind.CLIENT_STALLED) {
            request.clientLeft();
            client.reset();
            return;
        }
        request.end(Outcome.DECODE_BROKEN);
        if (framer == null) {
            client.reset();
        } else {
            if (framer.insideEvent()) {
                client.write(Buffer.buffer("\n\n"));
            }
            client.end(ApiError.upstream(failure.status(), failure.describe()).toEvent());
        }
    }

    /** One write for each event as long as the client keeps up, so that it can read them one by one; then one for the rest. */
    private void writeEvents(List<Buffer> events) {
        int next = 0;
        while (next < events.size() && !client.isFull()) {
            write(events.get(next++));
        }
        if (next < events.size()) {
            Buffer rest = Buffer.buffer();
            events.subList(next, events.size()).forEach(rest::appendBuffer);
            write(rest);
        }
    }

    private void write(Buffer chunk) {
        if (chunk.length() > 0) {
            writeHead();
            report.tokens().answered(chunk, framer != null);
            if (framer == null) {
                report.sent(chunk.length());
            } else {
                report.sentEvents(chunk.length());
            }
            client.write(chunk);
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
        request.addHeaders();
    }
}
