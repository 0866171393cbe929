package baton.engine.local;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Random JSON schemas, of which most documents are short. */
final class RandomSchemas {
    private static final List<String> FORMATS = List.of("date", "uuid", "ipv4");
    private static final List<String> PATTERNS =
            List.of("^[a-f]{2,6}$", "^(yes|no|maybe)$", "^\\d{3}-\\d{4}$", "^[A-Z][a-z]{0,6}$", "^.{1,5}$");
    private static final List<String> TEXTS = List.of("red", "green \"x\"", "ü\\", "", "née", "🙂");
    private static final List<String> KEYWORDS = List.of(
            "type",
            "enum",
            "const",
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "uniqueItems",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "if",
            "then",
            "$ref",
            "$defs",
            "propertyNames",
            "dependentRequired",
            "contains",
            "unevaluatedProperties",
            "minProperties",
            "maxProperties");

    private final Random random;

    RandomSchemas(long seed) {
        random = new Random(seed);
    }

    private static ObjectNode node() {
        return JsonNodeFactory.instance.objectNode();
    }

    private <T> T any(List<T> of) {
        return of.get(random.nextInt(of.size()));
    }

    private int below(int bound) {
        return random.nextInt(bound);
    }

    /** A schema that has documents. */
    ObjectNode next() {
        ObjectNode schema = below(4) == 0 ? schema(3) : object(3);
        if (below(5) == 0) {
            // A list by reference, which may end at each of its nodes.
            ObjectNode list = node().put("type", "object");
            list.putObject("properties").set("value", schema(0));
            list.withObject("properties").putObject("next").put("$ref", "#/$defs/list");
            list.putArray("required").add("value");
            list.put("additionalProperties", false);
            ObjectNode holder = node().put("type", "array").put("maxItems", 2);
            holder.putObject("items").put("$ref", "#/$defs/list");
            schema = node().put("type", "object")
                    .put("additionalProperties", false)
                    .set("properties", node().set("list", holder).set("more", schema));
            schema.putObject("$defs").set("list", list);
        }
        return schema;
    }

    private ObjectNode schema(int depth) {
        return switch (below(depth > 0 ? 10 : 6)) {
            case 0 -> node().put("type", "boolean");
            case 1 -> number();
            case 2, 3 -> string();
            case 4 -> {
                ObjectNode schema = node();
                ArrayNode values = schema.putArray("enum");
                for (int i = below(3); i >= 0; i--) {
                    values.add(any(TEXTS) + i);
                }
                yield below(2) == 0
                        ? schema.put("type", "string")
                        : schema.set("enum", values.add(below(100)).addNull());
            }
            case 5 -> node().put("const", any(TEXTS));
            case 6 -> array(depth - 1);
            case 7 -> {
                ObjectNode schema = node();
                schema.putArray("anyOf").add(string()).add(number()).add(object(depth - 1));
                yield schema;
            }
            default -> object(depth - 1);
        };
    }

    private ObjectNode number() {
        ObjectNode schema = node().put("type", below(3) == 0 ? "number" : "integer");
        int least = below(2000) - 1000;
        switch (below(4)) {
            case 0 -> schema.put("minimum", least);
            case 1 -> schema.put("minimum", least).put("maximum", least + below(5000));
            case 2 -> schema.put("exclusiveMaximum", least);
            default -> {}
        }
        return schema;
    }

    private ObjectNode string() {
        ObjectNode schema = node().put("type", "string");
        return switch (below(5)) {
            case 0 -> schema.put("format", any(FORMATS));
            case 1 -> schema.put("pattern", any(PATTERNS));
            default -> {
                int least = below(4);
                yield schema.put("minLength", least).put("maxLength", least + below(12));
            }
        };
    }

    private ObjectNode array(int depth) {
        ObjectNode schema = node().put("type", "array");
        int least = below(2);
        schema.put("minItems", least).put("maxItems", least + 1 + below(3));
        if (below(4) == 0) {
            schema.putArray("prefixItems").add(schema(depth)).add(schema(depth));
        }
        return schema.set("items", schema(depth));
    }

    private ObjectNode object(int depth) {
        ObjectNode schema = node().put("type", "object");
        ObjectNode properties = schema.putObject("properties");
        List<String> required = new ArrayList<>();
        for (int i = below(5); i >= 0; i--) {
            String name = any(List.of("name", "value", "é t\"", "a")) + i;
            properties.set(name, schema(depth));
            if (below(2) == 0) {
                required.add(name);
            }
        }
        if (!required.isEmpty()) {
            required.forEach(schema.putArray("required")::add);
        }
        switch (below(40)) {
            // The names of additional properties may be long.
            case 0 -> schema.set("additionalProperties", number());
            case 1, 2, 3, 4, 5 ->
                schema.put("additionalProperties", false)
                        .putObject("patternProperties")
                        .set("^x[a-c]$", number());
            default -> schema.put("additionalProperties", false);
        }
        return schema.put("maxProperties", properties.size() + 1);
    }

    /** JSON that has the keywords of schemas anywhere, with any values. */
    String fuzzed() {
        ObjectNode schema = next();
        for (int i = below(4); i >= 0; i--) {
            damage(schema);
        }
        return schema.toString();
    }

    private void damage(JsonNode node) {
        if (node instanceof ObjectNode object && (object.isEmpty() || below(3) == 0)) {
            object.set(any(KEYWORDS), value(3));
        } else if (!node.isEmpty()) {
            damage(any(node.values().stream().toList()));
        }
    }

    private JsonNode value(int depth) {
        JsonNodeFactory make = JsonNodeFactory.instance;
        return switch (below(depth > 0 ? 12 : 8)) {
            case 0 -> make.numberNode(below(5));
            case 1 -> make.numberNode(any(List.of(1e300, -0.5, 1e-7, 123456789012345680.0)));
            case 2 ->
                make.stringNode(any(List.of("string", "object", "array", "integer", "#", "#/$defs/list", "#/nothing")));
            case 3 ->
                make.stringNode(
                        any(List.of("(a+)+$", "^(?=x)y", "[", "a{1000}b{1000}", "(\\w*){9,99}", "\\p{L}+", "^$")));
            case 4 -> make.booleanNode(below(2) == 0);
            case 5 -> make.nullNode();
            case 6 -> make.numberNode(Integer.MAX_VALUE - below(2));
            case 7 -> next();
            case 8, 9 -> {
                ArrayNode array = make.arrayNode();
                for (int i = below(4); i > 0; i--) {
                    array.add(value(depth - 1));
                }
                yield array;
            }
            case 10 -> node().set(any(KEYWORDS), value(depth - 1));
            default -> deep(below(2000));
        };
    }

    private static JsonNode deep(int depth) {
        return JsonMapper.shared()
                .readTree(
                        "{\"items\":".repeat(Math.min(depth, 900) / 2) + "true" + "}".repeat(Math.min(depth, 900) / 2));
    }
}
