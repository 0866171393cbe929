package baton.router.flow;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.ConnectorAddressQuery;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import java.util.HexFormat;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.json.JsonMapper;

/**
 * For connectors with a prefill instance that writes into the decode instance's memory ({@code NixlConnector}, {@code NixlPushConnector}):
 * both legs are sent at once and share their request id. The decode leg carries the prefill instance's {@link ConnectorAddress}, which is
 * asked for ahead ({@link ConnectorAddressQuery}) and taken from the instance's own answers. As long as it is unknown, or where the legs
 * {@linkplain HandoffFlow#mayBeAtOnce may not be sent at once}, they run one after the other, and the decode leg carries the names of the
 * blocks too.
 */
public record PushFlow() implements HandoffFlow {
    public static final String NAME = "kv_transfer_params_push";

    private static final Logger log = LoggerFactory.getLogger(PushFlow.class);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean needsConnectorAddress(Instance instance) {
        return true;
    }

    /** Parts are handed over one leg after the other, as with both legs at once the instances compare whole prompts. */
    @Override
    public Optional<HandoffFlow> ofPart(Instance prefill, Instance decode) {
        return new KvTransferParamsFlow().ofPart(prefill, decode);
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        Buffer prefillBody = HandoffFlow.prefillOnly(body, prefill)
                .set(PARAMS, KvTransferParamsFlow.doRemoteDecode(decode))
                .build();
        Optional<ConnectorAddress> known = prefill.connectorAddress();
        String shared = uniqueId(requestId);
        if (known.isPresent() && HandoffFlow.mayBeAtOnce(body, prefill, decode)) {
            byte[] params = withId(known.get(), shared);
            return new Handoff(
                    shared,
                    prefillBody,
                    new AtOnce(
                            () -> body.edit().set(PARAMS, params).build(),
                            answer -> learnIfWellFormed(prefill, answer)));
        }
        return new Handoff(shared, prefillBody, new AfterPrefill(answer -> {
            // The answer names the blocks of one prompt only.
            if (PromptField.count(body) > 1) {
                return DecodeBody.of(body, answer, learn(prefill, answer).map(address -> withId(address, shared)));
            }
            learnIfWellFormed(prefill, answer);
            return KvTransferParamsFlow.carry(answer, body);
        }));
    }

    /** @throws ConfigException if the answer's parameters are not JSON */
    private static Optional<ConnectorAddress> learn(Instance prefill, JsonObjectText answer) {
        Optional<ConnectorAddress> address = answer.value(PARAMS).flatMap(ConnectorAddress::parse);
        address.ifPresent(prefill::learnConnectorAddress);
        return address;
    }

    private static void learnIfWellFormed(Instance prefill, JsonObjectText answer) {
        try {
            learn(prefill, answer);
        } catch (ConfigException e) {
            log.debug("{}: no connector address in an answer: {}", prefill, e.getMessage());
        }
    }

    /** vLLM's decode instance needs {@code remote_request_id}, which is the id of both legs. */
    private static byte[] withId(ConnectorAddress address, String requestId) {
        return address.with("remote_request_id", MAPPER.writeValueAsString(requestId));
    }

    /** Differs for each request and each attempt: with an id used twice, the blocks of one would be taken for those of the other. */
    private static String uniqueId(String requestId) {
        return HandoffFlow.idWithEnd(
                requestId,
                "." + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextLong()));
    }
}
