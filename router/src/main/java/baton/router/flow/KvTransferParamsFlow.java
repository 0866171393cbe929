package baton.router.flow;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import io.vertx.core.buffer.Buffer;
import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.ObjectReadContext;
import tools.jackson.core.json.JsonFactory;

/**
 * For connectors whose prefill instance names its blocks: prefill is asked to keep them for a remote decode instance, and the
 * {@code kv_transfer_params} of its answer go into the decode leg's body as they are (vLLM's toy_proxy_server.py).
 */
public record KvTransferParamsFlow() implements HandoffFlow {
    public static final String NAME = "kv_transfer_params";

    static final String DO_REMOTE_DECODE = "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
            + "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";
    private static final JsonFactory FACTORY = new JsonFactory();

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        int prompts = prompts(body);
        if (prompts > 1) {
            // The decode instance would use the first prompt's blocks for each prompt.
            throw new ConfigException(
                    "prompt",
                    "holds " + prompts + " prompts; kv_transfer_params hand over one, so send one request for each");
        }
        Buffer prefillBody =
                HandoffFlow.prefillOnly(body).set(PARAMS, DO_REMOTE_DECODE).build();
        return new Handoff(requestId, prefillBody, new AfterPrefill(answer -> carry(answer, body)));
    }

    /** The body with the answer's {@code kv_transfer_params}; unchanged if the answer has none. */
    static Buffer carry(JsonObjectText answer, JsonObjectText body) {
        return answer.value(PARAMS)
                .map(params -> body.edit().set(PARAMS, params).build())
                .orElseGet(body::text);
    }

    /** How many prompts a completion request holds: {@code prompt} is a text, an array of token ids, or an array of either. */
    static int prompts(JsonObjectText body) {
        return body.value("prompt").map(KvTransferParamsFlow::elements).orElse(1);
    }

    private static int elements(byte[] prompt) {
        try (JsonParser parser = FACTORY.createParser(ObjectReadContext.empty(), prompt)) {
            if (parser.nextToken() != JsonToken.START_ARRAY) {
                return 1;
            }
            int count = 0;
            for (JsonToken token = parser.nextToken(); token != JsonToken.END_ARRAY; token = parser.nextToken()) {
                if (token.isNumeric()) {
                    return 1;
                }
                count++;
                parser.skipChildren();
            }
            return Math.max(count, 1);
        }
    }
}
