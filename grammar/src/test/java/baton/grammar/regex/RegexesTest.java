package baton.grammar.regex;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.automaton.Grammar;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.grammar.rule.Texts;
import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Beside java.util.regex, which has the same language for these patterns. */
class RegexesTest {
    @ParameterizedTest
    @ValueSource(
            strings = {
                "ab|ba",
                "a*",
                "a+?b??",
                "(a|b)*c",
                "(?:ab){2,3}",
                "a{2}",
                "a{0,2}b{1,}",
                "[a-c]{2}",
                "[^a]",
                "[^ab]+",
                "(?<x>a)b|c",
                "",
                "a||b",
                "()",
                "(a|)b",
                "(a*)*",
                "(a|b|)*c",
                "a.c",
                "[ab]?c",
                "[-a]b",
                "[a-]b",
                "(?i)aB",
                "(?i:a)b",
                "(?s:.)b",
                "a(?i)b|c",
                "((?i)a)b",
                "(?i)[^a]",
                "(?i)[a]"
            })
    void textsThatMatchAsAWholeAreThose(String pattern) {
        Pattern other = Pattern.compile(pattern);
        Expression whole = Regexes.expression(pattern);
        Expression anywhere = Regexes.search(pattern);
        for (String text : texts()) {
            assertThat(Texts.has(whole, text))
                    .as("%s matches '%s'", pattern, text)
                    .isEqualTo(other.matcher(text).matches());
            assertThat(Texts.has(anywhere, text))
                    .as("%s is in '%s'", pattern, text)
                    .isEqualTo(other.matcher(text).find());
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "^ab",
                "ab$",
                "^ab$",
                "^a|b$",
                "(^a|b)c",
                "(?:^|b)a(?:b|$)",
                "^$",
                "^",
                "$",
                "a^",
                "$a",
                "a*^b",
                "a$b*",
                "(^a)*b",
                "(a$|b)*",
                "(?:^|a|$){2}",
                "(^|a){0,3}b",
                "(^a?$)?",
                "^(a|^b)c$",
                "a?^b?$c?",
                "(a|^)(b|$)",
                "(?:a?$)+",
                "(^){2}a",
                "(?=a)",
                "^(?=.*a)(?=.*b).{2,3}$",
                "^(?!a)",
                "(?!a)b",
                "a(?!b)",
                "a(?=b|$)c?",
                "^(?!ab$)",
                "^(?:a(?=b)|b(?!a))",
                "(?:(?!a)b)?c",
                "a?(?=^b)",
                "(?!(?=a)ab)a",
                "^(?:(?=a)a|b)c?$",
                "c(?![^b])"
            })
    void assertionsHoldWhereTheyStand(String pattern) {
        textsThatMatchAsAWholeAreThose(pattern.replace("$", "\\z"), pattern);
    }

    private static void textsThatMatchAsAWholeAreThose(String java, String pattern) {
        Pattern other = Pattern.compile(java);
        Expression anywhere = Regexes.search(pattern);
        Expression whole = Regexes.expression(pattern);
        for (String text : texts()) {
            assertThat(Texts.has(anywhere, text))
                    .as("%s is in '%s'", pattern, text)
                    .isEqualTo(other.matcher(text).find());
            // Lookaheads of a match see to the end of the text, so a whole match is one that nothing follows.
            Pattern all = Pattern.compile("^(?:" + java + ")\\z");
            assertThat(Texts.has(whole, text))
                    .as("%s matches '%s'", pattern, text)
                    .isEqualTo(all.matcher(text).find());
        }
    }

    @Test
    void randomPatternsMatchAsInJava() {
        long seed = Long.getLong("tests.seed", 42);
        Random random = new Random(seed);
        for (int i = 0; i < 1000; i++) {
            String pattern = pattern(random, 4);
            Pattern other = Pattern.compile(pattern.replace("$", "\\z"));
            Expression anywhere;
            try {
                anywhere = Regexes.search(pattern);
            } catch (ConfigException refused) {
                assertThat(refused).as(pattern).hasMessageContaining("lookahead");
                continue;
            }
            Optional<Grammar> grammar = compiled(anywhere);
            for (int j = 0; j < 30; j++) {
                String text = texts().get(random.nextInt(texts().size()));
                boolean found = other.matcher(text).find();
                assertThat(grammar.isPresent() && grammar.get().accepts(text.getBytes(StandardCharsets.UTF_8)))
                        .as("automaton: %s is in '%s', seed %s", pattern, text, seed)
                        .isEqualTo(found);
                assertThat(Texts.has(anywhere, text))
                        .as("%s is in '%s', seed %s", pattern, text, seed)
                        .isEqualTo(other.matcher(text).find());
            }
        }
    }

