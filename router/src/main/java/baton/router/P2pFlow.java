package baton.router;

import io.vertx.core.buffer.Buffer;
import java.util.UUID;

/**
 * For {@code P2pNcclConnector}, whose instances read each other's addresses from the request id (vLLM's
 * disagg_proxy_p2p_nccl_xpyd.py): prefill is asked for one token, and once it has answered, decode gets the client's own body.
 * Another pair or another attempt is another id, so that nothing left of an earlier one is taken for this one's.
 */
record P2pFlow() implements HandoffFlow {
    static final String NAME = "p2p_nccl";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean takes(Instance instance) {
        return instance.kvAddress().isPresent();
    }

    /** A client's id must not lead a decode instance to addresses of the client's choice. */
    @Override
    public String idWithoutHandoff(String requestId) {
        return requestId.contains("___") ? UUID.randomUUID().toString() : requestId;
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        Buffer prefillBody = HandoffFlow.prefillOnly(body).build();
        String id = "___prefill_addr_" + address(prefill) + "___decode_addr_" + address(decode) + "_"
                + UUID.randomUUID().toString().replace("-", "");
        return new Handoff(id, prefillBody, prefilled -> prefilled.map(done -> body.text()));
    }

    private static String address(Instance instance) {
        return instance.kvAddress().orElseThrow(() -> new IllegalStateException(instance + " has not registered"));
    }
}
