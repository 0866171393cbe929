package baton.grammar.rule;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;

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
        Set<Expression> checked = Collections.newSetFromMap(new IdentityHashMap<>());
        requireRules(rules, start, checked);
        for (Expression rule : rules.values()) {
            requireRules(rules, rule, checked);
        }
    }

    /** A grammar without rules. */
    public static GrammarSource of(Expression start) {
        return new GrammarSource(Map.of(), start);
    }

    private static void requireRules(Map<String, Expression> rules, Expression expression, Set<Expression> checked) {
        if (expression instanceof Expression.Rule(String name) && !rules.containsKey(name)) {
            throw new IllegalArgumentException("rule " + name + " is missing");
        }
        if (checked.add(expression)) {
            for (Expression part : expression.parts()) {
                requireRules(rules, part, checked);
            }
        }
    }
}
