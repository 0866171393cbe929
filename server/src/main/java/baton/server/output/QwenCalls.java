package baton.server.output;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import java.util.List;

/** Calls of Qwen3-Coder: {@code <tool_call><function=f><parameter=a>1</parameter></function></tool_call>}. */
record QwenCalls() implements ToolFormat {
    static final String OPEN = "<tool_call>";
    static final String CLOSE = "</tool_call>";
    static final String FUNCTION = "<function=";
    static final String END_FUNCTION = "</function>";
    static final String PARAMETER = "<parameter=";
    static final String END_PARAMETER = "</parameter>";

    /** Texts of values: none has a mark that ends it. */
    private static final Expression TEXT = Expression.without(List.of(END_PARAMETER, PARAMETER, END_FUNCTION));

    private static final Expression ANY_PARAMETERS = Expression.repeat(
            parameter(
                    Expression.repeat(
                            new Expression.Chars(CharSet.of("<>\n").complement()), 1, Expression.Repeat.UNBOUNDED),
                    TEXT),
            0,
            Expression.Repeat.UNBOUNDED);

    @Override
    public List<String> marks() {
        return List.of(OPEN, CLOSE);
    }

    @Override
    public OutputParser parser(List<Tool> tools) {
        return new QwenCallParser(tools);
    }

    @Override
    public Expression text(CallGrammar grammar) {
        return new Expression.And(List.of(grammar.without(OPEN), grammar.without(FUNCTION)));
    }

    @Override
    public Expression calls(List<Tool> tools, CallGrammar grammar) {
        return grammar.calls(
                tools.stream()
                        .map(tool -> Expression.sequence(
                                grammar.mark(OPEN),
                                Expression.text("\n" + FUNCTION + tool.name() + ">\n"),
                                ToolProperties.of(tool)
                                        .map(properties -> parameters(tool, properties, grammar))
                                        .orElse(ANY_PARAMETERS),
                                Expression.text(END_FUNCTION + "\n"),
                                grammar.mark(CLOSE)))
                        .toList(),
                "\n");
    }

    private static Expression parameters(Tool tool, ToolProperties properties, CallGrammar grammar) {
        return properties.members(
                "",
                (name, schema) -> parameter(
                        Expression.text(name),
                        properties.isText(name)
                                ? properties.texts(name).orElse(TEXT)
                                : grammar.value(tool, schema, ".properties." + name)
                                        .orElse(TEXT)));
    }

    private static Expression parameter(Expression name, Expression value) {
        return Expression.sequence(
                Expression.text(PARAMETER),
                name,
                Expression.text(">\n"),
                value,
                Expression.text("\n" + END_PARAMETER + "\n"));
    }
}
