package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

class ToolFormatTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private static final Tool TOOL = new Tool("", "f", Optional.of((ObjectNode) JSON.readTree("""
                    {"type":"object","properties":{"text":{"type":"string"},"count":{"type":"integer"},"exact":{"type":"number"},
                    "on":{"type":"boolean"},"list":{"type":"array"},"either":{"type":["string","null"]}}}""")), false);

    @TempDir
    Path directory;

    private final long seed = Long.getLong("tests.seed", System.nanoTime());
    private final Random random = new Random(seed);

    /** A text has {@code ⏎} for a line break. Its pieces are the content, then {@code name(arguments)} of each call. */
    @ParameterizedTest
    @CsvSource(delimiter = '¦', quoteCharacter = '§', textBlock = """
            hermes ¦ Hi ¦ Hi
            hermes ¦ <tool_call>⏎{"name": "f", "arguments": {"a": [1, "}"]}}⏎</tool_call> ¦ f({"a": [1, "}"]})
            hermes ¦ Well.⏎<tool_call>{"name":"f","arguments":{}}</tool_call>⏎<tool_call>{"name":"g","arguments":{"b":2}}</tool_call> ¦ Well.⏎ f({}) g({"b":2})
            hermes ¦ <tool_call>{"arguments": {"a": "</tool_call>"}, "name": "f"}</tool_call>⏎bye ¦ ⏎bye f({"a": "</tool_call>"})
            hermes ¦ <tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> ¦ f({"a": 1})
            hermes ¦ <tool_call>{"name": "f", "arguments": null}</tool_call> ¦ f({})
            hermes ¦ <tool_call>{"name": "f"}</tool_call> ¦ <tool_call>{"name": "f"}</tool_call>
            hermes ¦ <tool_call>oh <tool_call>{"name":"f","arguments":{}}</tool_call> ¦ <tool_call>oh  f({})
            hermes ¦ a <tool_call>{"name": "f", "argu ¦ a <tool_call>{"name": "f", "argu
            hermes ¦ <tool_call>{"name": "f", "arguments": {"a": "b ¦ f({"a": "b)
            hermes ¦ <tool_call>{"name": "f", "arguments": {"a": 1 ?}}</tool_call> ¦ ?}}</tool_call> f({"a": 1 )
            hermes ¦ 1 < 2 <tool ¦ 1 < 2 <tool
            llama3_json ¦ {"name": "f", "parameters": {"a": 1}} ¦ f({"a": 1})
            llama3_json ¦ <|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "arguments": {}} ¦ f({"a": 1}) g({})
            llama3_json ¦ ⏎{"type": "function", "name": "f", "parameters": {}}⏎{"name": "g", "parameters": {}} ¦ f({}) g({})
            llama3_json ¦ {"answer": 42} ¦ {"answer": 42}
            llama3_json ¦ See {"name": "f", "parameters": {"a": 1}} ¦ See {"name": "f", "parameters": {"a": 1}}
            mistral ¦ [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}] ¦ f({"a": 1}) g({})
            mistral ¦ Hm. [TOOL_CALLS] [{"arguments": {"a": 1}, "name": "f", "id": "123456789"}] ¦ Hm.  f({"a": 1})
            mistral ¦ [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"name": "x"} ¦ f({"a": 1}) g({"name": "x"})
            mistral ¦ [TOOL_CALLS] ¦ [TOOL_CALLS]
            phi4_mini_json ¦ functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}] ¦ f({"a": 1}) g({})
            phi4_mini_json ¦ import functools ¦ import functools
            qwen3_coder ¦ <tool_call>⏎<function=f>⏎<parameter=text>⏎a "b"⏎c⏎</parameter>⏎<parameter=count>⏎7⏎</parameter>⏎</function>⏎</tool_call> ¦ f({"text": "a \\"b\\"\\nc", "count": 7})
            qwen3_coder ¦ Hm.⏎<tool_call><function=f></function></tool_call>⏎<tool_call>⏎<function=g>⏎<parameter=x>1</parameter></function></tool_call> ¦ Hm.⏎ f({}) g({"x": "1"})
            qwen3_coder ¦ <function=f><parameter=on>True</parameter><parameter=exact>2.0</parameter><parameter=list>[1, "a"]</parameter><parameter=either>null</parameter></function> ¦ f({"on": true, "exact": 2, "list": [1, "a"], "either": null})
            qwen3_coder ¦ <tool_call><function=f><parameter=text></parameter><parameter=count>x</parameter></function></tool_call> bye ¦ bye f({"text": "", "count": "x"})
            qwen3_coder ¦ <tool_call>⏎<function=f>⏎<parameter=text>⏎half ¦ f({"text": "half)
            qwen3_coder ¦ <tool_call>⏎{"name": "f"} ¦ <tool_call>⏎{"name": "f"}
            qwen3_coder ¦ a <function ¦ a <function
            pythonic ¦ [f(a=1, b='x "y"', c=[True, None, {'k': -2.5}]), g()] ¦ f({"a": 1, "b": "x \\"y\\"", "c": [true, null, {"k": -2.5}]}) g({})
            pythonic ¦ ⏎[ f ( a = (1, 2,) , b="it's\\n\\u00e9", ) ]⏎ ¦ f({"a": [1, 2], "b": "it's\\né"})
            pythonic ¦ [f(a={1: {}, "x": []}, b=1_000, c=.5)] ¦ f({"a": {"1": {}, "x": []}, "b": 1000, "c": 0.5})
            pythonic ¦ [f(a='\\ud83d\\ude00\\U0000d83d')] ¦ f({"a": "\\ud83d\\ude00\\ud83d"})
            pythonic ¦ [f(a=+1e99)] ¦ f({"a": 1E+99})
            pythonic ¦ [f(a=+1e99999999999)] ¦ +1e99999999999)] f({"a": )
            pythonic ¦ [get-town(zip-code=1)] ¦ get-town({"zip-code": 1})
            pythonic ¦ [1, 2] ¦ [1, 2]
            pythonic ¦ [f(x)] ¦ [f(x)]
            pythonic ¦ Well [f()] ¦ Well [f()]
            pythonic ¦ [f(a='b ¦ f({"a": "b)
            pythonic ¦ [f(a=b)] ¦ b)] f({"a": )
            pythonic ¦ [f ¦ [f
            """)
    void textsAreDividedHoweverTheyAreCut(String format, String text, String expected) {
        String given = text.replace('⏎', '\n');
        String wanted = expected.replace('⏎', '\n').strip();
        for (int i = 0; i < 50; i++) {
            assertThat(shown(divided(format, cut(given))).strip())
                    .as("-Dtests.seed=%d", seed)
                    .isEqualTo(wanted);
        }
        assertThat(shown(divided(format, List.of(given))).strip()).isEqualTo(wanted);
    }

    @Test
    void argumentsComeWithTheTextThatHasThem() {
        OutputParser parser = ToolFormat.named("hermes").parser(List.of(TOOL));
        assertThat(parser.add("<tool_call>\n{\"name\": \"f\", \"arg")).isEmpty();
        assertThat(parser.add("uments\": {\"a\"")).hasSize(2).satisfies(pieces -> {
            assertThat(pieces.getFirst()).isInstanceOfSatisfying(Piece.CallBegin.class, begin -> {
                assertThat(begin.name()).isEqualTo("f");
                assertThat(begin.id()).matches("chatcmpl-tool-[0-9a-f]{16}");
            });
            assertThat(pieces.get(1)).isEqualTo(new Piece.CallArguments(0, "{\"a\""));
        });
        assertThat(parser.add(": 1")).containsExactly(new Piece.CallArguments(0, ": 1"));
        assertThat(parser.add("}}\n</tool")).containsExactly(new Piece.CallArguments(0, "}"));
        assertThat(parser.add("_call> ")).isEmpty();
        assertThat(parser.end()).isEmpty();
    }

    /** Else each part of a long number would be looked through again with each later one. */
    @Test
    void longNumbersOfPythonAreReadAsTheyCome() {
        OutputParser parser = ToolFormat.named("pythonic").parser(List.of(TOOL));
        List<Piece> pieces = new ArrayList<>(parser.add("[f(a="));
        String digits = "1234567890".repeat(100);
        cut(digits).forEach(part -> pieces.addAll(parser.add(part)));
        pieces.addAll(parser.add(")]"));
        pieces.addAll(parser.end());
        assertThat(shown(new OutputPieces(pieces)).strip()).isEqualTo("f({\"a\": " + digits + "})");
    }

    @Test
    void contentIsHeldBackOnlyWhereACallMayBegin() {
        OutputParser parser = ToolFormat.named("hermes").parser(List.of(TOOL));
        assertThat(parser.add("one <")).containsExactly(new Piece.Content("one "));
        assertThat(parser.add("b>")).containsExactly(new Piece.Content("<b>"));
        assertThat(parser.add("<tool_")).isEmpty();
        assertThat(parser.end()).extracting(Object::toString).hasSize(1).allMatch(text -> text.contains("<tool_"));
    }

    @Test
    void idsOfMistralHaveNineCharacters() {
        OutputParser parser = ToolFormat.named("mistral").parser(List.of(TOOL));
        assertThat(new OutputPieces(parser.add("[TOOL_CALLS]f{}"))
                        .calls()
                        .getFirst()
                        .begin())
                .hasValueSatisfying(begin -> assertThat(begin.id()).matches("[A-Za-z0-9]{9}"));
    }

    @Test
    void onlyTheFirstCallIsLeftWithoutParallelCalls() {
        OutputParser parser =
                ToolFormat.named("llama3_json").parser(List.of(TOOL)).firstCallOnly();
        List<Piece> pieces = new ArrayList<>(
                parser.add("{\"name\":\"f\",\"parameters\":{}};{\"name\":\"g\",\"parameters\":{\"a\":1}}"));
        pieces.addAll(parser.end());
        assertThat(shown(new OutputPieces(pieces))).isEqualTo(" f({})");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '¦', quoteCharacter = '§', textBlock = """
            hermes ¦ <tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}\\n</tool_call>
            llama3_json ¦ {"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}
            mistral ¦ [TOOL_CALLS] [{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + ', "id": "abcdefghi"}]
            mistral ¦ [TOOL_CALLS]' + call.name + '[ARGS]' + (call.arguments | tojson) + '
            phi4_mini_json ¦ functools[{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}]
            pythonic ¦ [' + call.name + '(a=' + (call.arguments.a | string) + ')]
            qwen3_coder ¦ <tool_call>\\n<function=' + call.name + '>\\n<parameter=a>\\n' + (call.arguments.a | string) + '\\n</parameter>\\n</function>\\n</tool_call>
            """)
    void autoIsTheFormatOfTheTemplate(String format, String call) throws Exception {
        Files.writeString(directory.resolve("chat_template.jinja"), """
                {%- for message in messages %}<|im_start|>{{ message.role }}
                {% if message.tool_calls %}{% set call = message.tool_calls[0].function %}{{ 'CALL' }}{% else %}{{ message.content }}{% endif %}<|im_end|>
                {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
                {% endif %}""".replace("CALL", call));
        ToolFormat found = ToolFormat.of(Optional.of(ChatTemplate.load(directory)));
        assertThat(found).isEqualTo(ToolFormat.named(format));
    }

    @Test
    void autoNeedsATemplateThatWritesCalls() {
        assertThatThrownBy(() -> ToolFormat.of(Optional.of(ChatTemplate.load(directory))))
                .hasMessageStartingWith(
                        "tool_call_parser: is auto, but the model's chat template writes calls in none");
    }

    @Test
    void otherNamesAreRefused() {
        assertThatThrownBy(() -> ToolFormat.named("x"))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("tool_call_parser: unsupported value 'x'; allowed: auto, hermes, ");
    }

    /** Texts of the marks in any order, and other text, are divided into the same pieces however they are cut. */
    @ParameterizedTest
    @ValueSource(strings = {"hermes", "llama3_json", "mistral", "phi4_mini_json", "openai", "qwen3_coder", "pythonic"})
    void randomTextsAreDividedHoweverTheyAreCut(String format) {
        List<String> parts = new ArrayList<>(ToolFormat.named(format).marks());
        parts.addAll(List.of(
                "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}", "{\"name\":", "\"f\"", "\"parameters\":"));
        parts.addAll(List.of(
                "[f(text='a', count=-1)", "f(", "count=", "True", "'", "\"", "\\", "{", "}", "[", "]", "(", ")"));
        parts.addAll(List.of("<function=f>", "<parameter=text>", "<parameter=count>", "</parameter>", "</function>"));
        parts.addAll(List.of(
                "functools", "[TOOL_CALLS]", ",", ";", ":", "1", "e9", "<", "\n", " ", "é😀", "\\ud83d", "null"));
        parts.addAll(List.of("<|channel|>final<|message|>", "<|channel|>commentary to=functions.f<|message|>", "to=f"));
        for (int i = 0; i < 2000; i++) {
            StringBuilder text = new StringBuilder();
            for (int length = random.nextInt(14); length >= 0; length--) {
                text.append(parts.get(random.nextInt(parts.size())));
            }
            assertThat(shown(divided(format, cut(text.toString()))))
                    .as("-Dtests.seed=%d: %s", seed, text)
                    .isEqualTo(shown(divided(format, List.of(text.toString()))));
        }
    }

    private static OutputPieces divided(String format, List<String> parts) {
        OutputParser parser = ToolFormat.named(format).parser(List.of(TOOL));
        List<Piece> pieces = new ArrayList<>();
        parts.forEach(part -> pieces.addAll(parser.add(part)));
        pieces.addAll(parser.end());
        return new OutputPieces(pieces);
    }

    private static String shown(OutputPieces pieces) {
        return pieces.content()
                + pieces.calls().stream()
                        .map(call -> " " + call.begin().orElseThrow().name() + "(" + call.arguments() + ")")
                        .collect(Collectors.joining());
    }

    private List<String> cut(String text) {
        List<String> parts = new ArrayList<>();
        int from = 0;
        while (from < text.length()) {
            int to = Math.min(text.length(), from + 1 + random.nextInt(6));
            parts.add(text.substring(from, to));
            from = to;
        }
        return parts;
    }
}
