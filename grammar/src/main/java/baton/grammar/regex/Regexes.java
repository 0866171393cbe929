package baton.grammar.regex;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.List;

/**
 * Regular expressions of ECMA-262 with the flag {@code u}, as JSON Schema has them. Named groups may be written {@code (?P<name>...)},
 * {@code (?i)} and {@code (?s)} are known, and a character that needs no escape may have one.
 *
 * <p>The texts that a pattern matches are exact: anchors and lookaheads too, where lookaheads are not repeated. Which alternative or how
 * many repeats a matcher would prefer makes no difference.
 *
 * <p>Errors name the field {@code regex} and the position of the character, counted from 1.
 */
public final class Regexes {
    /** Most characters of a pattern, and of one with its repeats written out. */
    public static final int MAX_SIZE = 1 << 16;

    /** Most groups within each other. */
    public static final int MAX_NESTING = 100;

    /** All characters but ECMA-262's line terminators. */
    private static final CharSet DOT = CharSet.of("\n\r\u2028\u2029").complement();

    /** All characters but the line feed, as in Rust's and Python's expressions. */
    private static final CharSet RUST_DOT = CharSet.of('\n').complement();

    private Regexes() {}

    /**
     * The texts that a pattern matches as a whole.
     *
     * @throws ConfigException if it is not a regular expression, not a regular one, or too large
     */
    public static Expression expression(String pattern) {
        return texts(List.of(new RegexReader(pattern, DOT, "").read()));
    }

    /**
     * The texts in which a pattern matches anywhere.
     *
     * @throws ConfigException as {@link #expression} does
     */
    public static Expression search(String pattern) {
        RegexNode any = new RegexNode.Plain(Expression.any());
        return texts(List.of(any, new RegexReader(pattern, DOT, "").read(), any));
    }

    /**
     * The texts that the pattern of a Lark terminal matches as a whole.
     *
     * @param flags of {@code i}, {@code s} and {@code u}
     * @throws ConfigException as {@link #expression} does
     */
    public static Expression terminal(String pattern, String flags) {
        return texts(List.of(new RegexReader(pattern, RUST_DOT, flags).read()));
    }

    private static Expression texts(List<RegexNode> parts) {
        Expression texts = new RegexTexts().through(parts, true);
        if (texts.size() > MAX_SIZE) {
            throw new ConfigException(
                    "regex",
                    "has more than " + MAX_SIZE
                            + " characters if repeats, and parts before and after anchors, are written out");
        }
        return texts;
    }
}
