package baton.server.output;

import java.util.List;

/** Calls of Qwen3-Coder: {@code <tool_call><function=f><parameter=a>1</parameter></function></tool_call>}. */
record QwenCalls() implements ToolFormat {
    static final String OPEN = "<tool_call>";
    static final String CLOSE = "</tool_call>";
    static final String FUNCTION = "<function=";
    static final String END_FUNCTION = "</function>";
    static final String PARAMETER = "<parameter=";
    static final String END_PARAMETER = "</parameter>";

    @Override
    public List<String> marks() {
        return List.of(OPEN, CLOSE);
    }

    @Override
    public OutputParser parser(List<Tool> tools) {
        return new QwenCallParser(tools);
    }
}
