package baton.grammar.regex;

import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.Stream;

/** A part of a regular expression. Parts without assertions are expressions already. */
sealed interface RegexNode {
    /** No assertion is in it. */
    record Plain(Expression expression) implements RegexNode {}

    /** The position before the first character, or after the last one. */
    record Anchor(boolean begin) implements RegexNode {
        static final RegexNode BEGIN = new Anchor(true);

        static final RegexNode END = new Anchor(false);
    }

    record Sequence(List<RegexNode> parts) implements RegexNode {}

    record Choice(List<RegexNode> parts) implements RegexNode {}

    record Repeat(RegexNode repeated, int least, int most) implements RegexNode {}

    /**
     * The text that follows begins with a text of the body, or with none.
     *
     * @param position in the pattern, for errors
     */
    record Lookahead(RegexNode body, boolean negative, int position) implements RegexNode {}

    /** Neighbours without assertions are one part. */
    static RegexNode sequence(List<RegexNode> parts) {
        List<RegexNode> joined = new ArrayList<>();
        List<Expression> plain = new ArrayList<>();
        for (RegexNode part : parts) {
            if (part instanceof Plain(Expression expression)) {
                plain.add(expression);
                continue;
            }
            if (!plain.isEmpty()) {
                joined.add(new Plain(Expressions.sequence(plain)));
                plain.clear();
            }
            joined.add(part);
        }
        if (!plain.isEmpty() || joined.isEmpty()) {
            joined.add(new Plain(Expressions.sequence(plain)));
        }
        return joined.size() == 1 ? joined.getFirst() : new Sequence(joined);
    }

    static RegexNode choice(List<RegexNode> parts) {
        if (parts.size() == 1) {
            return parts.getFirst();
        }
        List<Expression> plain = parts.stream()
                .flatMap(part -> part instanceof Plain(Expression expression) ? Stream.of(expression) : Stream.empty())
                .toList();
        return plain.size() == parts.size() ? new Plain(Expressions.choice(plain)) : new Choice(List.copyOf(parts));
    }

    static RegexNode repeat(RegexNode repeated, int least, int most) {
        return repeated instanceof Plain(Expression expression)
                ? new Plain(Expression.repeat(expression, least, most))
                : new Repeat(repeated, least, most);
    }

    /** Whether this is, or has, a part of a kind. */
    default boolean has(Predicate<RegexNode> kind) {
        return kind.test(this)
                || switch (this) {
                    case Plain _, Anchor _ -> false;
                    case Sequence(List<RegexNode> parts) -> parts.stream().anyMatch(part -> part.has(kind));
                    case Choice(List<RegexNode> parts) -> parts.stream().anyMatch(part -> part.has(kind));
                    case Repeat(RegexNode repeated, int _, int _) -> repeated.has(kind);
                    case Lookahead(RegexNode body, boolean _, int _) -> body.has(kind);
                };
    }
}
