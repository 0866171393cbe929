package baton.server;

import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The messages of a chat request, rendered by the model's template.
 *
 * @param responseRole role of the message that the model writes
 * @param continued text of the last message, if it has that role
 */
record ChatPrompt(String text, String responseRole, String continued) {
    private static final Set<String> TEXT_PARTS = Set.of("text", "input_text", "output_text");

    /** Fields that are variables of templates. */
    private static final List<String> VARIABLES = List.of("documents", "reasoning_effort");

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
        List<JsonNode> messages = new ArrayList<>();
        for (JsonFields message : fields.objects("messages")
                .orElseThrow(() -> ApiException.badField("messages", "is missing, must be an array of messages"))) {
            messages.add(message(message));
        }
        if (messages.isEmpty()) {
            throw ApiException.badField("messages", "is empty, must have at least one message");
        }
        boolean continues = fields.bool("continue_final_message").orElse(false);
        boolean addGenerationPrompt = fields.bool("add_generation_prompt").orElse(!continues);
        if (continues && addGenerationPrompt) {
            throw ApiException.badField("continue_final_message", "cannot be true while add_generation_prompt is true");
        }
        String role =
                addGenerationPrompt ? assistant : messages.getLast().get("role").asString();
        Map<String, JsonNode> variables = new HashMap<>();
        fields.objects("documents");
        fields.string("reasoning_effort");
        VARIABLES.forEach(name -> fields.value(name).ifPresent(value -> variables.put(name, value)));
        fields.object("chat_template_kwargs")
                .ifPresent(kwargs ->
                        kwargs.toJson().properties().forEach(entry -> variables.put(entry.getKey(), entry.getValue())));
        String text = chat.render(
                new ChatRequest(
                        messages,
                        fields.objects("tools")
                                .filter(tools -> !tools.isEmpty())
                                .map(tools -> tools.stream()
                                        .<JsonNode>map(JsonFields::toJson)
                                        .toList()),
                        addGenerationPrompt,
                        continues,
                        variables),
                watch);
        return new ChatPrompt(text, role, continued(messages.getLast(), role));
    }

    private static String continued(JsonNode last, String role) {
        if (!last.path("role").asString("").equals(role)) {
            return "";
        }
        JsonNode content = last.path("content");
        return content.isArray()
                ? content.valueStream()
                        .map(part -> part.path("text").asString(""))
                        .collect(Collectors.joining("\n"))
                : content.asString("");
    }

    /** A message whose content, if any, is a string or an array of text parts; the template chooses which it reads. */
    private static ObjectNode message(JsonFields fields) {
        if (fields.string("role").filter(role -> !role.isBlank()).isEmpty()) {
            throw ApiException.badField(fields.field("role"), "is missing, must be a string such as user");
        }
        ObjectNode message = fields.toJson();
        Optional<JsonNode> content = fields.value("content");
        if (content.isPresent()) {
            message.set("content", textContent(fields, content.get()));
        } else if (fields.value("tool_calls").isEmpty()) {
            throw ApiException.badField(fields.field("content"), "is missing, must be a string or an array of parts");
        }
        fields.string("name");
        fields.objects("tool_calls").ifPresent(calls -> calls.forEach(call -> call.object("function")));
        return message;
    }

    /** A string unchanged; an array with each element as a text part. */
    private static JsonNode textContent(JsonFields message, JsonNode content) {
        if (content.isString()) {
            return content;
        }
        if (!content.isArray()) {
            throw ApiException.badField(
                    message.field("content"), "must be a string or an array of parts, is " + Json.shown(content));
        }
        ArrayNode parts = JsonNodeFactory.instance.arrayNode();
        for (JsonNode element : content) {
            if (element.isString()) {
                parts.add(textPart(element.asString()));
                continue;
            }
            String name = message.field("content[" + parts.size() + "]");
            if (!(element instanceof ObjectNode object)) {
                throw ApiException.badField(name, "must be an object or a string, is " + Json.shown(element));
            }
            JsonFields part = JsonFields.of(name, object);
            String type = part.string("type")
                    .orElseThrow(() -> ApiException.badField(part.field("type"), "is missing, must be text"));
            if (!TEXT_PARTS.contains(type)) {
                throw ConfigException.unsupported(part.field("type"), type, "text, input_text, output_text");
            }
            parts.add(textPart(part.string("text")
                    .orElseThrow(() -> ApiException.badField(part.field("text"), "is missing, must be a string"))));
        }
        return parts;
    }

    private static ObjectNode textPart(String text) {
        return JsonNodeFactory.instance.objectNode().put("type", "text").put("text", text);
    }
}
