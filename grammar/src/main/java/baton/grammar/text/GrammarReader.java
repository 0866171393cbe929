package baton.grammar.text;

import baton.grammar.regex.CharacterReader;
import baton.grammar.regex.Regexes;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.util.LinkedHashMap;
import java.util.Map;

/** Reads a grammar's text. Errors name line and column. One thread at a time. */
abstract class GrammarReader extends CharacterReader {
    private static final int MOST_CHARACTERS = 1 << 18;

    private final Map<String, Expression> rules = new LinkedHashMap<>();

    /** Where each rule is first referred to. */
    private final Map<String, Integer> references = new LinkedHashMap<>();

    private int nesting;

    GrammarReader(String text) {
        super("grammar", text, MOST_CHARACTERS);
    }

    /** Reads the whole text. */
    abstract GrammarSource read();

    /** Skips blanks and comments. */
    abstract void skip();

    /** Adds a rule. */
    void define(int position, String name, Expression expression) {
        if (expression.size() > Regexes.MAX_SIZE) {
            throw error(
                    position,
                    "'" + name + "' has more than " + Regexes.MAX_SIZE
                            + " characters and rules if repeats are written out");
        }
        if (rules.put(name, expression) != null) {
            throw error(position, "'" + name + "' is defined twice");
        }
    }

    /** A rule that is defined anywhere. */
    Expression reference(int position, String name) {
        references.putIfAbsent(name, position);
        return new Expression.Rule(name);
    }

    /**
     * All rules. Those that are referred to, and the start, are among them.
     *
     * @param sign between a rule's name and its texts, for errors
     */
    Map<String, Expression> rules(String start, String sign) {
        references.forEach((name, position) -> {
            if (!rules.containsKey(name)) {
                throw error(position, "'" + name + "' is not defined; write " + name + sign + " ...");
            }
        });
        if (!rules.containsKey(start)) {
            throw error(0, "the rule '" + start + "' is missing; write " + start + sign + " ...");
        }
        return rules;
    }

    /** An error at the next character. */
    ConfigException error(String problem) {
        return error(position(), problem);
    }

    ConfigException error(int position, String problem) {
        int line = 1;
        int column = 1;
        for (int i = 0; i < position; i++) {
            column++;
            if (character(i) == '\n') {
                line++;
                column = 1;
            }
        }
        return new ConfigException("grammar", "line " + line + ", column " + column + ": " + problem);
    }

    /** An error that names the next character. */
    ConfigException unexpected(String wanted) {
        return error(
                isAtEnd()
                        ? "the grammar ends where " + wanted + " must be"
                        : "'" + Character.toString(peek()) + "' is where " + wanted + " must be");
    }

    @Override
    protected ConfigException endError() {
        return unexpected("a character");
    }

    void require(String characters) {
        if (!take(characters)) {
            throw unexpected("'" + characters + "'");
        }
    }

    /** Goes into a group. */
    void enter() {
        if (++nesting > Regexes.MAX_NESTING) {
            throw error(position() - 1, "groups are nested deeper than " + Regexes.MAX_NESTING);
        }
    }

    void leave() {
        nesting--;
    }

    /** A decimal number, or -1 where none is next. */
    int number() {
        int start = position();
        String digits = takeWhile(c -> c >= '0' && c <= '9');
        if (digits.length() > 6 || (!digits.isEmpty() && Integer.parseInt(digits) > Regexes.MAX_SIZE)) {
            throw error(start, "a count must be at most " + Regexes.MAX_SIZE);
        }
        return digits.isEmpty() ? -1 : Integer.parseInt(digits);
    }

    /**
     * The expression as often as the sign says that is next, if one of repetition is.
     *
     * @param hint end of the error about braces without counts
     */
    Expression repeated(Expression expression, String hint) {
        int position = position();
        if (take("*")) {
            return repeated(position, expression, 0, Expression.Repeat.UNBOUNDED);
        }
        if (take("+")) {
            return repeated(position, expression, 1, Expression.Repeat.UNBOUNDED);
        }
        if (take("?")) {
            return repeated(position, expression, 0, 1);
        }
        if (!take("{")) {
            return expression;
        }
        skip();
        int least = number();
        skip();
        int most = least;
        if (take(",")) {
            skip();
            most = number();
            most = most < 0 ? Expression.Repeat.UNBOUNDED : most;
            least = Math.max(least, 0);
            skip();
        }
        if (least < 0 || !take("}")) {
            throw error(position, "the counts are missing; write {2} or {2,4}" + hint);
        }
        return repeated(position, expression, least, most);
    }

    /** The expression repeated as often as two counts say, where the most may be {@link Expression.Repeat#UNBOUNDED}. */
    Expression repeated(int position, Expression expression, int least, int most) {
        if (most < least) {
            throw error(position, "the counts are in the wrong order");
        }
        Expression repeated = Expression.repeat(expression, least, most);
        if (repeated.size() > Regexes.MAX_SIZE) {
            throw error(
                    position,
                    "the repetition has more than " + Regexes.MAX_SIZE + " characters and rules if it is written out");
        }
        return repeated;
    }

    /** A regular expression within a grammar. */
    Expression terminal(int position, String pattern, String flags) {
        if (!flags.matches("[isu]*")) {
            throw error(position, "the flags '" + flags + "' are not supported; write i, s or u");
        }
        try {
            return Regexes.terminal(pattern, flags);
        } catch (ConfigException e) {
            throw error(position, String.valueOf(e.getMessage()));
        }
    }

    /** The content of a string, after its first quote. */
    String string(boolean longHex) {
        int start = position() - 1;
        StringBuilder string = new StringBuilder();
        while (!take("\"")) {
            if (isAtEnd() || peek() == '\n' || peek() == '\r') {
                throw error(start, "the string has no end on its line");
            }
            string.appendCodePoint(take("\\") ? escape(longHex) : next());
        }
        return string.toString();
    }

    /**
     * A character by its escape, after the backslash.
     *
     * @param longHex whether <code>\x</code> has any number of digits, not two
     */
    int escape(boolean longHex) {
        int start = position() - 1;
        int c = next();
        return switch (c) {
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'a' -> 0x07;
            case 'v' -> 0x0B;
            case 'e' -> 0x1B;
            case '0' -> 0;
            case 'x' -> hex(start, longHex ? 8 : 2, longHex);
            case 'u' -> unicode(start);
            case 'U' -> hex(start, 8, false);
            default -> {
                if (c < 0x80 && Character.isLetterOrDigit(c)) {
                    throw error(start, "'\\" + (char) c + "' is no escape");
                }
                yield c;
            }
        };
    }

    private int unicode(int start) {
        int unit = hex(start, 4, false);
        int after = position();
        if (Character.isSurrogate((char) unit) && take("\\u")) {
            int second = hex(start, 4, false);
            if (Character.isSurrogatePair((char) unit, (char) second)) {
                return Character.toCodePoint((char) unit, (char) second);
            }
            back(after);
        }
        return unit;
    }

    private int hex(int start, int most, boolean fewer) {
        long value = 0;
        int digits = 0;
        while (digits < most && Character.digit(peek(), 16) >= 0) {
            value = value * 16 + Character.digit(next(), 16);
            digits++;
        }
        if (digits == 0 || (digits < most && !fewer) || value > Character.MAX_CODE_POINT) {
            throw error(
                    start, "the escape must have " + (fewer ? "" : most + " ") + "hexadecimal digits of a character");
        }
        return (int) value;
    }
}
