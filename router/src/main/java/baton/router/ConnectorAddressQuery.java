package baton.router;

import baton.kv.ConfigException;
import baton.router.RouterMetrics.AskedResult;
import baton.router.UpstreamFailure.Kind;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import java.time.Duration;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks a prefill instance at {@code /kv_transfer_params} for its {@link Instance#pushTarget}, so that already the first request is
 * sent on both legs at once. It is asked when it has come up, and then with each probe: another engine may have taken its
 * place without being seen to be away, and a bad answer may be followed by a good one. Only an instance that says that it has nothing to tell is
 * not asked again until it has been down. Nothing depends on an answer: a server that has no such path, or answers badly, is
 * learnt from its first answer to a request. Lives on one event loop.
 */
final class ConnectorAddressQuery {
    static final String PATH = "/kv_transfer_params";

    private static final Logger log = LoggerFactory.getLogger(ConnectorAddressQuery.class);
    private static final Duration MOST_PATIENCE = Duration.ofSeconds(2);
    private static final int MAX_ANSWER = 16 << 10;
    private static final int MAX_QUOTED = 300;

    private final Vertx vertx;
    private final HttpClient client;
    private final Instance instance;
    private final Duration deadline;
    private final MultiMap headers = MultiMap.caseInsensitiveMultiMap();
    private final RouterMetrics metrics;
    /** It has said so, and has not been down since. */
    private boolean hasNothingToTell;
    /** A bad answer is named once, until it tells or comes up again. */
    private boolean complained;

    /** @param apiKey the instance's, if it needs one */
    ConnectorAddressQuery(
            Vertx vertx,
            HttpClient client,
            Instance instance,
            Duration connect,
            Optional<String> apiKey,
            RouterMetrics metrics) {
        this.vertx = vertx;
        this.client = client;
        this.instance = instance;
        this.deadline = connect.compareTo(MOST_PATIENCE) < 0 ? connect : MOST_PATIENCE;
        this.metrics = metrics;
        apiKey.ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
    }

    /** The instance was down until now. */
    void cameUp() {
        hasNothingToTell = false;
        complained = false;
    }

    boolean isDue() {
        return !hasNothingToTell;
    }

    /** Asks; {@code done} runs unless the leg is aborted. */
    Leg ask(Runnable done) {
        Answer answer = new Answer(done);
        Leg leg = new Leg(vertx, instance, answer, deadline, Leg.Bounds.WHOLE);
        answer.leg = leg;
        leg.send(client, HttpMethod.GET, PATH, headers, Buffer.buffer());
        return leg;
    }

    private void told(String target) {
        complained = false;
        instance.learnPushTarget(target);
        metrics.asked(AskedResult.TOLD);
    }

    private void untold() {
        hasNothingToTell = true;
        // Another server may have taken the place of the one that this was about.
        instance.forgetPushTarget();
        metrics.asked(AskedResult.UNTOLD);
    }

    private void failed(String reason) {
        metrics.asked(AskedResult.FAILED);
        if (!complained) {
            complained = true;
            log.warn(
                    "{}: GET {}: {}; it is asked again with each probe, and an answer to a request will tell too",
                    instance,
                    PATH,
                    reason);
        }
    }

    private final class Answer implements Leg.Receiver {
        private final Runnable done;
        private final Buffer text = Buffer.buffer();
        private int status;
        private @Nullable Leg leg;

        Answer(Runnable done) {
            this.done = done;
        }

        @Override
        public void onHead(HttpClientResponse head) {
            status = head.statusCode();
        }

        @Override
        public void onChunk(Buffer chunk) {
            if (text.length() + chunk.length() <= MAX_ANSWER) {
                text.appendBuffer(chunk);
            } else if (leg != null) {
                leg.fail(Kind.ANSWER, "the answer is longer than " + MAX_ANSWER + " bytes");
            }
        }

        @Override
        public void onEnd() {
            try {
                switch (status) {
                    case 200 -> read();
                    case 404, 405, 501 -> untold();
                    case 401 -> failed("HTTP 401, it needs the router's API key");
                    default -> failed("HTTP " + status);
                }
            } finally {
                done.run();
            }
        }

        private void read() {
            try {
                Optional<byte[]> params =
                        JsonObjectText.parse("the answer", text.getBytes()).value(HandoffFlow.PARAMS);
                if (params.isEmpty()) {
                    untold();
                    return;
                }
                PushFlow.target(params.get())
                        .ifPresentOrElse(
                                ConnectorAddressQuery.this::told,
                                () -> failed(HandoffFlow.PARAMS
                                        + " must have remote_engine_id, remote_host and remote_port of a connector"));
            } catch (ConfigException e) {
                String reason = String.valueOf(e.getMessage());
                failed(reason.substring(0, Math.min(reason.length(), MAX_QUOTED)));
            }
        }

        @Override
        public void onFailure(UpstreamFailure failure) {
            failed(failure.reason());
            done.run();
        }
    }
}
