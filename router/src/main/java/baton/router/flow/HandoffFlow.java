package baton.router.flow;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * How the prefill and the decode leg of a request are tied together. One implementation per kind of connector; each only defines the legs'
 * bodies and ids, and the condition that the decode leg waits for. Choosing instances, sending, retrying and streaming are the same for
 * all. Any thread; bodies are large, so legs are made beside the event loop where the request is.
 */
public sealed interface HandoffFlow
        permits ContentKeyedFlow, KvTransferParamsFlow, PushFlow, P2pFlow, MooncakeFlow, AutoFlow {

    /** Names of the flows that a request can take; {@link AutoFlow} chooses one of them for each. */
    List<String> NAMES =
            List.of(ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME, P2pFlow.NAME, MooncakeFlow.NAME);

    /** Characters of {@code X-Request-Id} that instances take. */
    int MOST_ID = 256;

    /** The field by which connectors find each other. */
    String PARAMS = ConnectorAddress.FIELD;

    /** The value of {@code --flow}. */
    String name();

    /** Whether this flow can send legs to an instance. */
    default boolean takes(Instance instance) {
        return true;
    }

    /** Whether this flow can hand over between two instances. One that changes its role has both for a while, and hands nothing over to itself. */
    default boolean pairs(Instance prefill, Instance decode) {
        return takes(prefill) && takes(decode) && !prefill.url().equals(decode.url());
    }

    /** The flow between two instances that can be a pair. */
    default HandoffFlow flow(Instance prefill, Instance decode) {
        return this;
    }

    /** The flow by which a decode instance takes over a part of a prompt and computes the rest; empty if the two cannot. */
    default Optional<HandoffFlow> ofPart(Instance prefill, Instance decode) {
        return Optional.empty();
    }

    /** Whether this flow can hand over between an instance and any of those of the other role. */
    default boolean fits(Instance instance, List<Instance> others) {
        return takes(instance);
    }

    /** Why {@link #fits} says no. */
    default String whyNot(Instance instance, List<Instance> others) {
        return "it has not registered";
    }

    /** Whether a hand-over is of one prompt, so that each prompt of a request needs its own. */
    default boolean handsOverOne() {
        return false;
    }

    /** Whether this flow needs the {@link Instance#connectorAddress} of an instance. */
    default boolean needsConnectorAddress(Instance instance) {
        return false;
    }

    /** {@code X-Request-Id} of a decode leg without a prefill leg. */
    default String idWithoutHandoff(String requestId) {
        return requestId;
    }

    /** An id for a leg of its own, of at most as many characters as instances take. */
    static String idWithEnd(String requestId, String end) {
        return requestId.substring(0, Math.min(requestId.length(), MOST_ID - end.length())) + end;
    }

    /**
     * Plans the legs for one pair of instances. Called again with another pair for a retry: where the new plan has the same prefill
     * leg as the old one, a prefill leg that has ended is not repeated.
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
     */
    record Handoff(String requestId, Buffer prefillBody, DecodeStart decode) {}

    /** The start of the decode leg, and its body. */
    sealed interface DecodeStart {}

    /**
     * The body of a decode leg.
     *
     * @param carries whether it names blocks that the prefill instance keeps for this request, which can be used once
     * @param isRendered whether both legs have the same token ids for sure
     */
    record DecodeBody(Buffer text, boolean carries, boolean isRendered) {
        /**
         * The client's body with the token ids of the prefill leg's answer.
         *
         * @param params {@code kv_transfer_params} that lead to the blocks
         */
        static DecodeBody of(JsonObjectText body, JsonObjectText answer, Optional<byte[]> params) {
            JsonObjectText.Edit edit = body.edit();
            params.ifPresent(known -> edit.set(PARAMS, known));
            Optional<JsonObjectText.Edit> rendered =
                    RenderedPrompt.put(body, answer, edit, params.or(() -> body.value(PARAMS)));
            return new DecodeBody(
                    params.isPresent() || rendered.isPresent() ? edit.build() : body.text(),
                    params.isPresent(),
                    rendered.isPresent() || !RenderedPrompt.isAsked(body));
        }
    }

    /**
     * Both legs run at once.
     *
     * @param prefilled takes the prefill leg's answer
     */
    record AtOnce(Supplier<Buffer> body, Consumer<JsonObjectText> prefilled) implements DecodeStart {}

    /**
     * The decode leg starts after the prefill leg's answer.
     *
     * @param body from the prefill leg's answer to the body of the decode leg; throws {@link ConfigException} if the answer is malformed
     */
    record AfterPrefill(Function<JsonObjectText, DecodeBody> body) implements DecodeStart {}

    /**
     * Whether both legs can be sent at once: either the prompt is token ids, or the instances compare their prompts, as Baton's do. Else the prefill leg's
     * answer has the ids for the decode leg.
     */
    static boolean mayBeAtOnce(JsonObjectText body, Instance prefill, Instance decode) {
        return !RenderedPrompt.isAsked(body) || (prefill.isBaton() && decode.isBaton());
    }

    /**
     * @param handsOver that is for one prompt, with its verb
     * @throws ConfigException if the request has several prompts
     */
    static void requireOnePrompt(JsonObjectText body, String handsOver) {
        int prompts = PromptField.count(body);
        if (prompts > 1) {
            throw new ConfigException(
                    "prompt",
                    "holds " + prompts + " prompts; " + handsOver + " over one, so send one request for each");
        }
    }

    /** @throws ConfigException if there is no such flow */
    static HandoffFlow named(String name) {
        return switch (name) {
            case ContentKeyedFlow.NAME -> new ContentKeyedFlow();
            case KvTransferParamsFlow.NAME -> new KvTransferParamsFlow();
            case PushFlow.NAME -> new PushFlow();
            case P2pFlow.NAME -> new P2pFlow();
            case MooncakeFlow.NAME -> new MooncakeFlow();
            case AutoFlow.NAME -> new AutoFlow();
            default -> throw ConfigException.unsupported("flow", name, String.join(", ", NAMES) + ", " + AutoFlow.NAME);
        };
    }

    /**
     * The client's body edited so that only the prompt is computed: one token, not streamed (as vLLM's proxies do) unless the instance is to. More samples
     * ({@code n}, {@code best_of}) would share the same prompt's cache, so one is enough. The answer has the prompt's token ids.
     */
    static JsonObjectText.Edit prefillOnly(JsonObjectText body, Instance prefill) {
        // Other events than these have the parts of an answer of /v1/responses.
        boolean streams = prefill.settings().streams() && !PromptField.mayBeOfResponses(body);
        JsonObjectText.Edit edit = PromptField.askForOneToken(body, RenderedPrompt.ask(body, body.edit()))
                .drop("stream_options", "min_tokens", "min_completion_tokens")
                .setIfPresent("max_completion_tokens", "1")
                .setIfPresent("cache_hit_threshold", "0")
                .setIfPresent("n", "1")
                .setIfPresent("best_of", "1")
                .set("stream", Boolean.toString(streams));
        return streams ? edit.set("stream_options", "{\"include_usage\":true}") : edit;
    }
}
