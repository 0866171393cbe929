package baton.server;

import baton.engine.SamplingParams;
import baton.kv.GeneratedBuilder;
import baton.kv.JsonFields;
import baton.server.output.OutputParser;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/**
 * A validated request to generate: the engine's input and the form of the answer. Choices are numbered prompt by
 * prompt: sequence {@code s} of prompt {@code p} is choice {@code p * n + s}. If the engine makes more sequences than
 * requested ({@code best_of}), those with the greatest mean log probability are shown.
 *
 * @param api the API with the response shapes that apply
 * @param model the model's name in the request
 * @param prompts one or more, for chat exactly one
 * @param sampling for each prompt; its {@code n} is the number of sequences the engine makes
 * @param n choices shown for each prompt
 * @param logprobs how many alternatives of each output token are shown; empty means no log probabilities at all
 * @param stream whether output is sent token by token
 * @param streamInterval output tokens in each event of a stream but its first and its last, at least
 * @param includeUsage whether a stream ends with a chunk of usage
 * @param continuousUsage whether each chunk of a stream has usage
 * @param echo whether the prompt's text comes before the output
 * @param generates false if the answer is the echo alone, without the token that the engine makes
 * @param showPromptLogprobs whether {@code prompt_logprobs} are in the answer, apart from those of an echo
 * @param returnTokenIds whether ids are shown besides text
 * @param tokensAsIds whether log probabilities show tokens as {@code token_id:7} and not as text
 * @param role of a chat message
 * @param parser divides the text of a sequence; a new one for each
 * @param namesTool whether the only function that may be called was named, so that the finish reason of a call is {@code stop}
 * @param reasons whether reasoning is looked for in the output
 * @param showsReasoning whether it is in the answer, with its token ids
 * @param continuation of an answer that another instance began
 * @param repeated fields of the request that the answer has too, or is formed by; empty for completions and chats
 */
@GeneratedBuilder
record ApiRequest(
        Api api,
        String model,
        List<Prompt> prompts,
        SamplingParams sampling,
        int n,
        OptionalInt logprobs,
        boolean stream,
        int streamInterval,
        boolean includeUsage,
        boolean continuousUsage,
        boolean echo,
        boolean generates,
        boolean showPromptLogprobs,
        boolean returnTokenIds,
        boolean tokensAsIds,
        String role,
        Supplier<OutputParser> parser,
        boolean namesTool,
        boolean reasons,
        boolean showsReasoning,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority,
        double cacheHitThreshold,
        Optional<Continuation> continuation,
        JsonFields repeated)
        implements ApiRequestBuilder.With {
    private static final Pattern SHARE = Pattern.compile("0\\.[0-9]{1,20}");

    /** Sequences that the engine makes. */
    int sequences() {
        return prompts.size() * sampling.n();
    }

    /**
     * One prompt.
     *
     * @param text of an echo: the prompt, or the last message of a chat that the answer continues; empty otherwise
     * @param output token ids after the prompt that are computed as a part of it
     * @param computes how many tokens of both are computed, from the first one on
     */
    record Prompt(int[] ids, String text, int[] output, int computes) {
        Prompt(int[] ids, String text, int[] output) {
            this(ids, text, output, ids.length + output.length);
        }

        /** All tokens that are computed as prompt. */
        int[] computed() {
            int[] all = Arrays.copyOf(ids, ids.length + output.length);
            System.arraycopy(output, 0, all, ids.length, output.length);
            return Arrays.copyOf(all, computes);
        }

        /** The prompt with a share of its whole blocks, but all if that is no block. */
        Prompt part(double share, int blockSize) {
            int part = (int) (share * computes) / blockSize * blockSize;
            return part == 0 ? this : new Prompt(ids, text, output, part);
        }
    }

    /**
     * The prefill leg of prompts that the decode instance computes a part of. The answer has the token ids and the usage of the whole prompts.
     *
     * @param share the header {@link Continuation#PROMPT_SHARE}
     * @throws ApiException if it is no share, or the request is for more than one token
     */
    ApiRequest part(String share, int blockSize) {
        double part = SHARE.matcher(share).matches() ? Double.parseDouble(share) : 0;
        if (part == 0 || sampling.maxTokens().orElse(0) != 1) {
            throw ApiException.badField(
                    Continuation.PROMPT_SHARE,
                    "is '" + Json.shortened(share)
                            + "', must be a number over 0 and under 1, of a request with max_tokens 1");
        }
        return withPrompts(
                prompts.stream().map(prompt -> prompt.part(part, blockSize)).toList());
    }

    /** The families of requests. */
    enum Api {
        COMPLETION("cmpl-", "text_completion", "text_completion"),
        CHAT("chatcmpl-", "chat.completion", "chat.completion.chunk"),
        RESPONSES("resp_", "response", "response"),
        /** vLLM's gRPC: answers have no name of their own and show the request's id. */
        INFERENCE("", "", "");

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
