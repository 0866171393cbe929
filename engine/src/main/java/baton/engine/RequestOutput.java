package baton.engine;

import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;

/**
 * The result of a prompt.
 *
 * @param id the request's id
 * @param prompt its token ids
 * @param promptLogprobs one for each prompt token after the first, if asked for
 * @param completions its {@code n} continuations, in order
 * @param cachedTokens tokens of the prompt that were not computed here, for the first continuation
 * @param kvTransferParams the connector's parameters for the next instance
 */
public record RequestOutput(
        String id,
        int[] prompt,
        List<TokenLogprobs> promptLogprobs,
        List<Completion> completions,
        int cachedTokens,
        Optional<JsonFields> kvTransferParams) {
    /** The first continuation's text. */
    public String text() {
        return completions.getFirst().text();
    }

    /** The first continuation's token ids. */
    public int[] tokens() {
        return completions.getFirst().tokens();
    }

    /**
     * One continuation.
     *
     * @param tokens its ids, an ending token included
     * @param logprobs one for each token, if asked for
     * @param stopReason the stop string or stop token that ended it
     * @param error the reason, for {@link FinishReason#ERROR}
     */
    public record Completion(
            int index,
            String text,
            int[] tokens,
            List<TokenLogprobs> logprobs,
            FinishReason reason,
            Optional<Object> stopReason,
            Optional<String> error) {}
}
