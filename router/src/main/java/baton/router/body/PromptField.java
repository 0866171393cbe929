package baton.router.body;

import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.ObjectReadContext;
import tools.jackson.core.json.JsonFactory;

/**
 * The field with the prompt of a request: {@code prompt} of a completion, which is a text, an array of token ids, or an array of either, {@code messages}
 * of a chat, or {@code input} of a request of {@code /v1/responses}.
 */
public final class PromptField {
    public static final String PROMPT = "prompt";
    private static final String INPUT = "input";
    private static final List<String> NAMES = List.of(PROMPT, "messages", INPUT);

    /** The limit of prompts in one request. */
    public static final int MOST = 4096;

    private static final JsonFactory FACTORY = new JsonFactory();

    private PromptField() {}

    /** Its name, if there is one. */
    public static Optional<String> name(JsonObjectText body) {
        for (String name : NAMES) {
            if (body.hasNonNull(name)) {
                return Optional.of(name);
            }
        }
        return Optional.empty();
    }

    /** Whether the request may be one of {@code /v1/responses}. */
    public static boolean mayBeOfResponses(JsonObjectText body) {
        return body.hasNonNull(INPUT);
    }

    /** Limits the answer to one token, by the fields of both kinds of request where a body has the prompts of both. */
    public static JsonObjectText.Edit askForOneToken(JsonObjectText body, JsonObjectText.Edit edit) {
        if (mayBeOfResponses(body)) {
            edit.set("max_output_tokens", "1");
        }
        return name(body).filter(INPUT::equals).isPresent() ? edit : edit.set("max_tokens", "1");
    }

    /**
     * How many there are; 1 for a request without the field.
     *
     * @throws ConfigException if there are more than {@link #MOST}
     */
    public static int count(JsonObjectText body) {
        return arrayOf(body).map(prompt -> elements(prompt).size()).orElse(1);
    }

    /**
     * The JSON text of each; empty if there is one only.
     *
     * @throws ConfigException if there are more than {@link #MOST}
     */
    public static List<byte[]> split(JsonObjectText body) {
        return arrayOf(body)
                .map(prompt -> {
                    List<int[]> elements = elements(prompt);
                    return elements.size() < 2
                            ? List.<byte[]>of()
                            : elements.stream()
                                    .map(each -> Arrays.copyOfRange(prompt, each[0], each[1]))
                                    .toList();
                })
                .orElse(List.of());
    }

    private static Optional<byte[]> arrayOf(JsonObjectText body) {
        return body.isArray(PROMPT) ? body.value(PROMPT) : Optional.empty();
    }

    /** Where each element of an array begins and ends; the whole, if it is one prompt. */
    private static List<int[]> elements(byte[] prompt) {
        List<int[]> whole = List.of(new int[] {0, prompt.length});
        try (JsonParser parser = FACTORY.createParser(ObjectReadContext.empty(), prompt)) {
            JsonToken _ = parser.nextToken();
            List<int[]> elements = new ArrayList<>();
            for (JsonToken token = parser.nextToken(); token != JsonToken.END_ARRAY; token = parser.nextToken()) {
                if (token.isNumeric()) {
                    return whole;
                }
                if (elements.size() == MOST) {
                    throw new ConfigException(
                            "prompt", "holds more than " + MOST + " prompts, must hold at most so many");
                }
                int start = (int) parser.currentTokenLocation().getByteOffset();
                parser.skipChildren();
                // Texts are read to their ends only when they are asked for.
                if (parser.currentToken() == JsonToken.VALUE_STRING) {
                    int _ = parser.getStringLength();
                }
                elements.add(new int[] {start, (int) parser.currentLocation().getByteOffset()});
            }
            return elements.isEmpty() ? whole : elements;
        }
    }
}
