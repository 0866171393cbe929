package baton.grammar.rule;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Rules by their names, and the expression of whole texts.
 *
 * @param rules expressions that {@link Expression.Rule} refers to, also recursively
 * @param start the texts of the language
 */
public record GrammarSource(Map<String, Expression> rules, Expression start) {
    /** @throws IllegalArgumentException if an expression refers to a rule that is missing */
    public GrammarSource {
        rules = Map.copyOf(rules);
        Map<Expression, Boolean> checked = new IdentityHashMap<>();
        requireRules(rules, start, checked);
        for (Expression rule : rules.values()) {
            requireRules(rules, rule, checked);
        }
    }

    /** A grammar without rules. */
    public static GrammarSource of(Expression start) {
        return new GrammarSource(Map.of(), start);
    }

    private static void requireRules(
            Map<String, Expression> rules, Expression expression, Map<Expression, Boolean> checked) {
        if (expression instanceof Expression.Rule(String name) && !rules.containsKey(name)) {
            throw new IllegalArgumentException("rule " + name + " is missing");
        }
        if (checked.put(expression, true) == null) {
            for (Expression part : expression.parts()) {
                requireRules(rules, part, checked);
            }
        }
    }
}
