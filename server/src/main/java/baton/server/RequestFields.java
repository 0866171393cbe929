package baton.server;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.BiConsumer;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Values of requests' fields, and the fields of vLLM's requests that this server does not apply: those that would change the answer
 * are refused.
 */
final class RequestFields {
    /** Fields for unsupported features; {@code null}, {@code false} and empty values are accepted. */
    private static final List<String> UNSUPPORTED = List.of(
            "suffix",
            "use_beam_search",
            "repetition_detection",
            "logprob_token_ids",
            "return_prompt_text",
            "prompt_embeds",
            "mm_processor_kwargs",
            "media_io_kwargs",
            "logits_processors",
            "functions",
            "audio");

    static final String BOOTSTRAP_ROOM = "bootstrap_room";

    /** Fields that change no answer of this server, which are checked for their type alone. */
    private static final Map<String, BiConsumer<JsonFields, String>> NO_EFFECT = Map.ofEntries(
            Map.entry("user", JsonFields::string),
            Map.entry("session_id", JsonFields::string),
            Map.entry("spaces_between_special_tokens", JsonFields::bool),
            Map.entry("watermarking", JsonFields::bool),
            Map.entry("guided_decoding_backend", JsonFields::string),
            Map.entry("length_penalty", JsonFields::number),
            Map.entry("routed_experts_prompt_start", JsonFields::integer),
            Map.entry("return_token_offsets", JsonFields::bool),
            Map.entry("mm_payload", JsonFields::string),
            Map.entry("return_mm_kwargs", JsonFields::bool),
            Map.entry("ec_transfer_params", JsonFields::object),
            Map.entry("vllm_xargs", JsonFields::object));

    private RequestFields() {}

    /** @throws ApiException naming a field that asks for a feature that the server does not have */
    static void refuseUnsupported(JsonFields fields) {
        for (String name : UNSUPPORTED) {
            fields.value(name).filter(RequestFields::isSet).ifPresent(value -> {
                throw unsupported(name, value);
            });
        }
    }

    /** @throws ConfigException naming a field without effect that has another type */
    static void checkIgnored(JsonFields fields) {
        NO_EFFECT.forEach((name, read) -> read.accept(fields, name));
    }

    static ApiException unsupported(String name, JsonNode value) {
        return ApiException.badField(name, "is not supported by this server, is " + Json.shown(value));
    }

    static boolean isSet(JsonNode value) {
        return switch (value.getNodeType()) {
            case BOOLEAN -> value.asBoolean();
            case STRING -> !value.asString().isEmpty();
            case ARRAY, OBJECT -> !value.isEmpty();
            case NUMBER, BINARY, POJO -> true;
            case NULL, MISSING -> false;
        };
    }

    /**
     * {@code kv_transfer_params}. Without them, the fields that SGLang's routers send in their place: {@code bootstrap_room} of both legs,
     * with the address of the prefill instance's bootstrap server.
     */
    static Optional<JsonFields> kvTransferParams(JsonFields fields) {
        fields.value(BOOTSTRAP_ROOM)
                .filter(room -> !room.isIntegralNumber() || !room.canConvertToLong() || room.asLong() < 0)
                .ifPresent(room -> {
                    throw ApiException.badField(
                            BOOTSTRAP_ROOM, "must be a number from 0 to 2^63 - 1, is " + Json.shown(room));
                });
        return fields.object("kv_transfer_params").or(() -> bootstrap(fields));
    }

    private static Optional<JsonFields> bootstrap(JsonFields fields) {
        ObjectNode bootstrap = JsonFields.empty("").toJson();
        for (String name : List.of("bootstrap_host", "bootstrap_port", BOOTSTRAP_ROOM)) {
            fields.value(name).ifPresent(value -> bootstrap.set(name, value));
        }
        return bootstrap.has(BOOTSTRAP_ROOM) ? Optional.of(JsonFields.of("", bootstrap)) : Optional.empty();
    }

    /** The same, of a request that has errors. */
    static Optional<JsonFields> readableKvTransferParams(JsonFields fields) {
        return fields.value("kv_transfer_params")
                .filter(ObjectNode.class::isInstance)
                .map(params -> JsonFields.of("kv_transfer_params", (ObjectNode) params))
                .or(() -> bootstrap(fields));
    }

    /** A string, or an array of strings. */
    static List<String> strings(String field, JsonNode value) {
        if (value.isString()) {
            return List.of(value.asString());
        }
        if (!value.isArray()) {
            throw ApiException.badField(field, "must be a string or an array of strings, is " + Json.shown(value));
        }
        List<String> strings = new ArrayList<>();
        for (JsonNode element : value) {
            strings.add(string(field + "[" + strings.size() + "]", element));
        }
        return strings;
    }

    static String string(String field, JsonNode value) {
        if (!value.isString()) {
            throw ApiException.badField(field, "must be a string, is " + Json.shown(value));
        }
        return value.asString();
    }

    static Optional<Integer> integer(JsonFields fields, String name) {
        return fields.integer(name).map(value -> {
            if (value != value.intValue()) {
                throw ApiException.badField(fields.field(name), "is " + value + ", must fit 32 bits");
            }
            return value.intValue();
        });
    }
}
