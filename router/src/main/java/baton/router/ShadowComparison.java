package baton.router;

import baton.router.metrics.RouterMetrics;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * The answer to a client beside a second one with log probabilities.
 *
 * @param equalCharacters of the text before the answers part
 * @param margin log probability of the second answer's token there, less that of the second best; not a number if it is not known
 */
record ShadowComparison(Verdict verdict, int equalCharacters, double margin) {
    /** The label {@code result}. */
    enum Verdict implements RouterMetrics.Label {
        EQUAL,
        /** The answers part where two tokens are about equally likely. */
        CLOSE,
        DIFFERENT,
        /** The second answer did not come, or cannot be read. */
        FAILED,
        /** The limit of running comparisons was reached, the instance leaves, or the answer was too long. */
        SKIPPED
    }

    /** Right blocks that another engine computed in 16 bits change answers below this margin; see docs/interoperating.md. */
    private static final double CLOSE_MARGIN = 0.5;

    private static final JsonMapper JSON = JsonMapper.builder().build();

    /**
     * @param first a JSON object, or server-sent events
     * @param second a JSON object
     * @throws tools.jackson.core.JacksonException if one of them cannot be read
     */
    static ShadowComparison of(String first, String second) {
        JsonNode choice = JSON.readTree(second).path("choices").path(0);
        String text = text(choice);
        String other = firstText(first);
        int common = 0;
        while (common < Math.min(text.length(), other.length()) && text.charAt(common) == other.charAt(common)) {
            common++;
        }
        if (text.equals(other)) {
            return new ShadowComparison(Verdict.EQUAL, common, Double.NaN);
        }
        double margin = margin(choice.path("logprobs"), common);
        return new ShadowComparison(margin <= CLOSE_MARGIN ? Verdict.CLOSE : Verdict.DIFFERENT, common, margin);
    }

    private static String firstText(String answer) {
        if (answer.stripLeading().startsWith("{")) {
            return text(JSON.readTree(answer).path("choices").path(0));
        }
        StringBuilder all = new StringBuilder();
        answer.lines()
                .filter(line -> line.startsWith("data:") && !line.endsWith("[DONE]"))
                .forEach(line -> all.append(text(JSON.readTree(line.substring("data:".length()))
                        .path("choices")
                        .path(0))));
        return all.toString();
    }

    /** The text of a choice or a part of it: text, content, or arguments of calls. */
    private static String text(JsonNode choice) {
        JsonNode message = choice.has("delta") ? choice.path("delta") : choice.path("message");
        StringBuilder text = new StringBuilder(choice.path("text").asString(""))
                .append(message.path("content").asString(""));
        message.path("tool_calls")
                .forEach(call ->
                        text.append(call.path("function").path("arguments").asString("")));
        return text.toString();
    }

    /** The margin of the token after {@code characters} characters. */
    private static double margin(JsonNode logprobs, int characters) {
        boolean chat = logprobs.has("content");
        JsonNode tokens = logprobs.path(chat ? "content" : "tokens");
        int end = 0;
        for (int i = 0; i < tokens.size(); i++) {
            JsonNode token = tokens.path(i);
            end += (chat ? token.path("token") : token).asString("").length();
            if (end > characters || i == tokens.size() - 1) {
                double[] best = (chat
                                ? token.path("top_logprobs").valueStream().map(each -> each.path("logprob"))
                                : logprobs.path("top_logprobs").path(i).valueStream())
                        .mapToDouble(JsonNode::asDouble)
                        .sorted()
                        .toArray();
                return best.length < 2 ? Double.NaN : best[best.length - 1] - best[best.length - 2];
            }
        }
        return Double.NaN;
    }
}
