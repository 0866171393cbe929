package baton.grammar.schema;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** Random schemas as values of Jackson. */
public final class RandomSchemas {
    private static final List<String> NAMES = List.of("a", "b", "name", "x_1", "é", "a\"b");
    private static final List<String> PATTERNS =
            List.of("^[a-z]{2,4}$", "a", "^x_", "[0-9]+$", "^(?:ab|cd)*$", "^[^a]*$", "\\d{3}-\\d{4}");
    private static final List<String> FORMATS =
            List.of("date", "time", "date-time", "ipv4", "ipv6", "uuid", "hostname", "duration");
    private static final List<String> TYPES =
            List.of("null", "boolean", "integer", "number", "string", "array", "object");

    private final Random random;
    private final boolean isBrief;

    /** @param isBrief whether strings, arrays and objects are short */
    public RandomSchemas(Random random, boolean isBrief) {
        this.random = random;
        this.isBrief = isBrief;
    }

    /** A schema of keywords that are mostly supported, with definitions that it refers to. */
    public Object schema() {
        Map<String, Object> schema = value(3);
        schema.put("$defs", Map.of("one", value(2), "two", value(1)));
        return schema;
    }

    /** A schema of any keywords with any values. */
    public Object hostile() {
        Map<String, Object> schema = new LinkedHashMap<>();
        List<String> keywords = List.of(
                "type",
                "enum",
                "const",
                "allOf",
                "anyOf",
                "oneOf",
                "not",
                "if",
                "then",
                "else",
                "$ref",
                "$dynamicRef",
                "$id",
                "$anchor",
                "$defs",
                "items",
                "prefixItems",
                "contains",
                "minItems",
                "maxItems",
                "uniqueItems",
                "properties",
                "patternProperties",
                "additionalProperties",
                "propertyNames",
                "required",
                "minProperties",
                "maxProperties",
                "dependentRequired",
                "dependentSchemas",
                "minLength",
                "maxLength",
                "pattern",
                "format",
                "minimum",
                "maximum",
                "exclusiveMinimum",
                "multipleOf",
                "unevaluatedProperties",
                "unevaluatedItems",
                "x");
        fill(schema, keywords, 5);
        return schema;
    }

    private void fill(Map<String, Object> schema, List<String> keywords, int depth) {
        for (int i = random.nextInt(5); i >= 0; i--) {
            String keyword = pick(keywords);
            schema.put(keyword, chance(4) ? anything(keywords, depth - 1) : likely(keyword, keywords, depth - 1));
        }
    }

    private Object likely(String keyword, List<String> keywords, int depth) {
        return switch (keyword) {
            case "type" -> pick(TYPES);
            case "allOf", "anyOf", "oneOf", "prefixItems" -> {
                List<Object> list = new ArrayList<>();
                for (int i = random.nextInt(6); i >= 0; i--) {
                    list.add(nested(keywords, depth));
                }
                yield list;
            }
            case "properties", "patternProperties", "$defs", "dependentSchemas" -> {
                Map<String, Object> map = new LinkedHashMap<>();
                for (int i = random.nextInt(6); i >= 0; i--) {
                    map.put(
                            keyword.equals("patternProperties") ? pick(PATTERNS) : pick(NAMES),
                            nested(keywords, depth));
                }
                yield map;
            }
            case "$ref", "$dynamicRef" ->
                pick(List.of("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/allOf/0", "a", "%"));
            case "$id", "$anchor" -> pick(List.of("a", "b", "#", "http://a/b", ":"));
            case "enum", "required" -> List.of(pick(NAMES), pick(NAMES));
            case "dependentRequired" -> Map.of(pick(NAMES), List.of(pick(NAMES)));
            case "pattern" ->
                pick(List.of("(a*)*b", "(a|a)*$", "a{1000}", "(((a{10}){10}){10}){10}", "[", "\\p{L}+", "^(?=a)b"));
            case "format" -> pick(FORMATS);
            case "minimum", "maximum", "exclusiveMinimum", "multipleOf" ->
                pick(List.<Object>of(0, -1, 7, 0.1, 1e300, 1e-300, 123456789.12345679, Long.MAX_VALUE));
            case "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties" ->
                pick(List.<Object>of(0, 1, 5, 1000, 99_999, Integer.MAX_VALUE, 1e18));
            default -> nested(keywords, depth);
        };
    }

    private Object nested(List<String> keywords, int depth) {
        if (depth <= 0) {
            return random.nextBoolean();
        }
        Map<String, Object> schema = new LinkedHashMap<>();
        fill(schema, keywords, depth);
        return schema;
    }

    private Object anything(List<String> keywords, int depth) {
        return switch (random.nextInt(6)) {
            case 0 -> random.nextInt();
            case 1 -> random.nextBoolean();
            case 2 -> pick(NAMES);
            case 3 -> List.of(pick(NAMES), random.nextInt(3));
            case 4 -> random.nextGaussian() * 1e30;
            default -> nested(keywords, depth);
        };
    }

