package baton.server.output;

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

    /** Mistral's templates take ids of nine letters and digits only. */
    private static String shortId() {
        StringBuilder id = new StringBuilder(SHORT_ID);
        ThreadLocalRandom.current()
                .ints(SHORT_ID, 0, ALPHANUMERIC.length())
                .forEach(i -> id.append(ALPHANUMERIC.charAt(i)));
        return id.toString();
    }
}
