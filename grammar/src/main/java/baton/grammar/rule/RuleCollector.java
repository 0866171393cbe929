package baton.grammar.rule;

import java.util.HashMap;
import java.util.Map;

/** Makes one grammar of several. Their rules may have the same names. One thread at a time. */
public final class RuleCollector {
    private final Map<String, Expression> rules = new HashMap<>();
    private int sources;

    /** The texts of a grammar. Its rules get other names. */
    public Expression add(GrammarSource source) {
        if (source.rules().isEmpty()) {
            return source.start();
        }
        String prefix = "%" + sources++ + ".";
        source.rules().forEach((name, rule) -> rules.put(prefix + name, renamed(rule, prefix)));
        return renamed(source.start(), prefix);
    }

    /** Adds a rule. Its name must be new and must not begin with a percent sign. */
    public void add(String name, Expression rule) {
        if (name.startsWith("%") || rules.put(name, rule) != null) {
            throw new IllegalArgumentException("rule " + name);
        }
    }

    /** The grammar of all rules until now. */
    public GrammarSource source(Expression start) {
        return new GrammarSource(rules, start);
    }

    private static Expression renamed(Expression expression, String prefix) {
        return expression instanceof Expression.Rule(String name)
                ? new Expression.Rule(prefix + name)
                : expression.map(part -> renamed(part, prefix));
    }
}
