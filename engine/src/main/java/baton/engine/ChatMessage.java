package baton.engine;

import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;

/** One message of a conversation: its role ({@code system}, {@code user}, {@code assistant}, ...) and its text. */
public record ChatMessage(String role, String content) {
    public static ChatMessage user(String content) {
        return new ChatMessage("user", content);
    }

    public static ChatMessage assistant(String content) {
        return new ChatMessage("assistant", content);
    }

    public static ChatMessage system(String content) {
        return new ChatMessage("system", content);
    }

    /** {@code {"role": ..., "content": ...}}. */
    public JsonNode toJson() {
        return JsonNodeFactory.instance.objectNode().put("role", role).put("content", content);
    }
}
