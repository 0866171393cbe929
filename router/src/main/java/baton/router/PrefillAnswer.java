package baton.router;

import baton.router.body.JsonObjectText;
import baton.router.body.ReceivedBody;
import baton.router.trace.RequestTrace;
import baton.router.upstream.Instance;
import baton.router.upstream.Leg;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Receives the prefill leg's answer as a whole: the prompt's cache is complete only then. */
final class PrefillAnswer implements Leg.Receiver {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final int MAX_QUOTED_ERROR = 300;
    private static final int MOST_USAGE_BYTES = 4096;

    private final Instance instance;
    private final int maxBytes;
    private final BodyWorker worker;
    private final RequestReport report;
    private final ReceivedBody text = new ReceivedBody(0);
    private final Promise<JsonObjectText> answer = Promise.promise();
    private final long sent;
    private @Nullable HttpClientResponse head;

    /** A 4xx of the prefill leg, which no other instance would answer differently. */
    static final class Rejection extends Exception {
        final int status;
        final transient MultiMap headers;
        final transient Buffer body;

        Rejection(int status, MultiMap headers, Buffer body) {
            super("status " + status, null, false, false);
            this.status = status;
            this.headers = headers;
            this.body = body;
        }
    }

    PrefillAnswer(Instance instance, int maxBytes, BodyWorker worker, RequestReport report) {
        this.instance = instance;
        this.maxBytes = maxBytes;
        this.worker = worker;
        this.report = report;
        this.sent = report.now();
    }

    /** Fails with {@link Rejection} or {@link UpstreamFailure}; never completes if the leg is aborted. */
    Future<JsonObjectText> future() {
        return answer.future();
    }

    @Override
    public void onHead(Leg leg, HttpClientResponse head) {
        this.head = head;
    }

    @Override
    public void onChunk(Leg leg, Buffer chunk) {
        if (text.length() + chunk.length() > maxBytes) {
            leg.fail(Kind.ANSWER, "its answer is longer than " + maxBytes + " bytes");
        } else {
            text.append(chunk);
        }
    }

    @Override
    public void onEnd() {
        if (head == null) {
            throw new IllegalStateException("an answer ended without its head");
        }
        int status = head.statusCode();
        report.prefillEnded(sent, status);
        // 508: a leg to another instance would end in the same cycle of routers.
        if ((status >= 400 && status < 500) || status == 508) {
            answer.fail(new Rejection(status, head.headers(), text.join()));
        } else if (status != 200) {
            worker.run(text.length(), this::quotedError)
                    .otherwise("")
                    .onSuccess(quoted ->
                            answer.fail(new UpstreamFailure(instance, Kind.ANSWER, "HTTP " + status + quoted)));
        } else {
            worker.run(
                            text.length(),
                            () -> JsonObjectText.parse("its answer", text.join().getBytes()))
                    .onComplete(
                            parsed -> {
                                promptTokens(parsed).ifPresent(tokens -> {
                                    report.trace().promptTokens(RequestTrace.PREFILL, tokens);
                                    report.tokens().promptTokens(tokens.all());
                                });
                                answer.complete(parsed);
                            },
                            cause -> answer.fail(
                                    new UpstreamFailure(instance, Kind.ANSWER, String.valueOf(cause.getMessage()))));
        }
    }

    @Override
    public void onFailure(UpstreamFailure failure) {
        answer.fail(failure);
    }

    /** How many tokens the prompt has, as OpenAI's field {@code usage} tells it. */
    private static Optional<RequestTrace.PromptTokens> promptTokens(JsonObjectText answer) {
        return answer.value("usage")
                .filter(usage -> usage.length <= MOST_USAGE_BYTES)
                .flatMap(usage -> {
                    JsonNode tokens = MAPPER.readTree(usage);
                    JsonNode all = tokens.path("prompt_tokens");
                    int cached = tokens.path("prompt_tokens_details")
                            .path("cached_tokens")
                            .asInt(0);
                    return all.isInt()
                            ? Optional.of(new RequestTrace.PromptTokens(all.asInt(), cached))
                            : Optional.empty();
                });
    }

    /** The message of the instance's error, if there is one. */
    private String quotedError() {
        try {
            String message = MAPPER.readTree(text.join().getBytes())
                    .path("error")
                    .path("message")
                    .asString("");
            return message.isEmpty() ? "" : ": " + message.substring(0, Math.min(message.length(), MAX_QUOTED_ERROR));
        } catch (JacksonException e) {
            return "";
        }
    }
}
