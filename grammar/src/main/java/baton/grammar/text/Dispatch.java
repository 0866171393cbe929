package baton.grammar.text;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.List;

/** Free text, in which a trigger begins something that has a form. */
final class Dispatch {
    private static final Expression NOT_EMPTY =
            Expression.repeat(new Expression.Chars(CharSet.ALL), 1, Expression.Repeat.UNBOUNDED);

    private Dispatch() {}

    /**
     * A trigger and the text behind it.
     *
     * @param trigger a text that is not empty
     */
    record Case(String trigger, Expression rest) {}

    /**
     * Free text up to the first trigger and the text behind it, once or again and again, then free text.
     *
     * @param excluded texts that free text has not
     * @param loops whether free text goes on after a case
     */
    static Expression cases(List<Case> cases, List<String> excluded, boolean loops) {
        List<String> stops = new ArrayList<>(excluded);
        cases.forEach(each -> stops.add(each.trigger()));
        List<Expression> choices = new ArrayList<>();
        for (String trigger : cases.stream().map(Case::trigger).distinct().toList()) {
            List<Expression> rests = cases.stream()
                    .filter(each -> each.trigger().equals(trigger))
                    .map(Case::rest)
                    .toList();
            choices.add(Expression.sequence(upTo(trigger, stops), new Expression.Choice(rests)));
        }
        Expression free = Expression.without(stops);
        if (loops) {
            Expression each = new Expression.Choice(choices);
            return Expression.sequence(Expression.repeat(each, 0, Expression.Repeat.UNBOUNDED), free);
        }
        choices.add(free);
        return new Expression.Choice(choices);
    }

    /** Text that ends with the trigger, before which none of the stops has ended. */
    private static Expression upTo(String trigger, List<String> stops) {
        return new Expression.And(List.of(
                Expression.sequence(Expression.any(), Expression.text(trigger)),
                new Expression.Not(Expression.sequence(Expression.any(), any(stops), NOT_EMPTY))));
    }

    /** Texts of an expression of which no shorter beginning is a text of it. */
    static Expression shortest(Expression expression) {
        return new Expression.And(List.of(expression, new Expression.Not(Expression.sequence(expression, NOT_EMPTY))));
    }

    private static Expression any(List<String> texts) {
        return new Expression.Choice(texts.stream().map(Expression::text).toList());
    }
}
