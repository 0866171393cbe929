package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.grammar.automaton.TokenVocabulary;
import baton.kv.ConfigException;
import baton.server.output.ReasoningFormat.Start;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class ReasoningFormatTest {
    private static final long SEED = Long.getLong("tests.seed", 1);

    /** {@code prompt | text | reasoning | content}; the text comes whole and in random pieces. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', ignoreLeadingAndTrailingWhitespace = true, textBlock = """
            qwen3       | assistant | `<think>\\na < b</think>\\n\\nHi`     | `\\na < b`  | `\\n\\nHi`
            qwen3       | assistant | `a</think>b`                          | a          | b
            qwen3       | assistant | `a</thin`                             | `a</thin`  | ``
            qwen3       | assistant | `a<tool_call>b`                       | a          | `<tool_call>b`
            qwen3       | `<think>` | `a</think>b</think>`                  | a          | `b</think>`
            qwen3       | `<think>\\n\\n</think>\\n\\n` | `a</think>b`      | ``         | `a</think>b`
            deepseek_r1 | `<think>` | `a<tool_call>b</think>c`              | `a<tool_call>b` | c
            deepseek_r1 | `<think>a</think>b<think>` | `c</think>d`         | c          | d
            granite     | assistant | `Here is my thought process: a Here's my response: b` | ` a ` | ` b`
            granite     | assistant | `Here is my day: a`                   | ``         | `Here is my day: a`
            granite     | assistant | `Here is`                             | ``         | `Here is`
            granite     | assistant | `Here is my thought process: a`       | ` a`       | ``
            gpt_oss     | `<|start|>assistant` | `<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b` | a | b
            gpt_oss     | `<|start|>assistant` | `<|channel|>analysis<|message|>a<|end|>assistant<|channel|>analysis<|message|>b<|end|>` | `a\\nb` | ``
            gpt_oss     | `<|start|>assistant<|channel|>final<|message|>It` | ` is` | `` | ` is`
            gpt_oss     | `<|start|>assistant` | `no message`                | ``         | `no message`
            gpt_oss     | `<|start|>assistant` | `<|channel|>commentary to=python<|message|>x=1<|call|>` | `` | ``
            """)
    void dividesReasoningFromContent(String name, String prompt, String text, String reasoning, String content) {
        for (List<Piece> pieces : divided(name, unescaped(prompt), unescaped(text))) {
            assertThat(new OutputPieces(pieces).reasoning().orElse("")).isEqualTo(unescaped(reasoning));
            assertThat(new OutputPieces(pieces).content()).isEqualTo(unescaped(content));
        }
    }

    private static String unescaped(String text) {
        return text.replace("\\n", "\n");
    }

    private static List<List<Piece>> divided(String name, String prompt, String text) {
        Random random = new Random(SEED);
        List<List<Piece>> all = new ArrayList<>();
        for (int run = 0; run < 20; run++) {
            OutputParser parser = ReasoningFormat.named(name).parser(new Start(prompt, true), OutputParser.plain());
            List<Piece> pieces = new ArrayList<>();
            for (int at = 0; at < text.length(); ) {
                int end = run == 0 ? text.length() : Math.min(text.length(), at + 1 + random.nextInt(run));
                pieces.addAll(parser.add(text.substring(at, end)));
                at = end;
            }
            pieces.addAll(parser.end());
            all.add(pieces);
        }
        return all;
    }

    /** Texts of the marks in any order are divided into the same pieces however they are cut. */
    @ParameterizedTest
    @ValueSource(strings = {"qwen3", "deepseek_r1", "granite", "gpt_oss"})
    void randomTextsAreDividedHoweverTheyAreCut(String name) {
        Random random = new Random(SEED);
        List<String> parts = new ArrayList<>(ReasoningFormat.named(name).marks());
        parts.addAll(List.of("<", "think>", "Here is my ", " ", "\n", "é😀", "<tool_call>", "<|start|>assistant"));
        parts.addAll(List.of("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", " to=functions.f"));
        for (int i = 0; i < 1000; i++) {
            StringBuilder text = new StringBuilder();
            for (int length = random.nextInt(10); length >= 0; length--) {
                text.append(parts.get(random.nextInt(parts.size())));
            }
            assertThat(divided(name, i % 2 == 0 ? "" : "<think>", text.toString()).stream()
                            .map(OutputPieces::new)
                            .map(each -> each.reasoning() + "|" + each.content() + "|"
                                    + each.calls().stream()
                                            .map(OutputPieces.Call::arguments)
                                            .toList())
                            .distinct())
                    .as(text.toString())
                    .hasSize(1);
        }
    }

    @Test
    void callsOfGptOssHaveTheirRecipientsName() {
        String text =
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|end|><|start|>assistant"
                        + " to=functions.g<|channel|>commentary json<|message|>{}<|call|>";
        for (List<Piece> pieces : divided("gpt_oss", "<|start|>assistant", text)) {
            assertThat(new OutputPieces(pieces).calls())
                    .extracting(
                            call -> call.index() + call.begin().orElseThrow().name() + call.arguments())
                    .containsExactly("0f{\"a\": 1}", "1g{}");
        }
    }

    /** As vLLM counts them: without the marks. */
    @Test
    void tokensOfReasoningAreKnown() {
        OutputParser thoughts = ReasoningFormat.named("qwen3").parser(new Start("", true), OutputParser.plain());
        assertThat(counted(thoughts, "<think>", "\n", "a", "</think>", "b")).isEqualTo(2);
        OutputParser harmony = ReasoningFormat.named("gpt_oss").parser(new Start("", true), OutputParser.plain());
        assertThat(counted(
                        harmony,
                        "<|channel|>",
                        "analysis",
                        "<|message|>",
                        "a",
                        "b",
                        "<|end|>",
                        "<|start|>",
                        "assistant",
                        "<|channel|>",
                        "final",
                        "<|message|>",
                        "c"))
                .isEqualTo(2);
    }

    /** Marks may be several tokens, of which some occur in thoughts. */
    @Test
    void tokensOfMarksAreNotReasoning() {
        OutputParser thoughts = ReasoningFormat.named("qwen3").parser(new Start("", true), OutputParser.plain());
        assertThat(counted(thoughts, "<", "think", ">", "<", "a", "</", "b", "</", "think", ">", "c"))
                .isEqualTo(4);
        OutputParser granite = ReasoningFormat.named("granite").parser(new Start("", true), OutputParser.plain());
        assertThat(counted(
                        granite,
                        "Here",
                        " is",
                        " my",
                        " thought",
                        " process:",
                        "a",
                        "Here",
                        " is",
                        " my",
                        " response:",
                        "b"))
                .isEqualTo(1);
    }

    private static int counted(OutputParser parser, String... tokens) {
        int count = 0;
        int undecided = 0;
        for (String token : tokens) {
            List<Piece> _ = parser.add(token);
            undecided++;
            if (parser.place() != OutputParser.Place.UNDECIDED) {
                count += parser.place() == OutputParser.Place.REASONING ? undecided : 0;
                undecided = 0;
            }
        }
        return count;
    }

    @Test
    void aModelThatIsNotAskedToThinkAnswersAtOnce() {
        OutputParser parser = ReasoningFormat.named("qwen3").parser(new Start("x", false), OutputParser.plain());
        assertThat(new OutputPieces(parser.add("Hi")).content()).isEqualTo("Hi");
    }

    /** {@code prompt | accepted | refused}. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', textBlock = """
            qwen3   | assistant            | `a</think>[1]`                                  | `[1]`
            qwen3   | assistant            | `<think>a < b</</think>[1]`                     | `a</think>b`
            qwen3   | `<think></think>`    | `[1]`                                           | `a</think>[1]`
            granite | assistant            | `[1]`                                           | `a[1]`
            granite | assistant            | `Here is my thought process:a Here is my response:[1]` | `Here is my thought process:[1]`
            """)
    void aFormatIsThatOfTheAnswer(String name, String prompt, String accepted, String refused) {
        OutputFormat answer = new OutputFormat.Choices(List.of("[1]"));
        Grammar grammar = Grammar.compile(ReasoningFormat.named(name)
                .format(new Start(prompt, true), answer, _ -> false)
                .source());
        assertThat(grammar.accepts(accepted.getBytes(StandardCharsets.UTF_8))).isTrue();
        assertThat(grammar.accepts(refused.getBytes(StandardCharsets.UTF_8))).isFalse();
    }

    /** Special tokens are not their characters. */
    @ParameterizedTest
    @CsvSource(delimiter = ';', textBlock = """
            <|channel|> final <|message|> [1] ; true
            <|channel|> analysis <|message|> a <|end|> <|start|> assistant <|channel|> final ␠ <|constrain|> json <|message|> [1] ; true
            <|channel|> final <|message|> a ; false
            <|channel|> commentary ␠ to=functions.f ␠ json <|message|> {} ; true
            <|channel|> commentary ␠ to=functions.g ␠ json <|message|> {} ; false
            [1] ; false
            """)
    void aFormatOfGptOssIsThatOfItsFinalMessageOrCall(String tokens, boolean isAccepted) {
        Harmony harmony = new Harmony();
        Start start = new Start("<|start|>assistant", true);
        List<String> vocabulary = List.of(
                "<|channel|>",
                "<|message|>",
                "<|end|>",
                "<|start|>",
                "<|constrain|>",
                "final",
                "analysis",
                "assistant",
                "commentary",
                " ",
                "to=functions.f",
                "to=functions.g",
                "json",
                "a",
                "[1]",
                "{}");
        OutputFormat content = new OutputFormat.Choices(List.of("[1]"));
        OutputFormat answer = CallGrammar.of(
                        harmony,
                        List.of(new Tool("tools[0]", "f", Optional.empty(), true)),
                        false,
                        true,
                        _ -> true,
                        Optional.of(harmony.answer(start, content)))
                .orElseThrow();
        TokenMatcher matcher = new TokenGrammar(
                        Grammar.compile(harmony.format(start, answer, _ -> true).source()),
                        TokenVocabulary.of(
                                vocabulary.size(),
                                id -> vocabulary.get(id).getBytes(StandardCharsets.UTF_8),
                                Map.of(
                                        "<|channel|>",
                                        0,
                                        "<|message|>",
                                        1,
                                        "<|end|>",
                                        2,
                                        "<|start|>",
                                        3,
                                        "<|constrain|>",
                                        4),
                                Set.of()))
                .matcher();
        boolean accepted = true;
        for (String token : tokens.split(" ")) {
            accepted = accepted && matcher.accept(vocabulary.indexOf(token.replace('␠', ' ')));
        }
        assertThat(accepted && matcher.mayEnd()).isEqualTo(isAccepted);
    }

    @Test
    void namesAreVllms() {
        assertThatThrownBy(() -> ReasoningFormat.named("x"))
                .isInstanceOf(ConfigException.class)
                .hasMessage("reasoning_parser: unsupported value 'x'; allowed: deepseek_r1, gpt_oss, granite,"
                        + " openai_gptoss, qwen3");
        assertThat(ReasoningFormat.named("openai_gptoss")).isEqualTo(ReasoningFormat.named("gpt_oss"));
    }
}
