package baton.engine.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/**
 * Where a text may be cut, so that the tokens of the pieces, one after the other, are the tokens of the whole.
 *
 * <p>A tokenizer that first splits a text into words by one of {@link #KNOWN_PATTERNS} makes each word's tokens from the word alone. All of
 * these patterns end a word, whatever lies around,
 * <ul>
 *   <li>between a letter and a space, full stop or comma that a letter follows;
 *   <li>between a line feed, unless white space is before it, and a letter.
 * </ul>
 * None of their alternatives goes on over such a place or looks further behind it than these characters. "Letter" stands for characters that have
 * been letters in every version of Unicode. Normal form C joins nothing across such a place. Of other tokenizers nothing is known.
 */
record TextCuts(boolean known) {
    private static final String CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    private static final String UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
    private static final String LOWER = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
    private static final String BEFORE = "[^\\r\\n\\p{L}\\p{N}]?";
    private static final String LINES = "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    private static final String SIGNS = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*";
    private static final String SIGNS_SLASH = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*";

    static final String GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    static final String LLAMA3 = CONTRACTIONS + "|" + BEFORE + "\\p{L}+|\\p{N}{1,3}" + SIGNS + LINES;

    /** The pattern of Qwen 2 and Qwen 3. */
    static final String QWEN2 = CONTRACTIONS + "|" + BEFORE + "\\p{L}+|\\p{N}" + SIGNS + LINES;

    static final String O200K = BEFORE + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" + BEFORE + UPPER + "+" + LOWER
            + "*" + CONTRACTIONS + "?|\\p{N}{1,3}" + SIGNS_SLASH + LINES;
    static final String TEKKEN =
            BEFORE + UPPER + "*" + LOWER + "+|" + BEFORE + UPPER + "+" + LOWER + "*|\\p{N}" + SIGNS_SLASH + LINES;

    static final Set<String> KNOWN_PATTERNS = Set.of(GPT2, LLAMA3, QWEN2, O200K, TEKKEN);

    private static final String BEFORE_LETTERS = " .,\u3002\uFF0C\u3001";

    /** The cuts for a tokenizer with an unknown pattern. */
    static final TextCuts NONE = new TextCuts(false);

    /** @param root of a {@code tokenizer.json} */
    static TextCuts of(JsonNode root) {
        return new TextCuts(keepsPlaces(root.path("normalizer"))
                && splitsThere(root.path("pre_tokenizer"))
                && root.path("added_tokens").valueStream().allMatch(TextCuts::staysOnOneSide));
    }

    /** The end of the piece that begins at {@code start}: at the first such place after {@code wanted} characters, or the text's end. */
    int end(String text, int start, int wanted) {
        if (!known || text.length() - start <= wanted) {
            return text.length();
        }
        int at = start + Math.max(2, wanted);
        while (at < text.length() && !isCut(text, at)) {
            at++;
        }
        return Math.min(at, text.length());
    }

    /** The last such place from which on there are {@code characters} or more; 0 if there is none. */
    int tail(String text, long characters) {
        if (!known || text.length() <= characters) {
            return 0;
        }
        int at = (int) (text.length() - characters);
        while (at > 1 && !isCut(text, at)) {
            at--;
        }
        return at > 1 ? at : 0;
    }

    /** @param at from 2 to less than the length */
    private static boolean isCut(CharSequence text, int at) {
        if (!mayBeCut(text.charAt(at - 1), text.charAt(at))) {
            return false;
        }
        return text.charAt(at - 1) == '\n'
                ? !isSpace(text.charAt(at - 2))
                : at + 1 < text.length() && isLetter(text.charAt(at + 1));
    }

    /** Whether there are texts that are cut between these two. */
    private static boolean mayBeCut(char before, char after) {
        return isLetter(before) ? BEFORE_LETTERS.indexOf(after) >= 0 : before == '\n' && isLetter(after);
    }

    private static boolean isLetter(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '\u4E00' && c <= '\u9FA5');
    }

    static boolean isSpace(char c) {
        return Character.isWhitespace(c) || Character.isSpaceChar(c) || c == '\u0085';
    }

    private static boolean keepsPlaces(JsonNode normalizer) {
        return steps(normalizer, "normalizers").stream()
                .allMatch(step -> step.path("type").asString("").equals("NFC"));
    }

    private static boolean splitsThere(JsonNode preTokenizer) {
        boolean splits = false;
        for (JsonNode step : steps(preTokenizer, "pretokenizers")) {
            switch (step.path("type").asString("")) {
                case "Split" -> {
                    if (!KNOWN_PATTERNS.contains(
                                    step.path("pattern").path("Regex").asString(""))
                            || !step.path("behavior").asString("").equals("Isolated")
                            || step.path("invert").asBoolean(false)) {
                        return false;
                    }
                    splits = true;
                }
                case "ByteLevel" -> {
                    if (step.path("add_prefix_space").asBoolean(true)) {
                        return false;
                    }
                    splits |= step.path("use_regex").asBoolean(true);
                }
                // Looks at one character at a time.
                case "Digits" -> {}
                default -> {
                    return false;
                }
            }
        }
        return splits;
    }

    /** Whether no occurrence of an added token, with the white space that it takes, can lie across a cut. */
    private static boolean staysOnOneSide(JsonNode token) {
        String content = token.path("content").asString("");
        if (content.isEmpty()) {
            return false;
        }
        for (int at = 1; at < content.length(); at++) {
            if (mayBeCut(content.charAt(at - 1), content.charAt(at))) {
                return false;
            }
        }
        // Where a piece ends no word goes on, so a token would be found that the whole text does not have.
        if (token.path("single_word").asBoolean(false)
                && (BEFORE_LETTERS.indexOf(content.charAt(0)) >= 0 || content.endsWith("\n"))) {
            return false;
        }
        return !(token.path("lstrip").asBoolean(false) && isLetter(content.charAt(0)))
                && !(token.path("rstrip").asBoolean(false) && isLetter(content.charAt(content.length() - 1)));
    }

    /** The steps of a pipeline, which may be nested; none for {@code null}. */
    static List<JsonNode> steps(JsonNode pipeline, String name) {
        if (!pipeline.path("type").asString("").equals("Sequence")) {
            return pipeline.isObject() ? List.of(pipeline) : List.of();
        }
        List<JsonNode> steps = new ArrayList<>();
        for (JsonNode step : pipeline.path(name)) {
            steps.addAll(steps(step, name));
        }
        return steps;
    }
}
