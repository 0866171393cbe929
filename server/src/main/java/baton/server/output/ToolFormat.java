package baton.server.output;

import baton.kv.ConfigException;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;

/** How a model writes its calls of tools. */
public sealed interface ToolFormat permits JsonCalls {
    /** The formats by the names of vLLM's parsers. */
    Map<String, ToolFormat> BY_NAME = Map.ofEntries(
            Map.entry("hermes", JsonCalls.HERMES),
            Map.entry("llama3_json", JsonCalls.LLAMA),
            Map.entry("mistral", JsonCalls.MISTRAL),
            Map.entry("phi4_mini_json", JsonCalls.PHI));

    /** Marks of calls, which may be special tokens of the model. */
    List<String> marks();

    /** Divides one sequence. */
    OutputParser parser(List<Tool> tools);

    /** @throws ConfigException if there is none of the name */
    static ToolFormat named(String name) {
        return Optional.ofNullable(BY_NAME.get(name))
                .orElseThrow(() -> ConfigException.unsupported(
                        "tool_call_parser",
                        name,
                        BY_NAME.keySet().stream().sorted().collect(Collectors.joining(", "))));
    }
}