    /** Nothing where no text matches. */
    private static Optional<Grammar> compiled(Expression expression) {
        try {
            return Optional.of(Grammar.compile(GrammarSource.of(expression)));
        } catch (ConfigException empty) {
            return Optional.empty();
        }
    }

    private static String pattern(Random random, int depth) {
        if (depth == 0) {
            return List.of("a", "b", "c", "[ab]", "^", "$", ".", "").get(random.nextInt(8));
        }
        String first = pattern(random, depth - 1);
        String second = pattern(random, depth - 1);
        return switch (random.nextInt(9)) {
            case 0, 1, 2 -> first + second;
            case 3, 4 -> "(?:" + first + "|" + second + ")";
            case 5 -> "(?:" + first + ")*";
            case 6 -> "(?:" + first + "){0,2}";
            case 7 -> "(?:" + first + "){2,3}";
            default -> random.nextBoolean() ? "(?=" + first + ")" + second : "(?!" + first + ")" + second;
        };
    }

    private static List<String> texts() {
        List<String> texts =
                new ArrayList<>(List.of("", "A", "aB", "-b", "-", "\n", "a\nc", "abcab", "aaaa", "ababab"));
        List<String> longest = List.of("");
        for (int length = 1; length <= 3; length++) {
            List<String> longer = new ArrayList<>();
            for (String text : longest) {
                for (String c : List.of("a", "b", "c")) {
                    longer.add(text + c);
                }
            }
            texts.addAll(longer);
            longest = longer;
        }
        return texts;
    }

    /** The characters that reading properties skips are like the one before them. */
    @Test
    void skippedCharactersHaveTheSameProperties() {
        for (int c = 0; c < Character.MAX_CODE_POINT; c++) {
            int next = UnicodeProperties.after(c);
            for (int skipped = c + 1; skipped < Math.min(next, Character.MAX_CODE_POINT + 1); skipped++) {
                assertThat(properties(skipped)).as("U+%X", skipped).isEqualTo(properties(c));
            }
            c = Math.max(c, next - 1);
        }
    }

    private static int properties(int c) {
        int properties = Character.getType(c) << 16
                | Character.UnicodeScript.of(c).name().hashCode() & 0xffff;
        return properties
                ^ (Character.isAlphabetic(c)
                                || Character.isIdeographic(c)
                                || Character.isUnicodeIdentifierPart(c)
                                || Character.isEmoji(c)
                                || Character.isExtendedPictographic(c)
                        ? 1 << 31
                        : 0);
    }

    @Test
    void classesAndEscapes() {
        String[][] cases = {
            {"\\d", "5", "٥"},
            {"\\D", "٥", "5"},
            {"\\w", "_", "é"},
            {"\\W", "é", "_"},
            {"\\s", "\u00A0", "x"},
            {"\\s", "\uFEFF", "\u0085"},
            {"\\S", "x", "\u3000"},
            {"[\\d-x]", "-", "a"},
            {"[\\w-]", "-", "."},
            {"\\u0041", "A", "B"},
            {"\\u{1F600}", "😀", "x"},
            {"\\ud83d\\ude00", "😀", "x"},
            {"[\\ud83d\\u{41}]", "A", "4"},
            {"\\x41", "A", "B"},
            {"\\cJx", "\nx", "x"},
            {"[\\b]", "\b", "b"},
            {"\\/\\-\\_\\\"", "/-_\"", "x"},
            {"\\p{Lu}", "É", "é"},
            {"\\P{Lu}", "é", "É"},
            {"\\p{L}", "ß", "1"},
            {"\\p{Letter}", "ß", "1"},
            {"\\p{Script=Greek}", "λ", "l"},
            {"\\p{sc=Cyrillic}", "д", "d"},
            {"\\p{gc=Nd}", "٥", "x"},
            {"\\p{Alphabetic}", "ß", "1"},
            {"\\p{ASCII}", "a", "é"},
            {"\\p{Emoji_Presentation}", "😀", "a"},
            {"[\\p{Lu}\\p{Nd}]", "7", "a"},
            {"[^\\p{L}]", "1", "a"},
            {"[^]", "x", "xx"},
            {".", "😀", "\u2028"},
            {"a{", "a{", "a"},
            {"a{x}", "a{x}", "a"},
            {"x]", "x]", "x"},
            {"(?i)É", "É", "é"},
            {"\\0", "\0", "0"}
        };
        for (String[] each : cases) {
            assertThat(Texts.has(Regexes.expression(each[0]), each[1]))
                    .as(each[0])
                    .isTrue();
            assertThat(Texts.has(Regexes.expression(each[0]), each[2]))
                    .as(each[0])
                    .isFalse();
        }
    }

