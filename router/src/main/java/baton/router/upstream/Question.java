package baton.router.upstream;

import baton.router.body.ReceivedBody;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A request to an instance of which the answer is taken as a whole. Confined to one event loop.
 *
 * @param deadline for the whole answer
 * @param mostBytes of the answer
 */
public record Question(HttpMethod method, String uri, MultiMap headers, Buffer body, Duration deadline, int mostBytes) {
    /** An answer of any status. */
    public record Answer(int status, MultiMap headers, ReceivedBody text) {
        /** The whole body; takes time in proportion to its length. */
        public Buffer body() {
            return text.join();
        }

        /** The beginning of the body, for an error. */
        public String quoted() {
            String all = body().toString();
            return all.substring(0, Math.min(all.length(), 300));
        }
    }

    /** Asks; the future fails with an {@link UpstreamFailure}. */
    public Future<Answer> ask(UpstreamClient upstream, Instance instance) {
        Promise<Answer> promise = Promise.promise();
        Leg _ = ask(upstream, instance, Optional.empty(), promise::complete, promise::fail);
        return promise.future();
    }

    /**
     * Asks; one of the two callbacks runs, unless the leg is aborted.
     *
     * @param counted receives the leg's end; empty for questions of the router itself
     */
    public Leg ask(
            UpstreamClient upstream,
            Instance instance,
            Optional<Instance.RunningRequest> counted,
            Consumer<Answer> answered,
            Consumer<UpstreamFailure> failed) {
        Leg.Receiver collected = new Leg.Receiver() {
            private final ReceivedBody text = new ReceivedBody(0);
            private @Nullable HttpClientResponse head;

            @Override
            public void onHead(Leg leg, HttpClientResponse answer) {
                head = answer;
            }

            @Override
            public void onChunk(Leg leg, Buffer chunk) {
                if (text.length() + chunk.length() > mostBytes) {
                    leg.fail(Kind.ANSWER, "its answer is longer than " + mostBytes + " bytes");
                } else {
                    text.append(chunk);
                }
            }

            @Override
            public void onEnd() {
                HttpClientResponse ended = Objects.requireNonNull(head, "an answer ended without its head");
                answered.accept(new Answer(ended.statusCode(), ended.headers(), text));
            }

            @Override
            public void onFailure(UpstreamFailure failure) {
                failed.accept(failure);
            }
        };
        Leg leg = new Leg(upstream, instance, collected, deadline, Leg.Bounds.WHOLE, counted);
        leg.send(method, uri, headers, body);
        return leg;
    }
}
