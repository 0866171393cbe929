package baton.server;

import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.BooleanNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The messages of a chat request, read as vLLM 0.32 reads them and rendered by the model's template.
 *
 * @param responseRole role of the message that the model writes
 * @param continued text of the last message, if it has that role
 */
record ChatPrompt(String text, String responseRole, String continued) {
    private static final List<String> EFFORTS = List.of("none", "minimal", "low", "medium", "high", "xhigh", "max");

    /** Names in {@code chat_template_kwargs} that are not variables of the template: arguments of the renderer, and Jinja's own functions. */
    private static final List<String> NOT_VARIABLES = List.of(
            "add_generation_prompt",
            "chat_template",
            "continue_final_message",
            "cycler",
            "dict",
            "joiner",
            "lipsum",
            "max_length",
            "namespace",
            "padding",
            "range",
            "return_assistant_tokens_mask",
            "return_dict",
            "return_tensors",
            "tokenize",
            "tokenizer_kwargs",
            "tools",
            "truncation");

    /**
     * Reads {@code messages}, {@code tools}, {@code documents}, {@code reasoning_effort}, {@code chat_template_kwargs}, {@code
     * add_generation_prompt} and {@code continue_final_message}.
     *
     * @param watch run repeatedly while the template is rendered; may throw to end the rendering
     * @throws ConfigException naming the malformed field
     */
    static ChatPrompt read(JsonFields fields, Optional<ChatTemplate> template, String assistant, Runnable watch) {
        ChatTemplate chat = template.filter(ChatTemplate::isPresent)
                .orElseThrow(() -> ApiException.badRequest(
                        "the model has no chat template (tokenizer_config.json: chat_template); use /v1/completions"));
        fields.objects("messages");
        List<JsonNode> messages = fields.value("messages")
                .map(each -> List.copyOf(each.values()))
                .orElseThrow(() -> ApiException.badField("messages", "is missing, must be an array of messages"));
        if (messages.isEmpty()) {
            throw ApiException.badField("messages", "is empty, must have at least one message");
        }
        boolean addGenerationPrompt = fields.bool("add_generation_prompt").orElse(true);
        boolean continues = fields.bool("continue_final_message").orElse(false);
        if (continues && addGenerationPrompt) {
            throw ApiException.badField(
                    "continue_final_message",
                    "cannot be true while add_generation_prompt is true"
                            + (fields.value("add_generation_prompt").isPresent() ? "" : ", which it is by default"));
        }
        JsonFields kwargs = fields.object("chat_template_kwargs").orElse(JsonFields.empty("chat_template_kwargs"));
        Optional<List<JsonNode>> tools = fields.objects("tools").map(ChatPrompt::tools);
        ChatRequest request = new ChatRequest(
                messages,
                kwargs.objects("tools").map(ChatPrompt::nodes).or(() -> tools),
                addGenerationPrompt,
                continues,
                variables(fields, kwargs));
        String text = chat.render(request, watch);
        String role = messages.getLast().path("role").asString("");
        String responseRole = addGenerationPrompt ? assistant : role;
        return new ChatPrompt(text, responseRole, role.equals(responseRole) ? request.lastText() : "");
    }

    private static List<JsonNode> nodes(List<JsonFields> objects) {
        return objects.stream().<JsonNode>map(JsonFields::toJson).toList();
    }

    /** The variables of {@code chat_template_kwargs} that are neither null nor {@code auto}, overridden by those of fields of their own. */
    private static Map<String, JsonNode> variables(JsonFields fields, JsonFields kwargs) {
        Map<String, JsonNode> variables = new HashMap<>();
        kwargs.toJson().properties().forEach(entry -> variables.put(entry.getKey(), entry.getValue()));
        for (String name : List.of("messages", "conversation")) {
            if (variables.containsKey(name)) {
                throw ApiException.badField(kwargs.field(name), "is not allowed, messages are a field of the request");
            }
        }
        fields.string("reasoning_effort").ifPresent(effort -> {
            if (!EFFORTS.contains(effort)) {
                throw ConfigException.unsupported("reasoning_effort", effort, String.join(", ", EFFORTS));
            }
            variables.put("reasoning_effort", JsonNodeFactory.instance.stringNode(effort));
            variables.putIfAbsent("enable_thinking", BooleanNode.valueOf(!effort.equals("none")));
        });
        kwargs.objects("documents");
        fields.objects("documents")
                .ifPresent(documents ->
                        documents.forEach(document -> document.names().forEach(document::string)));
        fields.value("documents").ifPresent(documents -> variables.put("documents", documents));
        NOT_VARIABLES.forEach(variables::remove);
        variables
                .values()
                .removeIf(value -> value.isNull() || value.asString("").equals("auto"));
        return variables;
    }

    /** The tools with vLLM's fields, in its order. */
    private static List<JsonNode> tools(List<JsonFields> tools) {
        if (tools.isEmpty()) {
            throw ApiException.badField("tools", "is empty, must have at least one tool or be absent");
        }
        return tools.stream().<JsonNode>map(ChatPrompt::tool).toList();
    }

    private static ObjectNode tool(JsonFields tool) {
        String type = tool.string("type").orElse("function");
        if (!type.equals("function")) {
            throw ConfigException.unsupported(tool.field("type"), type, "function");
        }
        JsonFields function = tool.object("function")
                .orElseThrow(() -> ApiException.badField(tool.field("function"), "is missing, must be an object"));
        String name = function.string("name")
                .orElseThrow(() -> ApiException.badField(function.field("name"), "is missing, must be a string"));
        ObjectNode read = JsonNodeFactory.instance.objectNode().put("type", type);
        ObjectNode readFunction = read.putObject("function").put("name", name);
        function.string("description");
        function.object("parameters");
        for (String field : List.of("description", "parameters")) {
            readFunction.set(field, function.value(field).orElse(JsonNodeFactory.instance.nullNode()));
        }
        function.bool("strict").ifPresent(strict -> readFunction.put("strict", strict));
        Optional<Boolean> deferred = tool.bool("defer_loading");
        function.bool("defer_loading").or(() -> deferred).ifPresent(defer -> readFunction.put("defer_loading", defer));
        deferred.ifPresent(defer -> read.put("defer_loading", defer));
        return read;
    }
}
