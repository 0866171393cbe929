package baton.server.output;

import baton.engine.ThinkingBudget;
import baton.engine.text.Tokenizer;
import baton.grammar.OutputFormat;
import baton.kv.ConfigException;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;

/** How a model marks its thoughts before the answer. */
public sealed interface ReasoningFormat permits Thoughts, Harmony {
    /**
     * The format by the name of vLLM's parser.
     *
     * @throws ConfigException if no format has the name
     */
    static ReasoningFormat named(String name) {
        return switch (name) {
            case "qwen3" -> new Thoughts(List.of("<think>"), List.of("</think>"), List.of("<tool_call>"), true);
            case "deepseek_r1" -> new Thoughts(List.of("<think>"), List.of("</think>"), List.of(), true);
            case "granite" ->
                new Thoughts(
                        List.of("Here is my thought process:", "Here's my thought process:"),
                        List.of("Here is my response:", "Here's my response:"),
                        List.of(),
                        false);
            case "gpt_oss", "openai_gptoss" -> new Harmony();
            default ->
                throw ConfigException.unsupported(
                        "reasoning_parser", name, "deepseek_r1, gpt_oss, granite, openai_gptoss, qwen3");
        };
    }

    /** Marks of thoughts, which may be special tokens of the model. */
    List<String> marks();

    /**
     * Where the output begins.
     *
     * @param prompt the end of the prompt, in which a thought may have begun or ended: the beginning of the message that the model writes
     * @param thinks whether the model is asked to think
     */
    record Start(String prompt, boolean thinks) {}

    /** Divides one sequence; {@code answer} divides the text after the thoughts. */
    OutputParser parser(Start start, OutputParser answer);

    /** A budget of the reasoning; empty if its marks are not the same tokens in every text. */
    default Optional<ThinkingBudget> budget(int tokens, Tokenizer tokenizer) {
        return Optional.empty();
    }

    /** The format of an answer with a content, if it does not call tools. */
    default OutputFormat answer(Start start, OutputFormat content) {
        return content;
    }

    /**
     * The format of the whole output.
     *
     * @param answer the format of the text after the thoughts
     * @param isSpecial whether a mark is a special token
     */
    OutputFormat format(Start start, OutputFormat answer, Predicate<String> isSpecial);
}
