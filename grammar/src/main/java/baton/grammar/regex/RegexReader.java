package baton.grammar.regex;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;

/** Reads the pattern of a regular expression. */
final class RegexReader extends CharacterReader {
    /** Constructs that begin with {@code (?}, which are refused by name. */
    private static final List<String[]> REFUSED = List.of(
            new String[] {"<=", "a lookbehind"},
            new String[] {"<!", "a lookbehind"},
            new String[] {"P=", "a backreference"},
            new String[] {"P>", "a recursion"},
            new String[] {"R", "a recursion"},
            new String[] {"&", "a recursion"},
            new String[] {"(", "a conditional"},
            new String[] {"|", "a branch reset"},
            new String[] {">", "an atomic group"},
            new String[] {"#", "a comment"});

    private static final int MOST_ASSERTIONS = 1000;

    private final CharSet dot;
    private final CharacterClasses classes;
    private int nesting;
    private int assertions;
    private boolean ignoresCase;
    private boolean dotMatchesAll;

    /** @param flags in force from the beginning */
    RegexReader(String pattern, CharSet dot, String flags) {
        super("regex", pattern, Regexes.MAX_SIZE);
        this.dot = dot;
        classes = new CharacterClasses(this);
        ignoresCase = flags.contains("i");
        dotMatchesAll = flags.contains("s");
    }

    RegexNode read() {
        RegexNode node = choices();
        if (!isAtEnd()) {
            throw error("')' has no group that it closes; write \\) for the character");
        }
        return node;
    }

    static ConfigException error(int position, String problem) {
        return new ConfigException("regex", "at character " + position + ": " + problem);
    }

    /** An error at the next character. */
    ConfigException error(String problem) {
        return error(position() + 1, problem);
    }

    @Override
    protected ConfigException endError() {
        return error("the pattern ends too early");
    }

    private RegexNode choices() {
        List<RegexNode> choices = new ArrayList<>();
        do {
            choices.add(sequence());
        } while (take("|"));
        return RegexNode.choice(choices);
    }

    private RegexNode sequence() {
        List<RegexNode> parts = new ArrayList<>();
        while (!isAtEnd() && peek() != '|' && peek() != ')') {
            parts.add(quantified());
        }
        return parts.isEmpty() ? new RegexNode.Plain(Expression.empty()) : RegexNode.sequence(parts);
    }

    private RegexNode quantified() {
        int start = position();
        RegexNode node = atom();
        int quantifier = position();
        int least;
        int most = Expression.Repeat.UNBOUNDED;
        int[] range = range();
        if (range.length > 0) {
            least = range[0];
            most = range[1];
        } else if (take("*")) {
            least = 0;
        } else if (take("+")) {
            least = 1;
        } else if (take("?")) {
            least = 0;
            most = 1;
        } else {
            return node;
        }
        boolean isAnchor = node instanceof RegexNode.Anchor && character(start) != '(';
        if (isAnchor || (node instanceof RegexNode.Lookahead look && look.position() == start + 1)) {
            throw error(start + 1, "an assertion cannot be repeated");
        }
        if (!take("?") && take("+")) {
            throw error(quantifier + 1, "possessive repetition is not supported");
        }
        int after = position();
        if (peek() == '*' || peek() == '+' || peek() == '?' || range().length > 0) {
            throw error(after + 1, "nothing to repeat; write (?:...) around a repetition to repeat it");
        }
        RegexNode repeated = RegexNode.repeat(node, least, most);
        if (repeated instanceof RegexNode.Plain(Expression expression) && expression.size() > Regexes.MAX_SIZE) {
            throw error(
                    quantifier + 1,
                    "the repetition has more than " + Regexes.MAX_SIZE + " characters if it is written out");
        }
        return repeated;
    }

