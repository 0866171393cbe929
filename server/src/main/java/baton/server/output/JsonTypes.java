package baton.server.output;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Values written without types, as JSON by the types that a schema allows: vLLM's rules. */
final class JsonTypes {
    /** Types of a value that is a string only. */
    static final Set<String> TEXT = Set.of("string");

    private static final JsonMapper JSON = JsonMapper.builder()
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .build();

    private JsonTypes() {}

    /** The types that a schema allows; of a schema without any, strings. */
    static Set<String> of(JsonNode schema) {
        Set<String> types = new TreeSet<>();
        add(schema, types);
        return types.isEmpty() ? TEXT : types;
    }

    private static void add(JsonNode schema, Set<String> types) {
        JsonNode type = schema.path("type");
        (type.isArray() ? type.values() : List.of(type))
                .stream().filter(JsonNode::isString).forEach(each -> types.add(each.asString()));
        for (JsonNode value : schema.path("enum")) {
            types.add(
                    switch (value.getNodeType()) {
                        case NULL, MISSING -> "null";
                        case BOOLEAN -> "boolean";
                        case NUMBER -> value.isIntegralNumber() ? "integer" : "number";
                        case STRING, BINARY, POJO -> "string";
                        case ARRAY -> "array";
                        case OBJECT -> "object";
                    });
        }
        for (String several : List.of("anyOf", "oneOf", "allOf")) {
            schema.path(several).forEach(each -> add(each, types));
        }
    }

    /** The JSON of a text, of the first type that it has. */
    static String converted(String text, Set<String> types) {
        String lower = text.toLowerCase(Locale.ROOT).strip();
        if (types.contains("null") && lower.equals("null")) {
            return "null";
        }
        if (types.contains("integer")) {
            try {
                return new BigInteger(lower).toString();
            } catch (NumberFormatException e) {
                // It may have another type.
            }
        }
        if (types.contains("number")) {
            try {
                BigDecimal number = new BigDecimal(lower);
                return number.stripTrailingZeros().scale() <= 0 && number.abs().compareTo(BigDecimal.valueOf(1e16)) < 0
                        ? number.toBigInteger().toString()
                        : number.toString();
            } catch (NumberFormatException e) {
                // It may have another type.
            }
        }
        if (types.contains("boolean") && Set.of("true", "1", "false", "0").contains(lower)) {
            return Boolean.toString(lower.equals("true") || lower.equals("1"));
        }
        if (types.contains("object") || types.contains("array") || !types.contains("string")) {
            try {
                return JSON.readTree(text).isMissingNode() ? quoted(text) : text.strip();
            } catch (JacksonException e) {
                return quoted(text);
            }
        }
        return quoted(text);
    }

    static ObjectNode emptyObject() {
        return JSON.createObjectNode();
    }

    /** The characters of a JSON string, without its quotes. */
    static String escaped(String text) {
        String quoted = quoted(text);
        return quoted.substring(1, quoted.length() - 1);
    }

    /** A JSON string. */
    static String quoted(String text) {
        return JSON.writeValueAsString(text);
    }
}
