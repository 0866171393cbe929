package baton.router.upstream;

import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import java.time.Duration;
import java.util.function.Consumer;

/**
 * A question of the router itself to an instance. Confined to one event loop.
 *
 * @param deadline for the whole answer
 * @param mostBytes of the answer
 */
public record Question(HttpMethod method, String uri, MultiMap headers, Buffer body, Duration deadline, int mostBytes) {
    /** An answer of any status. */
    public record Answer(int status, Buffer body) {}

    /** Asks; the future fails with an {@link UpstreamFailure}. */
    public Future<Answer> ask(UpstreamClient upstream, Instance instance) {
        Promise<Answer> promise = Promise.promise();
        Leg _ = ask(upstream, instance, promise::complete, promise::fail);
        return promise.future();
    }

    /** Asks; one of the two callbacks runs, unless the leg is aborted. */
    Leg ask(UpstreamClient upstream, Instance instance, Consumer<Answer> answered, Consumer<UpstreamFailure> failed) {
        Leg leg = new Leg(upstream, instance, new Collected(mostBytes, answered, failed), deadline, Leg.Bounds.WHOLE);
        leg.send(method, uri, headers, body);
        return leg;
    }

    private static final class Collected implements Leg.Receiver {
        private final int mostBytes;
        private final Buffer text = Buffer.buffer();
        private final Consumer<Answer> answered;
        private final Consumer<UpstreamFailure> failed;
        private int status;

        private Collected(int mostBytes, Consumer<Answer> answered, Consumer<UpstreamFailure> failed) {
            this.mostBytes = mostBytes;
            this.answered = answered;
            this.failed = failed;
        }

        @Override
        public void onHead(Leg leg, HttpClientResponse head) {
            status = head.statusCode();
        }

        @Override
        public void onChunk(Leg leg, Buffer chunk) {
            if (text.length() + chunk.length() > mostBytes) {
                leg.fail(Kind.ANSWER, "the answer is longer than " + mostBytes + " bytes");
            } else {
                text.appendBuffer(chunk);
            }
        }

        @Override
        public void onEnd() {
            answered.accept(new Answer(status, text));
        }

        @Override
        public void onFailure(UpstreamFailure failure) {
            failed.accept(failure);
        }
    }
}
