package baton.server;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.server.output.Tool;
import baton.server.output.ToolFormat;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/**
 * The functions that the model may call in a chat, as {@code tools}, {@code tool_choice} and {@code parallel_tool_calls} say.
 *
 * @param tools empty if it may call none
 * @param required whether it has to call at least one
 * @param named whether a function is named, which is called once
 * @param parallel whether there may be several calls
 */
record ToolUse(List<Tool> tools, boolean required, boolean named, boolean parallel) {
    private static final String FIELD = "tool_choice";
    private static final String WANTED = "none, auto, required, {\"type\": \"function\", \"function\": {\"name\": ...}}"
            + " or {\"type\": \"allowed_tools\", ...}";

    /**
     * Reads the fields.
     *
     * @param format of the model's calls; empty if the server does not look for them
     */
    static ToolUse read(JsonFields fields, Optional<ToolFormat> format) {
        List<Tool> tools = fields.objects("tools").orElse(List.of()).stream()
                .map(ToolUse::tool)
                .toList();
        boolean parallel = fields.bool("parallel_tool_calls").orElse(true);
        Optional<JsonNode> choice = fields.value(FIELD);
        // As in vLLM, null asks for calls only where they are looked for.
        boolean isNull = choice.isEmpty() && fields.names().contains(FIELD);
        if (choice.isEmpty() && (tools.isEmpty() || (isNull && format.isEmpty()))
                || choice.filter(value -> value.asString("").equals("none")).isPresent()) {
            return new ToolUse(List.of(), false, false, parallel);
        }
        if (tools.isEmpty()) {
            throw ApiException.badField(FIELD, "is " + Json.shown(choice.get()) + ", which needs tools");
        }
        ToolUse use = of(fields, choice, tools, parallel);
        if (format.isEmpty()) {
            throw ApiException.badField(
                    FIELD,
                    "is " + choice.map(Json::shown).orElse("\"auto\"")
                            + ", which requires --enable-auto-tool-choice and --tool-call-parser to be set");
        }
        return use;
    }

    private static ToolUse of(JsonFields fields, Optional<JsonNode> choice, List<Tool> tools, boolean parallel) {
        if (choice.isEmpty() || choice.get().isString()) {
            String mode = choice.map(JsonNode::asString).orElse("auto");
            return new ToolUse(tools, isRequired(FIELD, mode), false, parallel);
        }
        if (!choice.get().isObject()) {
            throw ApiException.badField(FIELD, "is " + Json.shown(choice.get()) + ", must be " + WANTED);
        }
        JsonFields object = fields.object(FIELD).orElseThrow();
        return switch (object.string("type").orElse("function")) {
            case "function" -> {
                if (fields.value("structured_outputs").isPresent()) {
                    throw ApiException.badField(
                            "structured_outputs", "cannot be used beside a tool_choice that names a function");
                }
                yield new ToolUse(List.of(named(object, tools)), true, true, false);
            }
            case "allowed_tools" -> {
                JsonFields allowed = required(object, "allowed_tools");
                List<JsonFields> listed = allowed.objects("tools")
                        .filter(each -> !each.isEmpty())
                        .orElseThrow(() -> ApiException.badField(
                                allowed.field("tools"), "is missing or empty, must be an array of tools"));
                Set<Tool> named =
                        listed.stream().map(each -> named(each, tools)).collect(Collectors.toSet());
                yield new ToolUse(
                        tools.stream().filter(named::contains).toList(),
                        isRequired(allowed.field("mode"), allowed.string("mode").orElse("auto")),
                        false,
                        parallel);
            }
            default -> throw ApiException.badField(FIELD, "is " + Json.shown(choice.get()) + ", must be " + WANTED);
        };
    }

    private static boolean isRequired(String field, String mode) {
        return switch (mode) {
            case "auto" -> false;
            case "required" -> true;
            default -> throw ConfigException.unsupported(field, mode, field.equals(FIELD) ? WANTED : "auto, required");
        };
    }

    private static Tool named(JsonFields choice, List<Tool> tools) {
        JsonFields function = required(choice, "function");
        String name = function.string("name").orElse("");
        return tools.stream()
                .filter(tool -> tool.name().equals(name))
                .findFirst()
                .orElseThrow(() -> ApiException.badField(
                        function.field("name"),
                        "is '" + Json.shortened(name) + "', must be the name of one of the tools: "
                                + Json.shortened(tools.stream().map(Tool::name).collect(Collectors.joining(", ")))));
    }

    private static JsonFields required(JsonFields object, String name) {
        return object.object(name)
                .orElseThrow(() -> ApiException.badField(object.field(name), "is missing, must be an object"));
    }

    /** The fields are checked where the tools are rendered. */
    private static Tool tool(JsonFields tool) {
        Optional<JsonFields> function = tool.object("function");
        return new Tool(
                tool.field("function"),
                function.flatMap(each -> each.string("name")).orElse(""),
                function.flatMap(each -> each.object("parameters")).map(JsonFields::toJson),
                function.flatMap(each -> each.bool("strict")).orElse(false));
    }
}
