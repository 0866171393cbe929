package baton.server.output;

import static baton.server.output.QwenCalls.CLOSE;
import static baton.server.output.QwenCalls.END_FUNCTION;
import static baton.server.output.QwenCalls.END_PARAMETER;
import static baton.server.output.QwenCalls.FUNCTION;
import static baton.server.output.QwenCalls.OPEN;
import static baton.server.output.QwenCalls.PARAMETER;

import java.util.List;
import java.util.Optional;
import java.util.Set;

/** Writes the arguments' JSON from the texts of parameters, by the types in the tool's schema. Strings come as they are read, other values whole. */
final class QwenCallParser extends CallParser {
    private static final int MAX_NAME = 256;
    private static final List<String> ENDS_OF_VALUE = List.of(END_PARAMETER, PARAMETER, END_FUNCTION);

    private enum State {
        CONTENT,
        OPENING,
        NAME,
        PARAMETERS,
        KEY,
        VALUE,
        AFTER
    }

    private final List<Tool> tools;
    private State state = State.CONTENT;
    private Optional<Tool> tool = Optional.empty();
    private Set<String> types = Set.of();
    private boolean hasArguments;
    private boolean inText;

    QwenCallParser(List<Tool> tools) {
        super(CallParser::randomId);
        this.tools = tools;
    }

    @Override
    boolean step() {
        return switch (state) {
            case CONTENT -> content();
            case OPENING -> takeSpace() && goesOn(FUNCTION, State.NAME);
            case NAME -> name();
            case PARAMETERS -> parameters();
            case KEY -> key();
            case VALUE -> value();
            case AFTER -> after();
        };
    }

    private boolean content() {
        Optional<String> mark = contentUntil(List.of(OPEN, FUNCTION));
        mark.ifPresent(found -> {
            take(found.length());
            state = found.equals(OPEN) ? State.OPENING : State.NAME;
        });
        return mark.isPresent();
    }

    private boolean goesOn(String mark, State next) {
        switch (next(mark)) {
            case MAYBE -> {
                return false;
            }
            case NO -> cutOff();
            case YES -> {
                take(mark.length());
                state = next;
            }
        }
        return true;
    }

    private boolean name() {
        int end = rest().indexOf(">");
        String name = rest().substring(0, Math.max(0, end)).strip();
        if (end < 0 && rest().length() <= MAX_NAME) {
            return false;
        }
        if (name.isEmpty() || name.indexOf('<') >= 0) {
            cutOff();
            return true;
        }
        take(end + 1);
        begin(name);
        arguments("{");
        tool = tools.stream().filter(each -> each.name().equals(name)).findFirst();
        hasArguments = false;
        state = State.PARAMETERS;
        return true;
    }

    private boolean parameters() {
        boolean more = takeSpace();
        forget();
        if (!more) {
            return false;
        }
        if (next(PARAMETER) == Match.YES) {
            take(PARAMETER.length());
            forget();
            state = State.KEY;
            return true;
        }
        if (next(PARAMETER) == Match.MAYBE || next(END_FUNCTION) == Match.MAYBE) {
            return false;
        }
        boolean closed = next(END_FUNCTION) == Match.YES;
        take(closed ? END_FUNCTION.length() : 0);
        forget();
        arguments("}");
        state = closed ? State.AFTER : State.CONTENT;
        return true;
    }

    private boolean key() {
        int end = rest().indexOf(">");
        if (end < 0) {
            return false;
        }
        String key = rest().substring(0, end).strip();
        take(end + 1);
        forget();
        arguments((hasArguments ? ", " : "") + JsonTypes.quoted(key) + ": ");
        hasArguments = true;
        types = tool.flatMap(Tool::parameters)
                .map(schema -> JsonTypes.of(schema.path("properties").path(key)))
                .orElse(JsonTypes.TEXT);
        inText = false;
        state = State.VALUE;
        return true;
    }

    /** The value is without the line breaks that the template puts around it. */
    private boolean value() {
        Marks.Found found = first(ENDS_OF_VALUE);
        int end = found.at();
        Optional<String> mark = found.mark();
        boolean isText = types.equals(JsonTypes.TEXT);
        if (mark.isEmpty()) {
            // The line break before the end is not a part of the value.
            end -= end > 0 && rest().charAt(end - 1) == '\n' ? 1 : 0;
            if (!isText || end == 0 || (!inText && end == 1 && rest().charAt(0) == '\n')) {
                return false;
            }
        }
        int from = !inText && end > 0 && rest().charAt(0) == '\n' ? 1 : 0;
        boolean breaks = mark.isPresent() && end > from && rest().charAt(end - 1) == '\n';
        String value = rest().substring(from, end - (breaks ? 1 : 0));
        take(end);
        if (isText) {
            arguments((inText ? "" : "\"") + JsonTypes.escaped(value) + (mark.isPresent() ? "\"" : ""));
            inText = true;
        } else {
            arguments(JsonTypes.converted(value, types));
        }
        mark.ifPresent(ending -> {
            take(ending.equals(END_PARAMETER) ? ending.length() : 0);
            state = State.PARAMETERS;
        });
        forget();
        return mark.isPresent();
    }

    private boolean after() {
        if (!takeSpace()) {
            return false;
        }
        if (next(CLOSE) == Match.MAYBE || next(FUNCTION) == Match.MAYBE) {
            return false;
        }
        if (next(FUNCTION) == Match.YES) {
            take(FUNCTION.length());
            state = State.NAME;
            return true;
        }
        if (next(CLOSE) == Match.YES) {
            take(CLOSE.length());
            forget();
        }
        putBack();
        state = State.CONTENT;
        return true;
    }

    @Override
    void cutOff() {
        switch (state) {
            case CONTENT, OPENING, NAME, AFTER -> {
                state = State.CONTENT;
                firstIsContent();
            }
            // The call has begun. The beginning of a value belongs to it. The beginning of a mark is dropped.
            case VALUE -> {
                int from = !inText && next("\n") == Match.YES ? 1 : 0;
                String value = rest().substring(from);
                arguments(types.equals(JsonTypes.TEXT) ? (inText ? "" : "\"") + JsonTypes.escaped(value) : value);
                dropRest();
            }
            case PARAMETERS, KEY -> dropRest();
        }
    }

    private void dropRest() {
        take(rest().length());
        forget();
    }
}
