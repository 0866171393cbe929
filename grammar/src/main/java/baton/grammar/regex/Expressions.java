package baton.grammar.regex;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.List;

/** Expressions made of others, in a simple form. */
final class Expressions {
    private static final Expression NOT_EMPTY =
            Expression.repeat(new Expression.Chars(CharSet.ALL), 1, Expression.Repeat.UNBOUNDED);

    private Expressions() {}

    static Expression sequence(List<Expression> parts) {
        List<Expression> joined = new ArrayList<>();
        StringBuilder text = new StringBuilder();
        for (Expression part : parts) {
            if (part.equals(Expression.nothing())) {
                return Expression.nothing();
            }
            for (Expression each :
                    part instanceof Expression.Sequence(List<Expression> inner) ? inner : List.of(part)) {
                if (each instanceof Expression.Text(String characters)) {
                    text.append(characters);
                } else {
                    flush(text, joined);
                    joined.add(each);
                }
            }
        }
        flush(text, joined);
        return joined.isEmpty() ? Expression.empty() : Expression.sequence(joined);
    }

    private static void flush(StringBuilder text, List<Expression> to) {
        if (!text.isEmpty()) {
            to.add(Expression.text(text.toString()));
            text.setLength(0);
        }
    }

    static Expression choice(List<Expression> parts) {
        List<Expression> choices = new ArrayList<>();
        for (Expression part : parts) {
            choices.addAll(part instanceof Expression.Choice(List<Expression> inner) ? inner : List.of(part));
        }
        return Expression.choice(choices);
    }

    static Expression repeat(Expression repeated, int least, int most) {
        if (most == 0 || repeated.equals(Expression.nothing())) {
            return least == 0 ? Expression.empty() : Expression.nothing();
        }
        return Expression.repeat(repeated, least, most);
    }

    static Expression chars(CharSet set) {
        if (set.ranges().size() == 1) {
            CharSet.Range range = set.ranges().getFirst();
            if (range.first() == range.last()) {
                return Expression.text(Character.toString(range.first()));
            }
        }
        return set.isEmpty() ? Expression.nothing() : new Expression.Chars(set);
    }

    /** The texts of an expression without rules, but the empty one. */
    static Expression nonEmpty(Expression expression) {
        if (!hasEmpty(expression)) {
            return expression;
        }
        return expression instanceof Expression.Repeat(Expression repeated, int _, int most) && !hasEmpty(repeated)
                ? repeat(repeated, Math.min(most, 1), most)
                : new Expression.And(List.of(expression, NOT_EMPTY));
    }

    /** Whether an expression without rules has the empty text. */
    static boolean hasEmpty(Expression expression) {
        return switch (expression) {
            case Expression.Text(String text) -> text.isEmpty();
            case Expression.Sequence(List<Expression> parts) -> parts.stream().allMatch(Expressions::hasEmpty);
            case Expression.Choice(List<Expression> parts) -> parts.stream().anyMatch(Expressions::hasEmpty);
            case Expression.And(List<Expression> parts) -> parts.stream().allMatch(Expressions::hasEmpty);
            case Expression.Not(Expression excluded) -> !hasEmpty(excluded);
            case Expression.Repeat(Expression repeated, int least, int _) -> least == 0 || hasEmpty(repeated);
            case Expression.Chars _, Expression.SpecialToken _ -> false;
            case Expression.Rule _, Expression.Members _, Expression.Automaton _ ->
                throw new IllegalArgumentException("not of a regular expression: " + expression);
        };
    }
}
