package baton.server;

import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.text.Tokenizer;
import baton.kv.JsonFields;
import baton.server.output.OutputParser;
import baton.server.output.Piece;
import baton.server.output.ReasoningFormat;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Supplier;

/**
 * The reasoning before the answer of a chat.
 *
 * @param start where the output begins
 */
record ReasoningUse(ReasoningFormat format, ReasoningFormat.Start start, Tokenizer tokenizer) {
    static ReasoningUse read(JsonFields fields, ReasoningFormat format, int[] prompt, Tokenizer tokenizer) {
        boolean thinks = fields.object("chat_template_kwargs")
                .flatMap(kwargs -> kwargs.bool("enable_thinking"))
                .orElseGet(() -> !fields.string("reasoning_effort").orElse("").equals("none"));
        return new ReasoningUse(format, new ReasoningFormat.Start(begun(prompt, format, tokenizer), thinks), tokenizer);
    }

    /** The end of the prompt from the last special token that is no mark of reasoning. */
    private static String begun(int[] prompt, ReasoningFormat format, Tokenizer tokenizer) {
        int from = prompt.length - 1;
        while (from > 0
                && !(tokenizer.isSpecial(prompt[from]) && !format.marks().contains(tokenizer.token(prompt[from])))) {
            from--;
        }
        return tokenizer.decode(Arrays.copyOfRange(prompt, from, prompt.length), false);
    }

    /** A format is that of the content of an answer. */
    void answer(SamplingParamsBuilder builder) {
        builder.build().format().ifPresent(content -> builder.format(format.answer(start, content)));
    }

    /** The marks are in the text, and a format is that of the whole answer. */
    void apply(SamplingParamsBuilder builder) {
        SamplingParams sampling = builder.build();
        Set<Integer> shown = new HashSet<>(sampling.shownSpecialTokens());
        format.marks().forEach(mark -> tokenizer.id(mark).ifPresent(shown::add));
        builder.shownSpecialTokens(shown);
        sampling.format().ifPresent(answer -> builder.format(format.format(start, answer, tokenizer::isSpecial)));
    }

    /**
     * Divides the text of each sequence.
     *
     * @param isShown whether the reasoning is in the answer
     * @param mayCall whether calls are, which gpt-oss writes also without tools
     */
    Supplier<OutputParser> parser(Supplier<OutputParser> answer, boolean isShown, boolean mayCall) {
        return () -> format.parser(start, answer.get()).only(piece -> switch (piece) {
            case Piece.Reasoning _ -> isShown;
            case Piece.CallBegin _, Piece.CallArguments _ -> mayCall;
            case Piece.Content _ -> true;
        });
    }
}
