package baton.grammar.schema;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.CharSet.Range;
import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

/**
 * Strings as JSON writes them. Each character is written as itself or as one of its escapes. Intersections and complements are found
 * over characters, so that escapes are in no automaton of a product.
 */
final class JsonStrings {
    private static final CharSet RAW =
            CharSet.range(0x20, Character.MAX_CODE_POINT).minus(CharSet.of("\"\\"));

    /** Characters with an escape of one letter, each before its letter. */
    private static final String LETTERS = "\"\"\\\\//\bb\ff\nn\rr\tt";

    private static final int SUPPLEMENTARY = 0x10000;

    /** Names beyond it are not written as a tree of characters. */
    private static final int LONG = 100;

    /** Characters that JSON escapes, and the slash. */
    static final CharSet ESCAPED = RAW.complement().union(CharSet.of("/"));

    /** The same and all that are not ASCII. */
    static final CharSet NOT_PRINTABLE = ESCAPED.union(CharSet.range(0x7F, Character.MAX_CODE_POINT));

    private static final String HEX = "0123456789abcdefABCDEF";

    /** All supplementary characters, after the backslash. */
    private static final Expression PAIRS = Expression.sequence(
            Expression.text("u"),
            new Expression.Chars(CharSet.of("dD")),
            new Expression.Chars(CharSet.of("89abAB")),
            Expression.repeat(new Expression.Chars(CharSet.of(HEX)), 2, 2),
            Expression.text("\\u"),
            new Expression.Chars(CharSet.of("dD")),
            new Expression.Chars(CharSet.of("cdefCDEF")),
            Expression.repeat(new Expression.Chars(CharSet.of(HEX)), 2, 2));

    /** Numbers from the first one to the last one. */
    private record Span(long first, long last) {}

    private final Map<CharSet, Expression> characters = new HashMap<>();
    private final Map<CharSet, Expression> escapes = new HashMap<>();

    private final CharSet escapable;
    private final Work work;

    /** @param escapable characters that escapes may stand for */
    JsonStrings(CharSet escapable, Work work) {
        this.escapable = escapable;
        this.work = work;
    }

    /** A JSON string with the characters of an expression. */
    Expression quoted(Expression decoded) {
        return quotes(written(decoded));
    }

    /**
     * All JSON strings but some, as a tree of their characters: the complement of an automaton takes more steps. Empty if one
     * of them is long.
     */
    Optional<Expression> except(Set<String> strings) {
        return strings.stream().anyMatch(string -> string.length() > LONG)
                ? Optional.empty()
                : Optional.of(quotes(allBut(new TreeSet<>(strings).stream().toList(), 0)));
    }

    /** Strings that differ from each of some sorted ones, from a position that these are equal up to. */
    private Expression allBut(List<String> strings, int at) {
        List<Expression> choices = new ArrayList<>();
        List<Integer> next = new ArrayList<>();
        if (strings.getFirst().length() > at) {
            choices.add(Expression.empty());
        }
        for (int i = strings.getFirst().length() > at ? 0 : 1; i < strings.size(); ) {
            int point = strings.get(i).codePointAt(at);
            int end = i;
            while (end < strings.size() && strings.get(end).codePointAt(at) == point) {
                end++;
            }
            next.add(point);
            choices.add(Expression.sequence(
                    character(CharSet.of(point)), allBut(strings.subList(i, end), at + Character.charCount(point))));
            i = end;
        }
        CharSet others =
                CharSet.of(next.stream().mapToInt(Integer::intValue).toArray()).complement();
        choices.add(Expression.sequence(
                character(others), Expression.repeat(character(CharSet.ALL), 0, Expression.Repeat.UNBOUNDED)));
        return new Expression.Choice(choices);
    }

    private static Expression quotes(Expression content) {
        return Expression.sequence(Expression.text("\""), content, Expression.text("\""));
    }

