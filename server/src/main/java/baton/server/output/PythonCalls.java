package baton.server.output;

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
}
