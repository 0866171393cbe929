package baton.server;

import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * A checked request to generate: what the engine is asked, and how the answer is to look. Its choices are numbered prompt by
 * prompt: sequence {@code s} of prompt {@code p} is choice {@code p * n + s}.
 *
 * @param api whose response shapes apply
 * @param model the model's name as the client wrote it
 * @param prompts one or more, for chat exactly one
 * @param sampling for each prompt
 * @param logprobs how many alternatives of each output token are shown; empty means no log probabilities at all
 * @param stream whether output is sent as it comes
 * @param includeUsage whether a stream ends with a chunk of usage
 * @param continuousUsage whether each chunk of a stream has usage
 * @param echo whether the prompt comes before the output
 * @param showPromptLogprobs whether the log probabilities of the prompt are shown by themselves, not as part of an echo
 * @param returnTokenIds whether ids are shown besides text
 * @param role of a chat message
 */
record Call(
        Api api,
        String model,
        List<Prompt> prompts,
        SamplingParams sampling,
        OptionalInt logprobs,
        boolean stream,
        boolean includeUsage,
        boolean continuousUsage,
        boolean echo,
        boolean showPromptLogprobs,
        boolean returnTokenIds,
        String role,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority) {

    int choices() {
        return prompts.size() * sampling.n();
    }

    /**
     * One prompt.
     *
     * @param text for an echo; empty otherwise
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