    /** The least and the most of {@code {m}}, <code>{m,}</code> or <code>{m,n}</code>, or nothing where none is next. */
    private int[] range() {
        int start = position();
        if (!take("{")) {
            return new int[0];
        }
        int least = number();
        int most = least;
        if (take(",")) {
            most = number();
            if (least < 0 && most >= 0 && peek() == '}') {
                throw error(start + 1, "the least count is missing; write {0," + most + "}");
            }
            most = most < 0 ? Expression.Repeat.UNBOUNDED : most;
        }
        if (least < 0 || !take("}")) {
            back(start);
            return new int[0];
        }
        if (most < least) {
            throw error(start + 1, "the counts are in the wrong order; write {" + most + "," + least + "}");
        }
        if (least > Regexes.MAX_SIZE || (most > Regexes.MAX_SIZE && most != Expression.Repeat.UNBOUNDED)) {
            throw error(start + 1, "a count must be at most " + Regexes.MAX_SIZE);
        }
        return new int[] {least, most};
    }

    /** A decimal number, or -1; one that is too large is some other that is too large. */
    private int number() {
        int number = -1;
        while (peek() >= '0' && peek() <= '9') {
            number = Math.min(Math.max(number, 0) * 10 + next() - '0', 100 * Regexes.MAX_SIZE);
        }
        return number;
    }

    private RegexNode atom() {
        int c = next();
        return switch (c) {
            case '^' -> assertion(RegexNode.Anchor.BEGIN);
            case '$' -> assertion(RegexNode.Anchor.END);
            case '.' -> set(dotMatchesAll ? CharSet.ALL : dot);
            case '[' -> set(classes.bracketed(ignoresCase));
            case '\\' -> ofCase(classes.escape());
            case '(' -> group();
            case '*', '+', '?' ->
                throw error(position(), "nothing to repeat; write \\" + (char) c + " for the character");
            case '{' -> {
                back(position() - 1);
                if (range().length > 0) {
                    throw error(position(), "nothing to repeat; write \\{ for the character");
                }
                next();
                yield set(CharSet.of('{'));
            }
            default -> ofCase(CharSet.of(c));
        };
    }

    private RegexNode assertion(RegexNode assertion) {
        if (++assertions > MOST_ASSERTIONS) {
            throw error(position(), "there are more than " + MOST_ASSERTIONS + " anchors and lookaheads");
        }
        return assertion;
    }

    private RegexNode ofCase(CharSet set) {
        return set(ignoresCase ? CharacterClasses.ofAnyCase(set) : set);
    }

    private static RegexNode set(CharSet set) {
        return new RegexNode.Plain(Expressions.chars(set));
    }

    private RegexNode group() {
        int start = position();
        if (++nesting > Regexes.MAX_NESTING) {
            throw error(start, "groups are nested deeper than " + Regexes.MAX_NESTING);
        }
        boolean ignoredCase = ignoresCase;
        boolean dotMatchedAll = dotMatchesAll;
        boolean looks = take("?=");
        boolean looksAway = !looks && take("?!");
        boolean wholeGroup = false;
        if (!looks && !looksAway && take("?")) {
            wholeGroup = modifier(start);
        }
        RegexNode inner;
        if (wholeGroup) {
            inner = new RegexNode.Plain(Expression.empty());
        } else {
            inner = choices();
            ignoresCase = ignoredCase;
            dotMatchesAll = dotMatchedAll;
            if (!take(")")) {
                throw error(start, "the group is not closed");
            }
        }
        nesting--;
        return looks || looksAway ? assertion(new RegexNode.Lookahead(inner, looksAway, start)) : inner;
    }

    /** Reads to the content of a group. Returns true for flags that hold to the end of the group around, which have no content. */
    private boolean modifier(int start) {
        for (String[] refused : REFUSED) {
            if (take(refused[0])) {
                throw error(start, refused[1] + " '(?" + refused[0] + "' is not supported");
            }
        }
        if (take("P<") || take("<")) {
            String name = takeWhile(c -> Character.isUnicodeIdentifierPart(c) || c == '$');
            if (name.isEmpty() || !take(">")) {
                throw error(start, "the name of the group is not valid; write (?<name>...)");
            }
            return false;
        }
        boolean on = true;
        while (true) {
            int c = next();
            switch (c) {
                case ':' -> {
                    return false;
                }
                case ')' -> {
                    return true;
                }
                case 'i' -> ignoresCase = on;
                case 's' -> dotMatchesAll = on;
                case 'u' -> {}
                case '-' -> on = false;
                default ->
                    throw error(position(), "'" + Character.toString(c) + "' is not a flag of groups; write i, s or u");
            }
        }
    }
}
