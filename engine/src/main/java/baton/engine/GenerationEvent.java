package baton.engine;

import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;

/** An event of a request, in order, for each of its {@code n} sequences. */
public sealed interface GenerationEvent {
    /** Which of the request's sequences, from 0. */
    int index();

    /**
     * More output.
     *
     * @param ids new token ids
     * @param text the text that is now certain; may be empty while a character is incomplete or could begin a stop string
     * @param logprobs one for each id if the request asked for them, else empty
     */
    record Output(int index, int[] ids, String text, List<TokenLogprobs> logprobs) implements GenerationEvent {}

    /**
     * The log probabilities of the prompt's tokens, if asked for; comes before the first output.
     *
     * @param logprobs one for each prompt token after the first
     */
    record PromptLogprobs(int index, List<TokenLogprobs> logprobs) implements GenerationEvent {}

    /**
     * The end; nothing follows for this index.
     *
     * @param reason why it ended
     * @param stopReason the stop string, or the stop token id as a number, that ended it; why a format is not complete, if no token is left
     * @param usage tokens read and written
     * @param kvTransferParams for the instance that takes over
     * @param error the reason, for {@link FinishReason#ERROR}
     * @param times of its phases
     */
    record Finished(
            int index,
            FinishReason reason,
            Optional<Object> stopReason,
            Usage usage,
            Optional<JsonFields> kvTransferParams,
            Optional<String> error,
            RequestTimes times)
            implements GenerationEvent {}

    /**
     * Tokens of one sequence.
     *
     * @param promptTokens tokens of the prompt
     * @param cachedTokens those of them that were not computed for this request
     * @param transferredTokens those of the cached that came from elsewhere, by a connector
     * @param outputTokens tokens generated
     */
    record Usage(int promptTokens, int cachedTokens, int transferredTokens, int outputTokens) {}
}
