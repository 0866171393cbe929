package baton.server.output;

import java.util.Optional;

/** Writes the arguments' JSON from literals of Python, as they come. Literals of JSON are also read. */
final class PythonCallParser extends CallParser {
    /** Characters of a number or a constant that are awaited before it is read. */
    private static final int MAX_WORD = 256;

    private enum State {
        CONTENT,
        NAME,
        FIRST_KEY,
        KEY,
        VALUE,
        AFTER_VALUE,
        AFTER_CALL
    }

    private State state = State.CONTENT;
    private boolean over;
    private String name = "";
    private PythonLiteral literal = new PythonLiteral();

    PythonCallParser() {
        super(CallParser::randomId);
    }

    @Override
    boolean step() {
        if (state == State.CONTENT) {
            return content();
        }
        if (state == State.VALUE) {
            return value();
        }
        if (!takeSpace()) {
            return false;
        }
        return switch (state) {
            case NAME -> identifier('(').map(this::named).orElseGet(this::undecided);
            case FIRST_KEY -> rest().charAt(0) == ')' ? beginCall("{}", State.AFTER_CALL) : key("{");
            case KEY -> rest().charAt(0) == ')' ? taken("}", State.AFTER_CALL) : key(", ");
            case AFTER_VALUE ->
                switch (rest().charAt(0)) {
                    case ',' -> taken("", State.KEY);
                    case ')' -> taken("}", State.AFTER_CALL);
                    default -> broken();
                };
            case AFTER_CALL ->
                switch (rest().charAt(0)) {
                    case ',' -> {
                        take(1);
                        state = State.NAME;
                        yield true;
                    }
                    case ']' -> {
                        over = true;
                        yield taken("", State.CONTENT);
                    }
                    default -> broken();
                };
            case CONTENT, VALUE -> throw new IllegalStateException(state.name());
        };
    }

    private boolean content() {
        int list = rest().indexOf("[");
        if (over || !atStart() || list < 0 || !rest().substring(0, list).isBlank()) {
            contentAhead(rest().length());
            return false;
        }
        take(list + 1);
        state = State.NAME;
        return true;
    }

    /** The identifier before a mark; empty if the text has no such identifier, or not yet. */
    private Optional<String> identifier(char mark) {
        int end = identifierEnd();
        int at = end;
        while (at < rest().length() && Character.isWhitespace(rest().charAt(at))) {
            at++;
        }
        if (end == 0 || at == rest().length() || rest().charAt(at) != mark) {
            return Optional.empty();
        }
        String identifier = rest().substring(0, end);
        take(at + 1);
        return Optional.of(identifier);
    }

    /** Names of tools may have a hyphen, which those of Python have not. */
    private static boolean isOfName(char c) {
        return c == '.' || c == '-';
    }

    private int identifierEnd() {
        int end = 0;
        while (end < rest().length()
                && (end == 0
                        ? Character.isJavaIdentifierStart(rest().charAt(0))
                        : Character.isJavaIdentifierPart(rest().charAt(end)) || isOfName(rest().charAt(end)))) {
            end++;
        }
        return end;
    }

    /** Whether the text that is left may still become an identifier and its mark. If not, this is no call. */
    private boolean undecided() {
        int end = identifierEnd();
        boolean open = end > 0 && rest().substring(end).isBlank();
        return !open && broken();
    }

    private boolean named(String identifier) {
        name = identifier;
        state = State.FIRST_KEY;
        return true;
    }

    private boolean key(String before) {
        Optional<String> key = identifier('=');
        if (key.isEmpty()) {
            return undecided();
        }
        String json = before + JsonTypes.quoted(key.get()) + ": ";
        literal = new PythonLiteral();
        if (state == State.FIRST_KEY) {
            begin(name);
        }
        forget();
        arguments(json);
        state = State.VALUE;
        return true;
    }

    private boolean beginCall(String arguments, State next) {
        begin(name);
        return taken(arguments, next);
    }

    private boolean taken(String arguments, State next) {
        take(1);
        forget();
        arguments(arguments);
        state = next;
        return true;
    }

    private boolean value() {
        StringBuilder json = new StringBuilder();
        int read = 0;
        int word = 0;
        boolean fits = true;
        while (read < rest().length() && fits) {
            char c = rest().charAt(read);
            if (literal.awaitsWord()) {
                word = read;
                if (PythonLiteral.isOfWord(c)
                        && rest().length() - read < MAX_WORD
                        && wordEnd(read) == rest().length()) {
                    break;
                }
            }
            fits = literal.add(c, json);
            read += fits ? 1 : 0;
        }
        boolean ends = !fits;
        take(ends && !literal.isComplete() ? word : read);
        forget();
        arguments(json.toString());
        if (!ends) {
            return false;
        }
        return literal.isComplete() ? after() : broken();
    }

    private int wordEnd(int from) {
        int end = from;
        while (end < rest().length() && PythonLiteral.isOfWord(rest().charAt(end))) {
            end++;
        }
        return end;
    }

    private boolean after() {
        state = State.AFTER_VALUE;
        return true;
    }

    /** A call that has begun ends here. */
    private boolean broken() {
        over = true;
        putBack();
        state = State.CONTENT;
        return true;
    }

    @Override
    void cutOff() {
        if (state == State.VALUE) {
            arguments(rest().toString());
            take(rest().length());
            forget();
        } else {
            broken();
            contentAhead(rest().length());
        }
    }
}
