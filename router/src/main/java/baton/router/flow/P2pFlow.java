package baton.router.flow;

import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.Optional;
import java.util.UUID;

/**
 * For {@code P2pNcclConnector}: instances read each other's addresses from the request id (vLLM's disagg_proxy_p2p_nccl_xpyd.py). Prefill
 * is asked for one token, and once it has answered, decode gets the client's own body, with the prompt's token ids. Another pair or another
 * attempt has another id, so that tensors left of an earlier attempt are not taken for those of this one.
 */
public record P2pFlow() implements HandoffFlow {
    public static final String NAME = "p2p_nccl";

    /** Part of request ids that have addresses. */
    public static final String ADDRESS_MARK = "_addr_";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean takes(Instance instance) {
        return instance.kvAddress().isPresent();
    }

    /** A client's id must not make a decode instance connect to addresses of the client's choice. */
    @Override
    public String idWithoutHandoff(String requestId) {
        return requestId.contains(ADDRESS_MARK) ? UUID.randomUUID().toString() : requestId;
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        Buffer prefillBody = HandoffFlow.prefillOnly(body, prefill).build();
        P2pRequestId id = new P2pRequestId(address(prefill), address(decode), unique());
        return new Handoff(
                id.format(), prefillBody, new AfterPrefill(answer -> DecodeBody.of(body, answer, Optional.empty())));
    }

    private static PeerAddress address(Instance instance) {
        return instance.kvAddress().orElseThrow(() -> new IllegalStateException(instance + " has not registered"));
    }

    private static String unique() {
        return UUID.randomUUID().toString().replace("-", "");
    }
}
