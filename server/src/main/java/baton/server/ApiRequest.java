package baton.server;

import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * A checked request to generate: what the engine is asked, and how the answer is to look. Its choices are numbered prompt by
 * prompt: sequence {@code s} of prompt {@code p} is choice {@code p * n + s}. If the engine makes more sequences than are shown
 * ({@code best_of}), those with the greatest log probability per token are.
 *
 * @param api whose response shapes apply
 * @param model the model's name as the client wrote it
 * @param prompts one or more, for chat exactly one
 * @param sampling for each prompt; its {@code n} is the number of sequences the engine makes
 * @param n choices shown for each prompt
 * @param logprobs how many alternatives of each output token are shown; empty means no log probabilities at all
 * @param stream whether output is sent as it comes
 * @param includeUsage whether a stream ends with a chunk of usage
 * @param continuousUsage whether each chunk of a stream has usage
 * @param echo whether the prompt's text comes before the output
 * @param generates false if only the echo is wanted, not the one token that the engine makes
 * @param showPromptLogprobs whether the log probabilities of the prompt are shown by themselves, not as part of an echo
 * @param returnTokenIds whether ids are shown besides text
 * @param tokensAsIds whether log probabilities show tokens as {@code token_id:7} and not as text
 * @param role of a chat message
 */
record ApiRequest(
        Api api,
        String model,
        List<Prompt> prompts,
        SamplingParams sampling,
        int n,
        OptionalInt logprobs,
        boolean stream,
        boolean includeUsage,
        boolean continuousUsage,
        boolean echo,
        boolean generates,
        boolean showPromptLogprobs,
        boolean returnTokenIds,
        boolean tokensAsIds,
        String role,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority) {

    /** Sequences that the engine makes. */
    int sequences() {
        return prompts.size() * sampling.n();
    }

    /**
     * One prompt.
     *
     * @param text what an echo shows: the prompt, or the last message of a chat that the answer continues; empty otherwise
     */
    record Prompt(int[] ids, String text) {}

    /** The two families of requests. */
    enum Api {
        COMPLETION("cmpl-", "text_completion", "text_completion"),
        CHAT("chatcmpl-", "chat.completion", "chat.completion.chunk");

        private final String idPrefix;
        private final String object;
        private final String chunkObject;

        Api(String idPrefix, String object, String chunkObject) {
            this.idPrefix = idPrefix;
            this.object = object;
            this.chunkObject = chunkObject;
        }

        String idPrefix() {
            return idPrefix;
        }

        String object() {
            return object;
        }

        String chunkObject() {
            return chunkObject;
        }
    }
}
