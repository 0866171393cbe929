package baton.server.output;

import baton.grammar.rule.Expression;
import java.util.List;

/** Calls as a list of Python: {@code [f(a=1, b='x'), g()]}, which is all of the text. */
record PythonCalls() implements ToolFormat {
    @Override
    public List<String> marks() {
        return List.of();
    }

    @Override
    public OutputParser parser(List<Tool> tools) {
        return new PythonCallParser();
    }

    @Override
    public Expression text(CallGrammar grammar) {
        return CallGrammar.notBeginningWith('[');
    }

    /** Values are written as JSON. The parser reads its constants and texts beside those of Python. */
    @Override
    public Expression calls(List<Tool> tools, CallGrammar grammar) {
        List<Expression> kinds = tools.stream()
                .map(tool -> Expression.sequence(
                        Expression.text(tool.name() + "("),
                        ToolProperties.of(tool)
                                .map(properties -> arguments(tool, properties, grammar))
                                .orElse(Expression.empty()),
                        Expression.text(")")))
                .toList();
        return Expression.sequence(Expression.text("["), grammar.calls(kinds, ", "), Expression.text("]"));
    }

    private static Expression arguments(Tool tool, ToolProperties properties, CallGrammar grammar) {
        return properties.members(
                ", ",
                (name, schema) -> Expression.sequence(
                        Expression.text(name + "="),
                        grammar.value(tool, schema, ".properties." + name).orElseGet(grammar::anyValue)));
    }
}
