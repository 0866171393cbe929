package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

class CallGrammarTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final String PARAMETERS = """
            {"type":"object","properties":{"count":{"type":"integer","maximum":9},"city":{"enum":["Harrow","Ely"]},
            "note":{"type":"string"}},"required":["count"],"additionalProperties":false}""";
    private static final Tool F = tool("f", PARAMETERS, true);
    private static final Tool G = new Tool("tools[1].function", "g", Optional.empty(), false);

    private static Tool tool(String name, String parameters, boolean strict) {
        return new Tool("tools[0].function", name, Optional.of((ObjectNode) JSON.readTree(parameters)), strict);
    }

    private static Grammar grammar(String format, List<Tool> tools, boolean required, boolean parallel) {
        OutputFormat output = CallGrammar.of(
                        ToolFormat.named(format), tools, required, parallel, token -> false, Optional.empty())
                .orElseThrow();
        return Grammar.compile(output.source());
    }

    private static boolean accepts(Grammar grammar, String text) {
        return grammar.accepts(text.replace('⏎', '\n').getBytes(StandardCharsets.UTF_8));
    }

    /** The parser reads all that the grammar lets a model write. */
    @ParameterizedTest
    @CsvSource(delimiter = '¦', quoteCharacter = '§', textBlock = """
            hermes ¦ <tool_call>⏎{"name": "f", "arguments": {"count": 7, "city": "Ely"}}⏎</tool_call> ¦ <tool_call>⏎{"name": "g", "arguments": {}}⏎</tool_call>
            llama3_json ¦ {"name": "f", "parameters": {"count": 7, "city": "Ely"}} ¦ {"name": "g", "parameters": {}}
            mistral ¦ [TOOL_CALLS][{"name": "f", "arguments": {"count": 7, "city": "Ely"}}] ¦ [TOOL_CALLS][{"name": "g", "arguments": {}}]
            phi4_mini_json ¦ functools[{"name": "f", "arguments": {"count": 7, "city": "Ely"}}] ¦ functools[{"name": "g", "arguments": {}}]
            qwen3_coder ¦ <tool_call>⏎<function=f>⏎<parameter=count>⏎7⏎</parameter>⏎<parameter=city>⏎Ely⏎</parameter>⏎</function>⏎</tool_call> ¦ <tool_call>⏎<function=g>⏎</function>⏎</tool_call>
            pythonic ¦ [f(count=7, city="Ely")] ¦ [g()]
            """)
    void requiredCallsFollowTheirSchemas(String format, String call, String other) {
        Grammar grammar = grammar(format, List.of(F, G), true, true);
        assertThat(accepts(grammar, call)).isTrue();
        assertThat(accepts(grammar, "⏎⏎" + other)).isTrue();
        assertThat(accepts(grammar, "")).isFalse();
        assertThat(accepts(grammar, "Well. " + call)).isFalse();
        assertThat(accepts(grammar, call.replace("Ely", "Rome"))).isFalse();
        assertThat(accepts(grammar, call.replace("7", "10"))).isFalse();
        assertThat(accepts(grammar, call.replace("f", "h"))).isFalse();
        assertThat(accepts(grammar, call.replaceFirst("\"?count\"?[:=>]", "x"))).isFalse();
        OutputParser parser = ToolFormat.named(format).parser(List.of(F, G));
        List<Piece> pieces = new ArrayList<>(parser.add(call.replace('⏎', '\n')));
        pieces.addAll(parser.end());
        OutputPieces.Call read = new OutputPieces(pieces).calls().getFirst();
        assertThat(read.begin().orElseThrow().name()).isEqualTo("f");
        assertThat(JSON.readTree(read.arguments())).isEqualTo(JSON.readTree("{\"count\":7,\"city\":\"Ely\"}"));
        assertThat(new OutputPieces(pieces).content()).isEmpty();
    }

    @Test
    void callsOfTooManyToolsAreRefusedAtOnce() {
        List<Tool> many = Collections.nCopies(1001, F);
        assertThatThrownBy(() -> grammar("hermes", many, true, true))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("tools: has 1001 tools, must have at most 1000 where calls are required");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '¦', quoteCharacter = '§', textBlock = """
            hermes ¦ <tool_call>⏎{"name": "g", "arguments": {}}⏎</tool_call> ¦ ⏎<tool_call>⏎{"name": "g", "arguments": {}}⏎</tool_call>
            llama3_json ¦ {"name": "g", "parameters": {}} ¦ ; {"name": "g", "parameters": {}}
            qwen3_coder ¦ <tool_call>⏎<function=g>⏎</function>⏎</tool_call> ¦ ⏎<tool_call>⏎<function=g>⏎</function>⏎</tool_call>
            """)
    void severalCallsComeWhereTheyMayBeParallel(String format, String call, String another) {
        assertThat(accepts(grammar(format, List.of(G), true, true), call + another))
                .isTrue();
        assertThat(accepts(grammar(format, List.of(G), true, false), call + another))
                .isFalse();
        assertThat(accepts(grammar(format, List.of(G), true, false), call)).isTrue();
    }

    @ParameterizedTest
    @CsvSource(delimiter = '¦', quoteCharacter = '§', textBlock = """
            hermes ¦ A <tool_calls> is not a call. ¦ <tool_call>⏎{"name": "f", "arguments": {"count": 7}}⏎</tool_call>
            llama3_json ¦ See {"a": 1}. ¦ {"name": "f", "parameters": {"count": 7}}
            phi4_mini_json ¦ import functool ¦ functools[{"name": "f", "arguments": {"count": 7}}]
            pythonic ¦ A [list]. ¦ [f(count=7)]
            """)
    void textIsFreeUntilACallOfAStrictToolBegins(String format, String text, String call) {
        Grammar grammar = grammar(format, List.of(F, G), false, true);
        assertThat(accepts(grammar, text)).isTrue();
        assertThat(accepts(grammar, "")).isTrue();
        assertThat(accepts(grammar, call)).isTrue();
        assertThat(accepts(grammar, call.replace("7", "10"))).isFalse();
        assertThat(accepts(grammar, call.replace("f(", "h(").replace("\"f\"", "\"h\"")))
                .isFalse();
    }

    @Test
    void nothingIsSaidOfFreeAnswersWithoutStrictTools() {
        assertThat(CallGrammar.of(
                        ToolFormat.named("hermes"), List.of(G), false, true, token -> false, Optional.empty()))
                .isEmpty();
    }

    @Test
    void anAnswerThatHasAFormatIsInItOrCalls() {
        Optional<OutputFormat> content = Optional.of(new OutputFormat.Regex("[0-9]+"));
        Grammar grammar = Grammar.compile(
                CallGrammar.of(ToolFormat.named("hermes"), List.of(G), false, true, token -> false, content)
                        .orElseThrow()
                        .source());
        assertThat(accepts(grammar, "17")).isTrue();
        assertThat(accepts(grammar, "<tool_call>⏎{\"name\": \"g\", \"arguments\": {}}⏎</tool_call>"))
                .isTrue();
        assertThat(accepts(grammar, "Well.")).isFalse();
        assertThat(accepts(grammar, "")).isFalse();
        assertThat(accepts(grammar, "⏎<tool_call>⏎{\"name\": \"g\", \"arguments\": {}}⏎</tool_call>"))
                .as("a document has no white space before it")
                .isFalse();
    }

    @Test
    void aSchemaWithoutAGrammarIsRefusedIfStrictAndElseAnyObject() {
        String unsupported = "{\"type\":\"object\",\"properties\":{\"a\":{\"uniqueItems\":true,\"type\":\"array\"}}}";
        assertThatThrownBy(() -> grammar("hermes", List.of(tool("f", unsupported, true)), true, true))
                .hasMessageStartingWith("tools[0].function.parameters.properties.a.uniqueItems: ");
        Grammar free = grammar("hermes", List.of(tool("f", unsupported, false)), true, true);
        assertThat(accepts(free, "<tool_call>⏎{\"name\": \"f\", \"arguments\": {\"x\": [1]}}⏎</tool_call>"))
                .isTrue();
        assertThatThrownBy(() -> grammar(
                        "qwen3_coder",
                        List.of(tool("f", "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"x\"}}}", true)),
                        true,
                        true))
                .hasMessageStartingWith("tools[0].function.parameters.properties.a.pattern: cannot be enforced");
    }
}
