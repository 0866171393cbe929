package baton.router.flow;

import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.Optional;

/**
 * For connectors with a prefill instance that names its blocks: prefill is asked to keep them for a remote decode instance, and the
 * {@code kv_transfer_params} of its answer go into the decode leg's body as they are (vLLM's toy_proxy_server.py).
 */
public record KvTransferParamsFlow() implements HandoffFlow {
    public static final String NAME = "kv_transfer_params";

    private static final String DO_REMOTE_DECODE = "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
            + "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean handsOverOne() {
        return true;
    }

    /** Baton's NIXL connectors sign which tokens the blocks are of, and take those of a prompt's beginning. */
    @Override
    public Optional<HandoffFlow> ofPart(Instance prefill, Instance decode) {
        return isBatonNixl(prefill) && isBatonNixl(decode) ? Optional.of(this) : Optional.empty();
    }

    private static boolean isBatonNixl(Instance instance) {
        return instance.connector()
                .filter(known -> known.isBaton() && known.name().startsWith("Nixl"))
                .isPresent();
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        // The decode instance would use the first prompt's blocks for each prompt.
        HandoffFlow.requireOnePrompt(body, "kv_transfer_params hand");
        Buffer prefillBody = HandoffFlow.prefillOnly(body, prefill)
                .set(PARAMS, doRemoteDecode(decode))
                .build();
        return new Handoff(requestId, prefillBody, new AfterPrefill(answer -> carry(answer, body)));
    }

    /** The {@code kv_transfer_params} of a prefill leg. A Baton instance answers vLLM instances of several versions by their version. */
    static String doRemoteDecode(Instance decode) {
        return decode.settings()
                .version()
                .map(version -> DO_REMOTE_DECODE + ",\"remote_vllm_version\":\"" + version + "\"}")
                .orElse(DO_REMOTE_DECODE + "}");
    }

    /** The body with the answer's {@code kv_transfer_params}, if it has any. */
    static DecodeBody carry(JsonObjectText answer, JsonObjectText body) {
        return DecodeBody.of(body, answer, answer.value(PARAMS));
    }
}
