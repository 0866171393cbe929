package baton.grammar.rule;

import java.util.Map;

/**
 * Rules by their names, and the expression of whole texts.
 *
 * @param rules expressions that {@link Expression.Rule} refers to, also recursively
 * @param start the texts of the language
 */
public record GrammarSource(Map<String, Expression> rules, Expression start) {
    public GrammarSource {
        rules = Map.copyOf(rules);
    }

    /** A grammar without rules. */
    public static GrammarSource of(Expression start) {
        return new GrammarSource(Map.of(), start);
    }
}
