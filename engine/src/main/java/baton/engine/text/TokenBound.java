package baton.engine.text;

import java.nio.charset.StandardCharsets;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/**
 * The least number of tokens of a text: its bytes divided by those of the longest token. The bound needs every byte of the text to be a
 * byte of a token, so there is none for a tokenizer that may drop or join characters.
 *
 * @param bytesPerToken most bytes of the text that one token can stand for; 0 if there may be any number
 * @param countsSpace whether white space counts; an added token may take any amount of it
 */
record TokenBound(int bytesPerToken, boolean countsSpace) {
    private static final TokenBound NONE = new TokenBound(0, false);
    /** Normal form C makes at most three bytes one: of the Kelvin sign a K. */
    private static final int SHORTENED_BY_NFC = 3;

    private static final Set<String> KEEPING_ALL = Set.of("ByteLevel", "Split", "Digits", "Metaspace");

    /** @param root of a {@code tokenizer.json} */
    static TokenBound of(JsonNode root, Vocabulary vocabulary) {
        JsonNode model = root.path("model");
        if (!model.path("type").asString("").equals("BPE")
                || vocabulary.form() != Vocabulary.Form.BYTES
                || !vocabulary.hasEveryByte()
                || !(model.path("byte_fallback").asBoolean(false) || isByteLevel(root.path("pre_tokenizer")))
                || TextCuts.steps(root.path("pre_tokenizer"), "pretokenizers").stream()
                        .anyMatch(TokenBound::mayDrop)) {
            return NONE;
        }
        int factor = 1;
        int prepended = 0;
        for (JsonNode step : TextCuts.steps(root.path("normalizer"), "normalizers")) {
            switch (step.path("type").asString("")) {
                case "NFC" -> factor = SHORTENED_BY_NFC;
                case "Prepend" -> prepended += utf8Length(step.path("prepend").asString(""));
                case "Replace" -> {
                    if (!step.path("pattern").path("String").asString("").equals(" ")
                            || !step.path("content").asString("").equals("\u2581")) {
                        return NONE;
                    }
                }
                default -> {
                    return NONE;
                }
            }
        }
        int longest = vocabulary.longest();
        boolean strips = false;
        for (JsonNode token : root.path("added_tokens")) {
            // One that is looked for in the normalized text is normalized itself.
            longest = Math.max(
                    longest, prepended + utf8Length(token.path("content").asString("")));
            strips |= token.path("lstrip").asBoolean(false)
                    || token.path("rstrip").asBoolean(false);
        }
        return new TokenBound(longest * factor, !strips);
    }

    private static int utf8Length(String text) {
        return text.getBytes(StandardCharsets.UTF_8).length;
    }

    private static boolean isByteLevel(JsonNode preTokenizer) {
        return TextCuts.steps(preTokenizer, "pretokenizers").stream()
                .anyMatch(step -> step.path("type").asString("").equals("ByteLevel"));
    }

    private static boolean mayDrop(JsonNode step) {
        return !KEEPING_ALL.contains(step.path("type").asString(""))
                || step.path("behavior").asString("").equals("Removed");
    }

    /** A number of tokens that the text has at least. */
    long least(String text) {
        if (bytesPerToken == 0) {
            return 0;
        }
        long bytes = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (countsSpace || !TextCuts.isSpace(c)) {
                // Half of a surrogate pair: two of four bytes, and two of the three of U+FFFD where it has no other
                // half. U+2581 may be a token's space.
                bytes += c < 0x80 || c == '\u2581' ? 1 : c < 0x800 || Character.isSurrogate(c) ? 2 : 3;
            }
        }
        return (bytes + bytesPerToken - 1) / bytesPerToken;
    }

    /** A number of characters that have at least so many tokens; {@code Long.MAX_VALUE} if none is known. */
    long characters(int tokens) {
        return bytesPerToken == 0 || !countsSpace ? Long.MAX_VALUE : (long) tokens * bytesPerToken;
    }
}
