package baton.server.output;

import java.math.BigDecimal;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;

/** Writes a literal of Python as JSON, character by character: texts, numbers, True, False, None, lists, tuples and dictionaries. */
final class PythonLiteral {
    private static final Map<String, String> CONSTANTS =
            Map.of("True", "true", "False", "false", "None", "null", "true", "true", "false", "false", "null", "null");
    private static final Map<Character, String> ESCAPES = Map.ofEntries(
            Map.entry('n', "\n"),
            Map.entry('t', "\t"),
            Map.entry('r', "\r"),
            Map.entry('b', "\b"),
            Map.entry('f', "\f"),
            Map.entry('v', "\u000b"),
            Map.entry('a', "\u0007"),
            Map.entry('0', "\0"),
            Map.entry('/', "/"),
            Map.entry('\\', "\\"),
            Map.entry('\'', "'"),
            Map.entry('"', "\""),
            Map.entry('\n', ""));

    private enum State {
        VALUE,
        WORD,
        TEXT,
        ESCAPE,
        DIGITS,
        NEXT,
        BROKEN
    }

    private final Deque<Character> open = new ArrayDeque<>();
    private final StringBuilder word = new StringBuilder();
    private State state = State.VALUE;
    private boolean separated;

    /** Whether the key of the dictionary's member is read. */
    private boolean hasKey;

    private boolean isKey;
    private char quote;
    private int digits;

    /** Reads a character and adds its JSON; false if it is not part of the literal, which then {@link #isComplete} or not. */
    boolean add(char c, StringBuilder json) {
        switch (state) {
            case VALUE -> value(c, json);
            case WORD -> {
                if (isOfWord(c)) {
                    word.append(c);
                } else {
                    wordEnds(json);
                    return state != State.BROKEN && add(c, json);
                }
            }
            case TEXT -> text(c, json);
            case ESCAPE -> escape(c, json);
            case DIGITS -> {
                word.append(c);
                if (word.length() == digits) {
                    code(json);
                }
            }
            case NEXT -> {
                return next(c, json);
            }
            case BROKEN -> {}
        }
        return state != State.BROKEN;
    }

    /** Whether a number or a constant may begin. */
    boolean awaitsWord() {
        return state == State.VALUE;
    }

    static boolean isOfWord(char c) {
        return Character.isLetterOrDigit(c) || c == '.' || c == '-' || c == '+' || c == '_';
    }

    /** Whether all of the literal was read. */
    boolean isComplete() {
        return state == State.NEXT && open.isEmpty();
    }

    private void value(char c, StringBuilder json) {
        if (Character.isWhitespace(c)) {
            return;
        }
        if (!open.isEmpty() && c == open.peek()) {
            close(json);
            state = State.NEXT;
            return;
        }
        if (separated) {
            json.append(", ");
            separated = false;
        }
        isKey = !open.isEmpty() && open.peek() == '}' && !hasKey;
        switch (c) {
            case '\'', '"' -> {
                quote = c;
                json.append('"');
                state = State.TEXT;
            }
            case '[', '(', '{' -> {
                open.push(c == '[' ? ']' : c == '(' ? ')' : '}');
                json.append(c == '{' ? '{' : '[');
                hasKey = false;
                state = isKey ? State.BROKEN : State.VALUE;
            }
            default -> {
                word.setLength(0);
                word.append(c);
                state = isOfWord(c) ? State.WORD : State.BROKEN;
            }
        }
    }

    private void wordEnds(StringBuilder json) {
        String text = word.toString();
        String constant = CONSTANTS.get(text);
        if (constant == null) {
            constant = number(text);
        }
        json.append(isKey ? "\"" + constant + "\"" : constant);
        state = constant.isEmpty() ? State.BROKEN : State.NEXT;
    }

    /** Empty if the text is not a number. */
    private static String number(String text) {
        String plain = text.replace("_", "");
        if (plain.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?")) {
            return plain;
        }
        try {
            return plain.matches("[-+.0-9eE]+") ? new BigDecimal(plain).toString() : "";
        } catch (NumberFormatException e) {
            return "";
        }
    }

    private void text(char c, StringBuilder json) {
        if (c == quote) {
            json.append('"');
            state = State.NEXT;
        } else if (c == '\\') {
            state = State.ESCAPE;
        } else if (Character.isLetterOrDigit(c) || c == ' ') {
            json.append(c);
        } else {
            json.append(JsonTypes.escaped(String.valueOf(c)));
        }
    }

    private void escape(char c, StringBuilder json) {
        digits = switch (c) {
            case 'x' -> 2;
            case 'u' -> 4;
            case 'U' -> 8;
            default -> 0;
        };
        word.setLength(0);
        state = digits > 0 ? State.DIGITS : State.TEXT;
        if (digits == 0) {
            // Python keeps the backslash of an escape that it does not know.
            json.append(JsonTypes.escaped(ESCAPES.getOrDefault(c, "\\" + c)));
        }
    }

    private void code(StringBuilder json) {
        try {
            int code = Integer.parseInt(word, 0, word.length(), 16);
            // The halves of a pair may come in different parts of a stream, and only an escape can be cut between them.
            if (code >= Character.MIN_SURROGATE && code <= Character.MAX_SURROGATE) {
                json.append("\\u").append(word.substring(word.length() - 4));
            } else {
                json.append(JsonTypes.escaped(Character.toString(code)));
            }
            state = State.TEXT;
        } catch (IllegalArgumentException e) {
            state = State.BROKEN;
        }
    }

    private void close(StringBuilder json) {
        json.append(open.pop() == '}' ? '}' : ']');
        hasKey = !open.isEmpty() && open.peek() == '}';
    }

    private boolean next(char c, StringBuilder json) {
        if (open.isEmpty()) {
            return false;
        }
        boolean inObject = open.peek() == '}';
        if (c == open.peek()) {
            close(json);
        } else if (c == ',' && !(inObject && !hasKey)) {
            separated = true;
            hasKey = false;
            state = State.VALUE;
        } else if (c == ':' && inObject && !hasKey) {
            json.append(": ");
            hasKey = true;
            state = State.VALUE;
        } else if (!Character.isWhitespace(c)) {
            state = State.BROKEN;
        }
        return state != State.BROKEN;
    }
}