    private Map<String, Object> value(int depth) {
        Map<String, Object> schema = new LinkedHashMap<>();
        if (chance(8)) {
            schema.put("$ref", pick(List.of("#/$defs/one", "#/$defs/two")));
            return schema;
        }
        if (depth > 0 && chance(5)) {
            combine(schema, depth - 1);
            return schema;
        }
        if (chance(10)) {
            schema.put("enum", List.of(constant(1), constant(1), constant(2)));
            return schema;
        }
        String type = depth > 0 ? pick(TYPES.subList(2, 7)) : pick(TYPES.subList(0, 5));
        schema.put("type", chance(8) ? List.of(type, "null") : type);
        switch (type) {
            case "integer", "number" -> number(schema, type);
            case "string" -> string(schema);
            case "array" -> array(schema, depth - 1);
            case "object" -> object(schema, depth - 1);
            default -> {}
        }
        return schema;
    }

    private void combine(Map<String, Object> schema, int depth) {
        switch (random.nextInt(5)) {
            case 0 -> schema.put("anyOf", List.of(value(depth), value(depth)));
            case 1 -> schema.put("oneOf", List.of(value(depth), value(depth), value(depth)));
            case 2 -> schema.put("allOf", List.of(value(depth), value(depth)));
            case 3 -> {
                schema.putAll(value(depth));
                schema.put("not", value(depth));
            }
            default -> {
                schema.put("if", value(depth));
                schema.put("then", value(depth));
                schema.put("else", value(depth));
            }
        }
    }

    private void number(Map<String, Object> schema, String type) {
        boolean isInteger = type.equals("integer");
        if (chance(2)) {
            schema.put(chance(3) ? "exclusiveMinimum" : "minimum", bound(isInteger));
        }
        if (chance(2)) {
            schema.put(chance(3) ? "exclusiveMaximum" : "maximum", bound(isInteger));
        }
        if (chance(4)) {
            schema.put("multipleOf", isInteger ? pick(List.of(2, 3, 10)) : pick(List.of(0.5, 0.01, 3)));
        }
    }

    private Object bound(boolean isInteger) {
        int whole = random.nextInt(2001) - 1000;
        return isInteger || chance(3) ? (Object) whole : (Object) (whole / 64.0);
    }

    private void string(Map<String, Object> schema) {
        if (chance(3)) {
            schema.put("minLength", random.nextInt(4));
        }
        if (isBrief || chance(3)) {
            schema.put("maxLength", (isBrief ? 10 : 3) + random.nextInt(10));
        }
        if (chance(3)) {
            schema.put("pattern", pick(PATTERNS));
        } else if (chance(3)) {
            schema.put("format", pick(FORMATS));
        }
    }

    private void array(Map<String, Object> schema, int depth) {
        if (isBrief || chance(2)) {
            schema.put("items", chance(8) ? false : value(depth));
        }
        if (chance(3)) {
            schema.put("prefixItems", List.of(value(depth), value(depth)));
        }
        if (chance(3)) {
            schema.put("minItems", random.nextInt(3));
        }
        if (isBrief || chance(3)) {
            schema.put("maxItems", 1 + random.nextInt(4));
        }
        if (chance(6)) {
            schema.put("contains", value(0));
            schema.put(chance(2) ? "minContains" : "maxContains", random.nextInt(3));
        }
        if (chance(6)) {
            schema.put("items", Map.of("enum", List.of("a", 1, 2.5, true)));
            schema.put("uniqueItems", true);
        }
    }

    private void object(Map<String, Object> schema, int depth) {
        Map<String, Object> properties = new LinkedHashMap<>();
        for (int i = random.nextInt(4); i > 0; i--) {
            properties.put(pick(NAMES), value(depth));
        }
        schema.put("properties", properties);
        if (chance(2)) {
            schema.put(
                    "required",
                    properties.keySet().stream().filter(_ -> chance(2)).toList());
        }
        if (isBrief || chance(2)) {
            schema.put("additionalProperties", isBrief || chance(2) ? false : value(depth));
        }
        if (!isBrief && chance(5)) {
            schema.put("patternProperties", Map.of(pick(PATTERNS), value(depth)));
        }
        if (chance(8)) {
            schema.put("propertyNames", Map.of("minLength", 1, "maxLength", 4));
        }
        if (chance(6)) {
            schema.put("minProperties", random.nextInt(3));
        }
        if (chance(6)) {
            schema.put("maxProperties", 1 + random.nextInt(3));
        }
        if (chance(8)) {
            schema.put("dependentRequired", Map.of(pick(NAMES), List.of(pick(NAMES))));
        }
    }

    private Object constant(int depth) {
        return switch (random.nextInt(depth > 0 ? 6 : 4)) {
            case 0 -> random.nextInt(100) - 50;
            case 1 -> random.nextInt(1000) / 8.0;
            case 2 -> pick(NAMES) + pick(NAMES);
            case 3 -> random.nextBoolean();
            case 4 -> List.of(constant(0), constant(0));
            default -> Map.of(pick(NAMES), constant(0));
        };
    }

    private boolean chance(int oneOf) {
        return random.nextInt(oneOf) == 0;
    }

    private <E> E pick(List<E> list) {
        return list.get(random.nextInt(list.size()));
    }
}
