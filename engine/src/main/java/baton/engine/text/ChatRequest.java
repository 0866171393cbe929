package baton.engine.text;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.JsonNode;

/**
 * The variables that a chat template renders.
 *
 * @param messages OpenAI's message objects, in order
 * @param tools OpenAI's tool objects, as in a request's {@code tools}; none is not the same to a template as an empty list
 * @param addGenerationPrompt whether to end with the text after which the model answers as the assistant
 * @param continueFinalMessage whether to end within the last message, for the model to go on with it
 * @param variables further variables for the template ({@code chat_template_kwargs}); they replace special tokens of the same name
 */
public record ChatRequest(
        List<JsonNode> messages,
        Optional<List<JsonNode>> tools,
        boolean addGenerationPrompt,
        boolean continueFinalMessage,
        Map<String, JsonNode> variables) {
    /** @throws ChatTemplateException if both {@code addGenerationPrompt} and {@code continueFinalMessage} are asked for */
    public ChatRequest {
        messages = List.copyOf(messages);
        tools = tools.map(List::copyOf);
        variables = Map.copyOf(variables);
        if (addGenerationPrompt && continueFinalMessage) {
            throw new ChatTemplateException(
                    "add_generation_prompt and continue_final_message are both true; only one of them can be");
        }
    }

    /** The text of the last message. */
    public String lastText() {
        return messages.isEmpty() ? "" : Conversation.text(messages.getLast());
    }

    /** A conversation that the assistant is to answer, without tools. */
    public static ChatRequest of(List<JsonNode> messages) {
        return new ChatRequest(messages, Optional.empty(), true, false, Map.of());
    }
}
