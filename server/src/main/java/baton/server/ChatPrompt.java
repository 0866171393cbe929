package baton.server;

import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The messages of a chat request as the model's template writes them.
 *
 * @param responseRole role of the message that the model writes
 */
record ChatPrompt(String text, String responseRole) {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /**
     * Reads {@code messages}, {@code tools}, {@code chat_template_kwargs}, {@code add_generation_prompt} and {@code
     * continue_final_message}.
     *
     * @throws ConfigException naming the field that is not as it should be
     */
    static ChatPrompt read(JsonFields fields, Optional<ChatTemplate> template, String assistant) {
        ChatTemplate chat = template.orElseThrow(() -> ApiException.badRequest(
                "the model has no chat template (tokenizer_config.json: chat_template); use /v1/completions"));
        List<ObjectNode> messages = new ArrayList<>();
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
        return new ChatPrompt(
                render(
                        chat,
                        messages,
                        fields.objects("tools").orElse(List.of()),
                        fields.object("chat_template_kwargs").orElse(JsonFields.empty("chat_template_kwargs")),
                        addGenerationPrompt,
                        continues),
                role);
    }

    private static String render(
            ChatTemplate template,
            List<ObjectNode> messages,
            List<JsonFields> tools,
            JsonFields arguments,
            boolean addGenerationPrompt,
            boolean continues) {
        return "";
    }

    /** A message whose content, if any, is one string, and whose tool calls have their arguments as objects. */
    private static ObjectNode message(JsonFields fields) {
        if (fields.string("role").filter(role -> !role.isBlank()).isEmpty()) {
            throw ApiException.badField(fields.field("role"), "is missing, must be a string such as user");
        }
        ObjectNode message = fields.toJson();
        Optional<JsonNode> content = fields.value("content");
        if (content.isPresent()) {
            message.put("content", text(fields, content.get()));
        } else if (fields.value("tool_calls").isEmpty()) {
            throw ApiException.badField(fields.field("content"), "is missing, must be a string or an array of parts");
        }
        fields.string("name");
        for (JsonFields call : fields.objects("tool_calls").orElse(List.of())) {
            call.object("function");
        }
        if (message.get("tool_calls") instanceof ArrayNode calls) {
            calls.forEach(ChatPrompt::openArguments);
        }
        return message;
    }

    private static String text(JsonFields message, JsonNode content) {
        if (content.isString()) {
            return content.asString();
        }
        if (!content.isArray()) {
            throw ApiException.badField(
                    message.field("content"), "must be a string or an array of parts, is " + Json.shown(content));
        }
        List<String> texts = new ArrayList<>();
        for (JsonFields part : message.objects("content").orElse(List.of())) {
            String type = part.string("type").orElse("text");
            if (!type.equals("text")) {
                throw ConfigException.unsupported(part.field("type"), type, "text");
            }
            texts.add(part.string("text")
                    .orElseThrow(() -> ApiException.badField(part.field("text"), "is missing, must be a string")));
        }
        return String.join("\n", texts);
    }

    /** Clients send a call's arguments as a string of JSON; templates want them as what they say. */
    private static void openArguments(JsonNode call) {
        if (call.get("function") instanceof ObjectNode function
                && function.get("arguments") instanceof JsonNode arguments
                && arguments.isString()) {
            try {
                function.set("arguments", MAPPER.readTree(arguments.asString()));
            } catch (JacksonException _) {
                // The model wrote something else; the template gets it as it is.
            }
        }
    }
}
