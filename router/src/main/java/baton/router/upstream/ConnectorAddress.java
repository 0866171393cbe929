package baton.router.upstream;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Where a prefill instance's connector is.
 *
 * @param params JSON object: the {@code kv_transfer_params} with which a decode instance asks that prefill instance to write blocks; for
 *     some connectors with the id of the request or of the transfer
 */
public record ConnectorAddress(String params) {
    /** The field of requests and answers that holds a connector's parameters. */
    public static final String FIELD = "kv_transfer_params";

    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /**
     * Takes the instance's address from an answer's {@code kv_transfer_params} and leaves out the fields that name the blocks of one
     * request.
     *
     * @param params JSON text
     * @return empty if a part of the address is missing or malformed
     * @throws ConfigException if the text is not JSON
     */
    public static Optional<ConnectorAddress> parse(byte[] params) {
        JsonNode answer;
        try {
            answer = MAPPER.readTree(params);
        } catch (JacksonException e) {
            throw new ConfigException(FIELD, "not valid JSON: " + e.getOriginalMessage(), e);
        }
        if (isText(answer.path("remote_engine_id")) && isText(answer.path("remote_bootstrap_addr"))) {
            return Optional.of(new ConnectorAddress(
                    MAPPER.writeValueAsString(address(answer, "remote_engine_id", "remote_bootstrap_addr"))));
        }
        if (!isText(answer.path("remote_engine_id"))
                || !isText(answer.path("remote_host"))
                || !isBetween(1, 65535, answer.path("remote_port"))) {
            return Optional.empty();
        }
        ObjectNode address = address(answer, "remote_engine_id", "remote_host", "remote_port");
        for (String name : new String[] {"tp_size", "pp_size"}) {
            JsonNode size = answer.path(name);
            if (!size.isMissingNode() && !size.isNull()) {
                if (!isBetween(1, Integer.MAX_VALUE, size)) {
                    return Optional.empty();
                }
                address.set(name, size);
            }
        }
        return Optional.of(new ConnectorAddress(MAPPER.writeValueAsString(address)));
    }

    /** The parameters with one more field. */
    public byte[] with(String name, String json) {
        return JsonObjectText.parse(FIELD, params.getBytes(StandardCharsets.UTF_8))
                .edit()
                .set(name, json)
                .build()
                .getBytes();
    }

    private static ObjectNode address(JsonNode answer, String... names) {
        ObjectNode address = MAPPER.createObjectNode();
        address.put("do_remote_prefill", true).put("do_remote_decode", false);
        for (String name : names) {
            address.set(name, answer.path(name));
        }
        return address;
    }

    private static boolean isText(JsonNode value) {
        return value.isString() && !value.asString().isBlank();
    }

    private static boolean isBetween(int least, int most, JsonNode value) {
        return value.isIntegralNumber() && value.canConvertToInt() && value.asInt() >= least && value.asInt() <= most;
    }
}
