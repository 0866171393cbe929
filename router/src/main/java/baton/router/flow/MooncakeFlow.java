package baton.router.flow;

import baton.router.body.JsonObjectText;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.Optional;
import java.util.UUID;
import tools.jackson.databind.json.JsonMapper;

/**
 * For {@code MooncakeConnector}: both legs are sent at once and share a {@code transfer_id}; the decode leg names the prefill instance's
 * registry and engine (vLLM's mooncake_connector_proxy.py), its {@link ConnectorAddress}. As long as that is unknown, or where the legs
 * {@linkplain HandoffFlow#mayBeAtOnce may not be sent at once}, they run one after the other, and the decode leg carries the address, or
 * the fields of the prefill instance's answer. Another attempt has another {@code transfer_id}: a decode instance may have used up the
 * blocks of the one before.
 */
public record MooncakeFlow() implements HandoffFlow {
    public static final String NAME = "mooncake";

    private static final String TRANSFER_ID = "transfer_id";
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean needsConnectorAddress(Instance instance) {
        return true;
    }

    @Override
    public boolean handsOverOne() {
        return true;
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        HandoffFlow.requireOnePrompt(body, "a transfer_id hands");
        String transferId = MAPPER.writeValueAsString("xfer-" + UUID.randomUUID());
        Buffer prefillBody = HandoffFlow.prefillOnly(body, prefill)
                .set(
                        PARAMS,
                        "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"" + TRANSFER_ID + "\":" + transferId
                                + "}")
                .build();
        Optional<byte[]> params = prefill.connectorAddress().map(address -> address.with(TRANSFER_ID, transferId));
        DecodeStart decodeStart = params.isPresent() && HandoffFlow.mayBeAtOnce(body, prefill, decode)
                ? new AtOnce(() -> body.edit().set(PARAMS, params.get()).build(), _ -> {})
                : new AfterPrefill(answer -> DecodeBody.of(body, answer, params.or(() -> answer.value(PARAMS))));
        return new Handoff(requestId, prefillBody, decodeStart);
    }
}
