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
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The messages of a chat request as the model's template writes them.
 *
 * @param responseRole role of the message that the model writes
 */
record ChatPrompt(String text, String responseRole) {
    /**
     * Reads {@code messages}, {@code tools}, {@code chat_template_kwargs}, {@code add_generation_prompt} and {@code
     * continue_final_message}.
     *
     * @throws ConfigException naming the field that is not as it should be
     */
    static ChatPrompt read(JsonFields fields, Optional<ChatTemplate> template, String assistant) {
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
        fields.object("chat_template_kwargs")
                .ifPresent(kwargs ->
                        kwargs.toJson().properties().forEach(entry -> variables.put(entry.getKey(), entry.getValue())));
        String text = chat.render(new ChatRequest(
                messages,
                fields.objects("tools")
                        .filter(tools -> !tools.isEmpty())
                        .map(tools ->
                                tools.stream().<JsonNode>map(JsonFields::toJson).toList()),
                addGenerationPrompt,
                continues,
                variables));
        return new ChatPrompt(text, role);
    }

    /** A message whose content, if any, is a string or an array of text parts; which of them it reads is the template's. */
    private static ObjectNode message(JsonFields fields) {
        if (fields.string("role").filter(role -> !role.isBlank()).isEmpty()) {
            throw ApiException.badField(fields.field("role"), "is missing, must be a string such as user");
        }
        ObjectNode message = fields.toJson();
        Optional<JsonNode> content = fields.value("content");
        if (content.isPresent()) {
            requireText(fields, content.get());
        } else if (fields.value("tool_calls").isEmpty()) {
            throw ApiException.badField(fields.field("content"), "is missing, must be a string or an array of parts");
        }
        fields.string("name");
        fields.objects("tool_calls").ifPresent(calls -> calls.forEach(call -> call.object("function")));
        return message;
    }

    private static void requireText(JsonFields message, JsonNode content) {
        if (content.isString()) {
            return;
        }
        if (!content.isArray()) {
            throw ApiException.badField(
                    message.field("content"), "must be a string or an array of parts, is " + Json.shown(content));
        }
        for (JsonFields part : message.objects("content").orElse(List.of())) {
            String type = part.string("type")
                    .orElseThrow(() -> ApiException.badField(part.field("type"), "is missing, must be text"));
            if (!type.equals("text")) {
                throw ConfigException.unsupported(part.field("type"), type, "text");
            }
            if (part.string("text").isEmpty()) {
                throw ApiException.badField(part.field("text"), "is missing, must be a string");
            }
        }
    }
}
