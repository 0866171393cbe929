package baton.server.output;

import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.core.json.JsonReadFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Reads {@code {"name": "f", "arguments": {...}}} character by character, or {@code parameters} in place of {@code arguments}. The arguments'
 * JSON is passed on as it was written. Other members are left out.
 */
final class CallObject {
    private static final JsonMapper JSON = JsonMapper.builder()
            .enable(JsonReadFeature.ALLOW_UNESCAPED_CONTROL_CHARS)
            .build();

    private enum State {
        BEGIN,
        KEY_OR_END,
        KEY,
        COLON,
        VALUE,
        STRING,
        NESTED,
        SCALAR,
        NEXT,
        COMPLETE,
        BROKEN
    }

    private final boolean alone;
    private final StringBuilder token = new StringBuilder();
    private final StringBuilder arguments = new StringBuilder();
    private State state;
    private String member = "";
    private Optional<String> name = Optional.empty();
    private boolean hasArguments;
    private boolean begun;
    private boolean inString;
    private boolean escaped;
    private int depth;

    private CallObject(State state, boolean alone) {
        this.state = state;
        this.alone = alone;
    }

    /** An object with name and arguments. */
    static CallObject whole() {
        return new CallObject(State.BEGIN, false);
    }

    /** The arguments alone, of a call with a known name. */
    static CallObject ofArguments(String name) {
        CallObject call = new CallObject(State.VALUE, true);
        call.name = Optional.of(name);
        call.member = "arguments";
        return call;
    }

    /** Reads a character; false if it does not belong to the object, which then {@link #isComplete} or not. */
    boolean add(char c) {
        State before = state;
        switch (state) {
            case BEGIN -> state = c == '{' ? State.KEY_OR_END : space(c);
            case KEY_OR_END -> {
                if (c == '"') {
                    startToken(State.KEY, c);
                } else {
                    state = c == '}' ? end() : space(c);
                }
            }
            case KEY -> {
                if (endsString(c)) {
                    Optional<JsonNode> key = parsed();
                    member = key.map(JsonNode::asString).orElse("");
                    state = key.isPresent() ? State.COLON : State.BROKEN;
                }
            }
            case COLON -> state = c == ':' ? State.VALUE : space(c);
            case VALUE -> value(c);
            case STRING -> {
                if (endsString(c)) {
                    valueEnds();
                }
            }
            case NESTED -> nested(c);
            case SCALAR -> {
                if (isScalar(c)) {
                    token.append(c);
                } else {
                    valueEnds();
                    return state != State.BROKEN && add(c);
                }
            }
            case NEXT -> state = c == ',' ? State.KEY_OR_END : c == '}' ? end() : space(c);
            case COMPLETE, BROKEN -> {}
        }
        return before != State.COMPLETE && state != State.BROKEN;
    }

    boolean isComplete() {
        return state == State.COMPLETE;
    }

    /** The name, once it and the beginning of the arguments are there. */
    Optional<String> begunName() {
        return begun ? name : Optional.empty();
    }

    /** The arguments' JSON since the last call. */
    String takeArguments() {
        String json = begun ? arguments.toString() : "";
        if (begun) {
            arguments.setLength(0);
        }
        return json;
    }

    private State space(char c) {
        return Character.isWhitespace(c) ? state : State.BROKEN;
    }

    private State end() {
        return begun ? State.COMPLETE : State.BROKEN;
    }

    private void startToken(State next, char c) {
        token.setLength(0);
        token.append(c);
        escaped = false;
        state = next;
    }

    private boolean isArguments() {
        return !hasArguments && (member.equals("arguments") || member.equals("parameters"));
    }

    private void value(char c) {
        switch (c) {
            case '"' -> startToken(State.STRING, c);
            case '{', '[' -> {
                startToken(State.NESTED, c);
                depth = 1;
                inString = false;
                if (isArguments()) {
                    arguments.append(c);
                    begun |= name.isPresent();
                }
            }
            default -> {
                if (isScalar(c)) {
                    startToken(State.SCALAR, c);
                } else {
                    state = space(c);
                }
            }
        }
    }

    private void nested(char c) {
        if (inString) {
            inString = !(c == '"' && !escaped);
            escaped = c == '\\' && !escaped;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == '"') {
            inString = true;
        } else if (!isScalar(c) && c != ',' && c != ':' && !Character.isWhitespace(c)) {
            state = State.BROKEN;
            return;
        }
        if (isArguments()) {
            arguments.append(c);
        }
        if (depth == 0) {
            token.setLength(0);
            valueEnds();
        }
    }

    private static boolean isScalar(char c) {
        return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '+' || c == '.';
    }

    private boolean endsString(char c) {
        token.append(c);
        boolean ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        return ends;
    }

    private Optional<JsonNode> parsed() {
        try {
            return Optional.of(JSON.readTree(token.toString()));
        } catch (JacksonException e) {
            return Optional.empty();
        }
    }

    private void valueEnds() {
        Optional<JsonNode> value = token.isEmpty() ? Optional.empty() : parsed();
        state = token.isEmpty() || value.isPresent() ? (alone ? State.COMPLETE : State.NEXT) : State.BROKEN;
        if (member.equals("name") && name.isEmpty()) {
            name = value.filter(JsonNode::isString).map(JsonNode::asString).filter(given -> !given.isEmpty());
            if (name.isEmpty()) {
                state = State.BROKEN;
            }
            begun |= name.isPresent() && hasArguments;
        } else if (isArguments()) {
            value.ifPresent(given ->
                    arguments.append(given.isNull() ? "{}" : given.isString() ? given.asString() : token.toString()));
            hasArguments = true;
            begun |= name.isPresent();
        }
    }
}