    @Test
    void terminalsOfLarkHaveRustsDotAndFlags() {
        assertThat(Texts.has(Regexes.terminal("a.", ""), "a\r")).isTrue();
        assertThat(Texts.has(Regexes.terminal("a.", ""), "a\n")).isFalse();
        assertThat(Texts.has(Regexes.terminal("a.", "is"), "A\n")).isTrue();
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '§',
            quoteCharacter = '`',
            value = {
                "(a)\\1§regex: at character 4: a backreference '\\1' is not supported",
                "\\k<x>§regex: at character 1: a backreference '\\k' is not supported",
                "a(?<=b)§regex: at character 2: a lookbehind '(?<=' is not supported",
                "(?<!b)§regex: at character 1: a lookbehind '(?<!' is not supported",
                "\\bx§regex: at character 1: a word boundary '\\b' is not supported",
                "(?>a)§regex: at character 1: an atomic group '(?>' is not supported",
                "x(?m)a§regex: at character 4: 'm' is not a flag of groups; write i, s or u",
                "a++§regex: at character 2: possessive repetition is not supported",
                "a**§regex: at character 3: nothing to repeat; write (?:...) around a repetition to repeat it",
                "^*§regex: at character 1: an assertion cannot be repeated",
                "*§regex: at character 1: nothing to repeat; write \\* for the character",
                "(a§regex: at character 1: the group is not closed",
                "a)§regex: at character 2: ')' has no group that it closes; write \\) for the character",
                "[a§regex: at character 1: the class is not closed",
                "[]§regex: at character 1: the class is empty; write \\] for the character within a class",
                "[z-a]§regex: at character 3: the range is in the wrong order",
                "[[:alpha:]]§regex: at character 2: a class by name '[:' is not supported; write \\p{...} or its ranges",
                "a{3,2}§regex: at character 2: the counts are in the wrong order; write {2,3}",
                "a{,2}§regex: at character 2: the least count is missing; write {0,2}",
                "a{99999999999}§regex: at character 2: a count must be at most 65536",
                "\\q§regex: at character 1: an unknown escape '\\q' is not supported",
                "\\Ax§regex: at character 1: an anchor of other dialects; write ^ or $: it '\\A' is not supported",
                "\\§regex: at character 2: the pattern ends too early",
                "((?!a)b)*§regex: at character 2: a lookahead within a repetition is not supported; it may stand where"
                        + " nothing repeats it",
            })
    void patternsThatAreNotRegularAreRefusedByNameAndPosition(String pattern, String message) {
        assertThatThrownBy(() -> Regexes.search(pattern))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    @Test
    void patternsThatAreTooLargeAreRefused() {
        for (String pattern : List.of(
                "(a{1000}){1000}",
                "((((a{100}){100}){100}){100}){100}",
                "(".repeat(50_000) + ")".repeat(50_000),
                "[" + "a-z".repeat(40_000) + "]",
                "a".repeat(70_000),
                "^".repeat(60_000),
                "(?=a)".repeat(10_000),
                "(?:(?=a)|b)".repeat(50),
                "\\p{L}".repeat(13_000))) {
            assertThatThrownBy(() -> Regexes.search(pattern))
                    .as(pattern.substring(0, 11))
                    .isInstanceOf(ConfigException.class);
        }
    }

    /** Either result is right; steps are counted. */
    @Test
    @Timeout(300)
    void anchorsWithinEachOtherTakeNoExponentialTime() {
        for (String pattern :
                List.of("(?:^a?$b?){2}".repeat(200), "(?:^|a|$)".repeat(300), "(?:(?:^a?|$)*(?:b?|^))*".repeat(50))) {
            try {
                assertThat(Regexes.search(pattern).size()).isLessThanOrEqualTo(Regexes.MAX_SIZE);
            } catch (ConfigException refused) {
                assertThat(refused).hasMessageContaining("anchors");
            }
        }
    }
}
