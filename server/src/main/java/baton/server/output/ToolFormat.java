package baton.server.output;

import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.engine.text.ChatTemplateException;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** How a model writes its calls of tools. */
public sealed interface ToolFormat permits Harmony, JsonCalls, PythonCalls, QwenCalls {
    /** The formats by the names of vLLM's parsers. */
    Map<String, ToolFormat> BY_NAME = Map.ofEntries(
            Map.entry("hermes", JsonCalls.HERMES),
            Map.entry("llama3_json", JsonCalls.LLAMA),
            Map.entry("mistral", JsonCalls.MISTRAL),
            Map.entry("phi4_mini_json", JsonCalls.PHI),
            Map.entry("openai", new Harmony()),
            Map.entry("qwen3_coder", new QwenCalls()),
            Map.entry("pythonic", new PythonCalls()));

    /** A call in a conversation, by which a template shows its format. */
    String CALL =
            "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\","
                    + "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}";

    JsonMapper JSON = JsonMapper.builder().build();

    /** Marks of calls, which may be special tokens of the model. */
    List<String> marks();

    /** Divides one sequence. */
    OutputParser parser(List<Tool> tools);

    /** Texts in which no call begins. */
    Expression text(CallGrammar grammar);

    /** A call of one of the tools, or several. */
    Expression calls(List<Tool> tools, CallGrammar grammar);

    /**
     * The format in which a chat template writes a call.
     *
     * @throws ConfigException if it is another format than these
     */
    static ToolFormat of(Optional<ChatTemplate> template) {
        ObjectNode message = JSON.readTree(CALL).asObject();
        List<JsonNode> question = List.of(JSON.readTree("{\"role\":\"user\",\"content\":\"a\"}"));
        List<JsonNode> tools = List.of(
                JSON.readTree(
                        "{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                + "\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}"));
        Optional<String> written = template.filter(ChatTemplate::isPresent).flatMap(each -> {
            try {
                List<JsonNode> answered = List.of(question.getFirst(), message);
                String before = each.render(new ChatRequest(question, Optional.of(tools), true, false, Map.of()));
                String all = each.render(new ChatRequest(answered, Optional.of(tools), false, false, Map.of()));
                int common = 0;
                while (common < Math.min(before.length(), all.length())
                        && before.charAt(common) == all.charAt(common)) {
                    common++;
                }
                return Optional.of(all.substring(common));
            } catch (ChatTemplateException e) {
                return Optional.empty();
            }
        });
        List<Tool> read = List.of(new Tool(
                "", "f", Optional.of(tools.getFirst().at("/function/parameters").asObject()), false));
        return written.flatMap(text -> BY_NAME.values().stream()
                        .filter(format -> writes(format.parser(read), text))
                        .findFirst())
                .orElseThrow(() -> new ConfigException(
                        "tool_call_parser",
                        "is auto, but the model's chat template writes calls in none of the known formats; must be one of "
                                + names()));
    }

    private static boolean writes(OutputParser parser, String text) {
        List<Piece> pieces = new ArrayList<>(parser.add(text));
        pieces.addAll(parser.end());
        List<OutputPieces.Call> calls = new OutputPieces(pieces).calls();
        return calls.size() == 1
                && calls.getFirst()
                        .begin()
                        .filter(begin -> begin.name().equals("f"))
                        .isPresent()
                && calls.getFirst().arguments().replace(" ", "").equals("{\"a\":1}");
    }

    private static String names() {
        return BY_NAME.keySet().stream().sorted().collect(Collectors.joining(", "));
    }

    /** @throws ConfigException if no format has the name */
    static ToolFormat named(String name) {
        return Optional.ofNullable(BY_NAME.get(name))
                .orElseThrow(() -> ConfigException.unsupported("tool_call_parser", name, "auto, " + names()));
    }
}
