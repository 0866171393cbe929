package baton.router;

import baton.router.ShadowComparison.Verdict;
import baton.router.body.JsonObjectText;
import baton.router.flow.HandoffFlow;
import baton.router.upstream.Instance;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerRequest;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One request that is computed a second time, after its answer has ended and off its client's path: by the decode instance alone, with a cache salt of
 * its own, so that no loaded block is used. Confined to the request's event loop.
 */
final class ShadowRequest {
    private static final Logger log = LoggerFactory.getLogger(ShadowRequest.class);

    /** The longest answer to a client, in bytes. The second answer has log probabilities as well. */
    private static final int LONGEST_ANSWER = 256 << 10;

    private static final int LONGEST_SECOND = 8 << 20;

    private final ShadowRequests shadows;
    private final JsonObjectText body;
    private final boolean isChat;
    private final long since;
    private final Buffer answer = Buffer.buffer();
    private boolean tooLong;

    /** @param since when the request came */
    ShadowRequest(ShadowRequests shadows, JsonObjectText body, boolean isChat, long since) {
        this.shadows = shadows;
        this.body = body;
        this.isChat = isChat;
        this.since = since;
    }

    /** A part of the answer goes to the client. */
    void answered(Buffer part) {
        tooLong |= answer.length() + part.length() > LONGEST_ANSWER;
        if (!tooLong) {
            answer.appendBuffer(part);
        }
    }

    /**
     * The client has its answer: computes the request again.
     *
     * @param headers of the request's legs
     * @param id of the request
     * @param decode the instance that has answered
     */
    void start(
            RouterContext context,
            UpstreamClient upstream,
            HttpServerRequest request,
            MultiMap headers,
            String id,
            Instance decode) {
        if (tooLong || decode.isLeaving() || !decode.isUp()) {
            shadows.count(Verdict.SKIPPED);
            return;
        }
        if (!shadows.begin()) {
            return;
        }
        long began = context.reporting().ticker().nanos();
        MultiMap own = MultiMap.caseInsensitiveMultiMap()
                .addAll(headers)
                .set(Headers.REQUEST_ID, HandoffFlow.idWithEnd(id, "-shadow"));
        Question question = new Question(
                request.method(),
                Headers.target(request),
                own,
                alone(id),
                context.config().limits().prefill(),
                LONGEST_SECOND);
        question.ask(
                upstream,
                decode,
                Optional.of(decode.begin()),
                second -> {
                    long ended = context.reporting().ticker().nanos();
                    context.inFlight()
                            .worker()
                            .run((long) answer.length() + second.text().length(), () -> compare(second))
                            .onComplete(found -> report(id, decode, found, began - since, ended - began), cause -> {
                                log.warn(
                                        "{}: the second answer of {} cannot be read: {}", id, decode, cause.toString());
                                end(Verdict.FAILED);
                            });
                },
                failure -> {
                    log.warn("{}: {}", id, failure.describe());
                    end(Verdict.FAILED);
                });
    }

    private Buffer alone(String id) {
        JsonObjectText.Edit edit = body.edit()
                .drop("stream", "stream_options")
                .set("cache_salt", "\"shadow-" + id.replaceAll("[^\\w.-]", "_") + '"');
        if (isChat) {
            edit.set("logprobs", "true").set("top_logprobs", "2");
        } else {
            edit.set("logprobs", "2");
        }
        return edit.build();
    }

    private ShadowComparison compare(Question.Answer second) {
        if (second.status() != 200) {
            throw new IllegalStateException("HTTP " + second.status() + ": " + second.quoted());
        }
        return ShadowComparison.of(answer.toString(), second.body().toString());
    }

    private void report(String id, Instance decode, ShadowComparison found, long handedOver, long alone) {
        if (found.verdict() == Verdict.DIFFERENT) {
            // Not the texts: they are the client's.
            log.warn(
                    "{}: the answer at {} with keys and values from elsewhere is not that which it computes alone: they part after {} characters, where its best token is better than the second best by {}",
                    id,
                    decode,
                    found.equalCharacters(),
                    found.margin());
        }
        shadows.times(handedOver, alone);
        end(found.verdict());
    }

    private void end(Verdict verdict) {
        shadows.count(verdict);
        shadows.ended();
    }
}
