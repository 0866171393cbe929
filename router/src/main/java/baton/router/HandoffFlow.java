package baton.router;

import baton.kv.ConfigException;
import io.vertx.core.Future;
import io.vertx.core.buffer.Buffer;
import java.util.function.Function;

/**
 * How the prefill and the decode leg of a request are tied together. One implementation per kind of connector; each only says
 * what the legs are told and what the decode leg waits for. Choosing instances, sending, retrying and streaming are the same for all.
 */
sealed interface HandoffFlow permits ContentKeyedFlow, KvTransferParamsFlow, PushFlow, P2pFlow {

    /** The field that leads connectors to each other. */
    String PARAMS = "kv_transfer_params";

    /** The value of {@code --flow}. */
    String name();

    /** Whether this flow can send legs to an instance. */
    default boolean takes(Instance instance) {
        return true;
    }

    /** Whether this flow needs {@link Instance#pushTarget} of an instance. */
    default boolean asks(Instance instance) {
        return false;
    }

    /** {@code X-Request-Id} of a decode leg without a prefill leg. */
    default String idWithoutHandoff(String requestId) {
        return requestId;
    }

    /**
     * Plans the legs for one pair of instances. Called again with another pair for a retry: when the new plan tells prefill the
     * same as the old one, a prefill leg that is done is not repeated.
     *
     * @param requestId the client's id, or one made for it
     * @throws ConfigException if this flow cannot serve the request
     */
    Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode);

    /**
     * The plan of one request.
     *
     * @param requestId {@code X-Request-Id} of both legs; where it depends on the pair or the attempt, no prefill leg is reused
     * @param prefillBody body of the prefill leg
     * @param decodeBody from the prefill leg's answer to the body of the decode leg. The decode leg starts when the returned
     *     future completes: a flow whose legs run one after the other maps the answer, one whose legs run at once does not wait for it
     */
    record Handoff(String requestId, Buffer prefillBody, Function<Future<JsonObjectText>, Future<Buffer>> decodeBody) {}

    /** @throws ConfigException if there is no such flow */
    static HandoffFlow named(String name) {
        return switch (name) {
            case ContentKeyedFlow.NAME -> new ContentKeyedFlow();
            case KvTransferParamsFlow.NAME -> new KvTransferParamsFlow();
            case PushFlow.NAME -> new PushFlow();
            case P2pFlow.NAME -> new P2pFlow();
            default ->
                throw ConfigException.unsupported(
                        "flow",
                        name,
                        String.join(
                                ", ", ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME, P2pFlow.NAME));
        };
    }

    /**
     * The client's body made into one that only computes the prompt: one token, not streamed (as vLLM's proxies do). More samples
     * ({@code n}, {@code best_of}) would share the same prompt's cache, so one is enough.
     */
    static JsonObjectText.Edit prefillOnly(JsonObjectText body) {
        return body.edit()
                .drop("stream_options", "min_tokens", "min_completion_tokens")
                .set("max_tokens", "1")
                .setIfPresent("max_completion_tokens", "1")
                .setIfPresent("n", "1")
                .setIfPresent("best_of", "1")
                .set("stream", "false");
    }
}
