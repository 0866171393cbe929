package baton.server.output;

import baton.grammar.rule.Expression;
import baton.grammar.rule.Expression.Member;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiFunction;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** The parameters of a tool, for formats that write each by itself. A schema that says more of the whole than their names cannot be kept then. */
record ToolProperties(Tool tool, ObjectNode schema) {
    private static final Set<String> OF_THE_WHOLE = Set.of(
            "$comment",
            "$defs",
            "$id",
            "$schema",
            "additionalProperties",
            "definitions",
            "description",
            "properties",
            "required",
            "title",
            "type");
    private static final Set<String> OF_A_TEXT =
            Set.of("$comment", "const", "default", "description", "enum", "examples", "title", "type");

    /** Empty for a tool that is not strict if its schema says more of the whole. */
    static Optional<ToolProperties> of(Tool tool) {
        ObjectNode schema = tool.parameters().orElseGet(JsonTypes::emptyObject);
        for (String keyword : schema.propertyNames()) {
            if (!OF_THE_WHOLE.contains(keyword)) {
                refuseIfStrict(tool, "." + keyword);
                return Optional.empty();
            }
        }
        return Optional.of(new ToolProperties(tool, schema));
    }

    private static void refuseIfStrict(Tool tool, String path) {
        if (tool.strict()) {
            throw new ConfigException(
                    tool.field() + ".parameters" + path,
                    "cannot be enforced in the format of this model's calls, which writes each parameter by itself");
        }
    }

    /** The parameters in the schema's order, those that are not required at will. */
    Expression members(String separator, BiFunction<String, JsonNode, Expression> parameter) {
        Set<String> required = Set.copyOf(schema.path("required")
                .valueStream()
                .map(name -> name.asString(""))
                .toList());
        List<Member> members = new ArrayList<>();
        schema.path("properties")
                .properties()
                .forEach(property -> members.add(new Member(
                        parameter.apply(property.getKey(), withDefinitions(property.getValue())),
                        required.contains(property.getKey()))));
        return new Expression.Members(
                members, false, Expression.text(separator), Expression.nothing(), 0, Expression.Repeat.UNBOUNDED);
    }

    /** References of a parameter's schema are to definitions of the whole. */
    private JsonNode withDefinitions(JsonNode property) {
        if (!(property instanceof ObjectNode object)) {
            return property;
        }
        ObjectNode whole = object.deepCopy();
        for (String definitions : List.of("$defs", "definitions")) {
            if (schema.has(definitions) && !whole.has(definitions)) {
                whole.set(definitions, schema.get(definitions));
            }
        }
        return whole;
    }

    /** Whether a parameter may be a string, which is written without quotes. */
    boolean isText(String name) {
        return JsonTypes.of(schema.path("properties").path(name)).contains("string");
    }

    private static boolean saysTheTypeOnly(JsonNode schema) {
        return Set.of("description", "title", "type").containsAll(schema.propertyNames());
    }

    /** The texts of a parameter that has only some; empty for any. */
    Optional<Expression> texts(String name) {
        JsonNode property = schema.path("properties").path(name);
        for (String keyword : property.propertyNames()) {
            boolean isKept = OF_A_TEXT.contains(keyword)
                    || (keyword.equals("anyOf") || keyword.equals("oneOf"))
                            && property.get(keyword).valueStream().allMatch(ToolProperties::saysTheTypeOnly);
            if (!isKept) {
                refuseIfStrict(tool, ".properties." + name + "." + keyword);
            }
        }
        List<JsonNode> values = new ArrayList<>(property.path("enum").values());
        if (property.has("const")) {
            values = List.of(property.get("const"));
        }
        return values.isEmpty()
                ? Optional.empty()
                : Optional.of(new Expression.Choice(values.stream()
                        .map(value -> Expression.text(value.isString() ? value.asString() : value.toString()))
                        .toList()));
    }
}