    private Expression written(Expression decoded) {
        return switch (decoded) {
            case Expression.Text(String text) ->
                new Expression.Sequence(text.codePoints()
                        .mapToObj(point -> character(CharSet.of(point)))
                        .toList());
            case Expression.Chars(CharSet set) -> character(set);
            case Expression.Sequence _, Expression.Choice _, Expression.Repeat _, Expression.Automaton _ ->
                decoded.map(this::written);
            case Expression.And _, Expression.Not _ -> written(work.automaton(decoded));
            case Expression.Rule _, Expression.Members _, Expression.SpecialToken _ ->
                throw new IllegalArgumentException("no expression of strings: " + decoded);
        };
    }

    /** One character of a set: itself, an escape of a letter, or of hexadecimal digits. */
    private Expression character(CharSet set) {
        return characters.computeIfAbsent(set, this::newCharacter);
    }

    private Expression newCharacter(CharSet set) {
        Expression raw = new Expression.Chars(set.intersection(RAW));
        CharSet escaped = set.intersection(escapable);
        return escaped.isEmpty() ? raw : Expression.choice(raw, escapes.computeIfAbsent(escaped, JsonStrings::escape));
    }

    private static Expression escape(CharSet set) {
        StringBuilder letters = new StringBuilder();
        for (int i = 0; i < LETTERS.length(); i += 2) {
            if (set.contains(LETTERS.charAt(i))) {
                letters.append(LETTERS.charAt(i + 1));
            }
        }
        List<Expression> forms = new ArrayList<>();
        forms.add(new Expression.Chars(CharSet.of(letters.toString())));
        List<Span> units = new ArrayList<>();
        List<Span> pairs = new ArrayList<>();
        for (Range range : set.ranges()) {
            if (range.first() < SUPPLEMENTARY) {
                units.add(new Span(range.first(), Math.min(range.last(), SUPPLEMENTARY - 1)));
            }
            if (range.first() <= SUPPLEMENTARY && range.last() == Character.MAX_CODE_POINT) {
                forms.add(PAIRS);
                break;
            }
            for (int next = Math.max(range.first(), SUPPLEMENTARY); next <= range.last(); next = (next | 0x3FF) + 1) {
                pairs.add(new Span(pair(next), pair(Math.min(next | 0x3FF, range.last()))));
            }
        }
        forms.add(Expression.sequence(Expression.text("u"), hexadecimal(units, 4)));
        forms.add(Expression.sequence(Expression.text("u"), hexadecimal(pairs, 8)));
        return Expression.sequence(Expression.text("\\"), new Expression.Choice(forms));
    }

    /** The surrogates of a character as one number. */
    private static long pair(int point) {
        return (long) Character.highSurrogate(point) << 16 | Character.lowSurrogate(point);
    }

    /** Numbers of some spans in so many hexadecimal digits. */
    private static Expression hexadecimal(List<Span> spans, int digits) {
        if (digits == 0) {
            return Expression.empty();
        }
        long size = 1L << 4 * (digits - 1);
        Map<List<Span>, StringBuilder> byRest = new LinkedHashMap<>();
        for (int digit = 0; digit < 16; digit++) {
            List<Span> rest = new ArrayList<>();
            for (Span span : spans) {
                long first = Math.max(span.first - digit * size, 0);
                long last = Math.min(span.last - digit * size, size - 1);
                if (first <= last) {
                    rest.add(new Span(first, last));
                }
            }
            if (!rest.isEmpty()) {
                String lower = Integer.toHexString(digit);
                byRest.computeIfAbsent(rest, _ -> new StringBuilder())
                        .append(lower)
                        .append(lower.toUpperCase(Locale.ROOT));
            }
        }
        List<Expression> choices = new ArrayList<>();
        byRest.forEach((rest, first) -> choices.add(Expression.sequence(
                new Expression.Chars(CharSet.of(first.toString())),
                Expression.text(digits == 5 ? "\\u" : ""),
                hexadecimal(rest, digits - 1))));
        return Expression.choice(choices);
    }
}
