package baton.router.flow;

import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.Optional;

/**
 * For connectors that find blocks by their content: prefill is asked for one token, and once it has answered, decode gets the
 * client's own body, with the prompt's token ids. If prefill names blocks in {@code kv_transfer_params} all the same, decode gets those too.
 */
public record ContentKeyedFlow() implements HandoffFlow {
    public static final String NAME = "content-keyed";

    @Override
    public String name() {
        return NAME;
    }

    /** An instance may be both: it finds its own values in the store. */
    @Override
    public boolean pairs(Instance prefill, Instance decode) {
        return true;
    }

    @Override
    public Optional<HandoffFlow> ofPart(Instance prefill, Instance decode) {
        return Optional.of(this);
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        Buffer prefillBody = HandoffFlow.prefillOnly(body, prefill).build();
        // The answer to several prompts names the blocks of the first only.
        boolean carries = PromptField.count(body) == 1;
        return new Handoff(
                requestId,
                prefillBody,
                new AfterPrefill(answer -> carries
                        ? KvTransferParamsFlow.carry(answer, body)
                        : DecodeBody.of(body, answer, Optional.empty())));
    }
}
