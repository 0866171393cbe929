package baton.router;

import baton.kv.ConfigException;
import io.vertx.core.Future;
import io.vertx.core.buffer.Buffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * For connectors whose prefill instance writes into the decode instance's memory ({@code NixlConnector}, {@code NixlPushConnector}): both legs are sent at
 * once and find each other by their request id. The decode leg is told where the prefill instance's connector is. That is
 * asked for ahead ({@link ConnectorAddressQuery}), and learnt from the instance's own answers: the first request to one that does not tell has
 * one leg after the other, and its decode leg is told of the blocks too.
 */
record PushFlow() implements HandoffFlow {
    static final String NAME = "kv_transfer_params_push";

    private static final int MAX_ID = 256;
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean asks(Instance instance) {
        return instance.role() == Instance.Role.PREFILL;
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        Buffer prefillBody = HandoffFlow.prefillOnly(body)
                .set(PARAMS, KvTransferParamsFlow.DO_REMOTE_DECODE)
                .build();
        Optional<String> known = prefill.pushTarget();
        String shared = uniqueId(requestId);
        return new Handoff(shared, prefillBody, prefilled -> {
            Future<Optional<String>> learnt =
                    prefilled.map(answer -> answer.value(PARAMS).flatMap(PushFlow::target));
            learnt.onSuccess(target -> target.ifPresent(prefill::learnPushTarget));
            if (known.isPresent()) {
                return Future.succeededFuture(tell(body, known, shared));
            }
            // The blocks are there, but the answer names those of one prompt only.
            return KvTransferParamsFlow.prompts(body) > 1
                    ? learnt.map(told -> tell(body, told, shared))
                    : prefilled.map(answer -> KvTransferParamsFlow.carry(answer, body));
        });
    }

    /** vLLM's decode instance needs {@code remote_request_id}; what both legs know the request by is their own id. */
    private static Buffer tell(JsonObjectText body, Optional<String> target, String requestId) {
        return target.map(params -> body.edit()
                        .set(
                                PARAMS,
                                JsonObjectText.parse(PARAMS, params.getBytes(StandardCharsets.UTF_8))
                                        .edit()
                                        .set("remote_request_id", MAPPER.writeValueAsString(requestId))
                                        .build()
                                        .getBytes())
                        .build())
                .orElseGet(body::text);
    }

    /**
     * The legs of no other request, nor of an earlier attempt, may have the same id: their blocks would be taken for this one's.
     */
    private static String uniqueId(String requestId) {
        String end =
                "." + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextLong());
        return requestId.substring(0, Math.min(requestId.length(), MAX_ID - end.length())) + end;
    }

    /**
     * From an answer's {@code kv_transfer_params} what leads to the instance, without what leads to the one request's blocks.
     * Empty where that is not all there, or is not what it must be.
     */
    static Optional<String> target(byte[] params) {
        JsonNode answer;
        try {
            answer = MAPPER.readTree(params);
        } catch (JacksonException e) {
            throw new ConfigException(PARAMS, "not valid JSON: " + e.getOriginalMessage(), e);
        }
        if (!isText(answer.path("remote_engine_id"))
                || !isText(answer.path("remote_host"))
                || !isBetween(1, 65535, answer.path("remote_port"))) {
            return Optional.empty();
        }
        ObjectNode told = MAPPER.createObjectNode();
        told.put("do_remote_prefill", true).put("do_remote_decode", false);
        for (String name : new String[] {"remote_engine_id", "remote_host", "remote_port"}) {
            told.set(name, answer.path(name));
        }
        for (String name : new String[] {"tp_size", "pp_size"}) {
            JsonNode size = answer.path(name);
            if (!size.isMissingNode() && !size.isNull()) {
                if (!isBetween(1, Integer.MAX_VALUE, size)) {
                    return Optional.empty();
                }
                told.set(name, size);
            }
        }
        return Optional.of(MAPPER.writeValueAsString(told));
    }

    private static boolean isText(JsonNode value) {
        return value.isString() && !value.asString().isBlank();
    }

    private static boolean isBetween(int least, int most, JsonNode value) {
        return value.isIntegralNumber() && value.canConvertToInt() && value.asInt() >= least && value.asInt() <= most;
    }
}
