package baton.server.output;

import baton.grammar.rule.Expression;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;

/**
 * Calls as JSON objects with the function's name and its arguments.
 *
 * @param mark before calls
 * @param mayBeBare whether calls at the beginning of the text need no mark
 * @param list whether calls are a JSON array
 * @param afterName the mark between a name and its arguments, where a name may come before an object of the arguments alone
 * @param argumentsField of the object
 * @param separator between calls that are no array; empty if each has a mark
 * @param close after a call that is not in an array; empty for none
 */
record JsonCalls(
        String mark,
        boolean mayBeBare,
        Listed list,
        Optional<String> afterName,
        String argumentsField,
        String separator,
        String close)
        implements ToolFormat {

    static final JsonCalls HERMES =
            new JsonCalls("<tool_call>", false, Listed.NEVER, Optional.empty(), "arguments", "", "</tool_call>");
    static final JsonCalls LLAMA =
            new JsonCalls("<|python_tag|>", true, Listed.NEVER, Optional.empty(), "parameters", ";", "");
    static final JsonCalls MISTRAL =
            new JsonCalls("[TOOL_CALLS]", false, Listed.EITHER, Optional.of("[ARGS]"), "arguments", "", "");
    static final JsonCalls PHI =
            new JsonCalls("functools", false, Listed.ALWAYS, Optional.empty(), "arguments", "", "");

    private static final String ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    private static final int SHORT_ID = 9;

    /** Whether calls are in a JSON array. */
    enum Listed {
        NEVER,
        EITHER,
        ALWAYS
    }

    @Override
    public List<String> marks() {
        return Stream.concat(Stream.of(mark), Stream.concat(afterName.stream(), Stream.of(close)))
                .filter(text -> !text.isEmpty())
                .toList();
    }

    @Override
    public OutputParser parser(List<Tool> tools) {
        return new JsonCallParser(this, afterName.isPresent() ? JsonCalls::shortId : CallParser::randomId);
    }

    @Override
    public Expression text(CallGrammar grammar) {
        Expression marked = grammar.without(mark);
        return mayBeBare ? new Expression.And(List.of(marked, CallGrammar.notBeginningWith('{'))) : marked;
    }

    @Override
    public Expression calls(List<Tool> tools, CallGrammar grammar) {
        if (afterName.filter(grammar::isSpecialToken).isPresent()) {
            return grammar.calls(
                    tools.stream()
                            .map(tool -> Expression.sequence(
                                    grammar.mark(mark),
                                    Expression.text(tool.name()),
                                    grammar.mark(afterName.get()),
                                    grammar.arguments(tool)))
                            .toList(),
                    "");
        }
        List<Expression> objects =
                tools.stream().map(tool -> object(tool, grammar)).toList();
        if (list != Listed.NEVER) {
            return Expression.sequence(
                    grammar.mark(mark), Expression.text("["), grammar.calls(objects, ", "), Expression.text("]"));
        }
        return mayBeBare
                ? grammar.calls(objects, separator + " ")
                : grammar.calls(
                        objects.stream()
                                .map(object -> Expression.sequence(
                                        grammar.mark(mark),
                                        Expression.text("\n"),
                                        object,
                                        Expression.text("\n"),
                                        grammar.mark(close)))
                                .toList(),
                        "\n");
    }

    private Expression object(Tool tool, CallGrammar grammar) {
        return Expression.sequence(
                Expression.text("{\"name\": " + JsonTypes.quoted(tool.name()) + ", \"" + argumentsField + "\": "),
                grammar.arguments(tool),
                Expression.text("}"));
    }

    /** Mistral's templates take ids of nine letters and digits only. */
    private static String shortId() {
        StringBuilder id = new StringBuilder(SHORT_ID);
        ThreadLocalRandom.current()
                .ints(SHORT_ID, 0, ALPHANUMERIC.length())
                .forEach(i -> id.append(ALPHANUMERIC.charAt(i)));
        return id.toString();
    }
}
