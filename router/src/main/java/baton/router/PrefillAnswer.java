package baton.router;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.trace.RequestTrace;
import baton.router.upstream.ConnectorAddress;
import baton.router.upstream.Question;
import io.vertx.core.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The whole answer to a prefill leg: the prompt's cache is complete only then. */
sealed interface PrefillAnswer {
    /** The prompt is computed. */
    record Prefilled(JsonObjectText answer, Optional<RequestTrace.PromptTokens> tokens) implements PrefillAnswer {}

    /** A 4xx, which no other instance would answer differently. */
    record Rejected(Question.Answer answer) implements PrefillAnswer {}

    /** An error of the instance, or no JSON. */
    record Failed(String reason) implements PrefillAnswer {}

    JsonMapper MAPPER = JsonMapper.builder().build();
    int MAX_QUOTED_ERROR = 300;
    int MOST_USAGE_BYTES = 4096;
    List<String> BESIDE_CHOICES = List.of(ConnectorAddress.FIELD, "prompt_token_ids", "usage", "error");

    /** Reads an answer. Takes time in proportion to its length. */
    static PrefillAnswer of(Question.Answer answer) {
        int status = answer.status();
        // 508: a leg to another instance would end in the same cycle of routers.
        if ((status >= 400 && status < 500) || status == 508) {
            return new Rejected(answer);
        }
        byte[] text = answer.body().getBytes();
        if (status != 200) {
            return new Failed("HTTP " + status + quotedError(text));
        }
        try {
            JsonObjectText parsed = isStream(answer) ? ofEvents(text) : JsonObjectText.parse("its answer", text);
            if (isStream(answer) && parsed.hasNonNull("error")) {
                return new Failed("its stream ended with an error"
                        + quotedError(parsed.text().getBytes()));
            }
            return new Prefilled(parsed, promptTokens(parsed));
        } catch (ConfigException e) {
            return new Failed(String.valueOf(e.getMessage()));
        }
    }

    private static boolean isStream(Question.Answer answer) {
        return Optional.ofNullable(answer.headers().get(HttpHeaders.CONTENT_TYPE))
                .filter(type -> type.startsWith("text/event-stream"))
                .isPresent();
    }

    /**
     * The first event of a stream, with the other events' fields beside their choices.
     *
     * @throws ConfigException if an event is no JSON, or the last is missing
     */
    private static JsonObjectText ofEvents(byte[] text) {
        List<String> events = new String(text, StandardCharsets.UTF_8)
                .lines()
                .filter(line -> line.startsWith("data:"))
                .map(line -> line.substring("data:".length()).strip())
                .toList();
        if (events.size() < 2 || !events.getLast().equals("[DONE]")) {
            throw new ConfigException("its answer", "is a stream that does not end with [DONE]");
        }
        List<JsonObjectText> parsed = events.subList(0, events.size() - 1).stream()
                .map(event -> JsonObjectText.parse("its answer", event.getBytes(StandardCharsets.UTF_8)))
                .toList();
        JsonObjectText.Edit all = parsed.getFirst().edit();
        for (JsonObjectText event : parsed) {
            for (String name : BESIDE_CHOICES) {
                event.value(name).ifPresent(value -> all.set(name, value));
            }
        }
        return all.object();
    }

    /** The number of the prompt's tokens in OpenAI's field {@code usage}. Its fields have other names in answers of {@code /v1/responses}. */
    private static Optional<RequestTrace.PromptTokens> promptTokens(JsonObjectText answer) {
        return answer.value("usage")
                .filter(usage -> usage.length <= MOST_USAGE_BYTES)
                .flatMap(usage -> {
                    JsonNode tokens = MAPPER.readTree(usage);
                    String prompt = tokens.has("input_tokens") ? "input_tokens" : "prompt_tokens";
                    JsonNode all = tokens.path(prompt);
                    int cached = tokens.path(prompt + "_details")
                            .path("cached_tokens")
                            .asInt(0);
                    return all.isInt()
                            ? Optional.of(new RequestTrace.PromptTokens(all.asInt(), cached))
                            : Optional.empty();
                });
    }

    /** The message of the instance's error, if there is one. */
    private static String quotedError(byte[] text) {
        try {
            String message = MAPPER.readTree(text).path("error").path("message").asString("");
            return message.isEmpty() ? "" : ": " + message.substring(0, Math.min(message.length(), MAX_QUOTED_ERROR));
        } catch (JacksonException e) {
            return "";
        }
    }
}
