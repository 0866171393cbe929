package baton.grammar.rule;

import java.util.HashMap;
import java.util.List;
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
        return switch (expression) {
            case Expression.Rule(String name) -> new Expression.Rule(prefix + name);
            case Expression.Text _, Expression.Chars _, Expression.SpecialToken _ -> expression;
            case Expression.Automaton automaton -> automaton.map(text -> renamed(text, prefix));
            case Expression.Sequence(List<Expression> parts) -> new Expression.Sequence(renamed(parts, prefix));
            case Expression.Choice(List<Expression> parts) -> new Expression.Choice(renamed(parts, prefix));
            case Expression.And(List<Expression> parts) -> new Expression.And(renamed(parts, prefix));
            case Expression.Not(Expression excluded) -> new Expression.Not(renamed(excluded, prefix));
            case Expression.Repeat(Expression repeated, int least, int most) ->
                new Expression.Repeat(renamed(repeated, prefix), least, most);
            case Expression.Members members ->
                new Expression.Members(
                        members.members().stream()
                                .map(member -> new Expression.Member(renamed(member.text(), prefix), member.required()))
                                .toList(),
                        members.anyOrder(),
                        renamed(members.separator(), prefix),
                        renamed(members.others(), prefix),
                        members.least(),
                        members.most());
        };
    }

    private static List<Expression> renamed(List<Expression> parts, String prefix) {
        return parts.stream().map(part -> renamed(part, prefix)).toList();
    }
}
