package baton.engine;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;

/**
 * One prompt to continue.
 *
 * @param id unique among the engine's live requests; appears in logs and traces
 * @param prompt token ids, at least one
 * @param sampling how to continue it; {@code n} sequences
 * @param kvTransferParams {@code kv_transfer_params} for the connector
 * @param cacheSalt separates this request's cached blocks from those of other salts; {@linkplain #isText valid Unicode}
 * @param priority smaller runs earlier, as in vLLM; 0 unless given
 * @param cacheHitThreshold share of the prompt, in [0, 1], that KV caches must hold when a sequence is to run, here or at the connector;
 *     one with less ends with {@link FinishReason#CACHE_THRESHOLD}; 0 for no such limit. A field of llm-d's vLLM
 * @param generated output that another instance has generated, as token ids for each of the {@code n} sequences, or none at all: the sequences
 *     continue after it, as if they had chosen these tokens. The events have them again, with log probabilities of 0
 * @param first whether it is scheduled before requests without this, of any priority: its client has the beginning of the answer and waits
 */
public record GenerationRequest(
        String id,
        int[] prompt,
        SamplingParams sampling,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority,
        double cacheHitThreshold,
        List<int[]> generated,
        boolean first) {
    /**
     * @throws ConfigException if {@code cacheHitThreshold} is no share
     * @throws IllegalArgumentException if {@code cacheSalt} is not text, or output is given for another number of sequences
     */
    public GenerationRequest {
        requireShare(cacheHitThreshold);
        if (cacheSalt.filter(salt -> !isText(salt)).isPresent()) {
            throw new IllegalArgumentException(
                    "cacheSalt has half of a surrogate pair, must be valid Unicode: all such texts have the same bytes");
        }
        if (!generated.isEmpty() && generated.size() != sampling.n()) {
            throw new IllegalArgumentException(
                    "generated has " + generated.size() + " outputs, must have " + sampling.n() + " or none");
        }
    }

    public GenerationRequest(
            String id,
            int[] prompt,
            SamplingParams sampling,
            Optional<JsonFields> kvTransferParams,
            Optional<String> cacheSalt,
            int priority) {
        this(id, prompt, sampling, kvTransferParams, cacheSalt, priority, 0, List.of(), false);
    }

    public GenerationRequest(String id, int[] prompt, SamplingParams sampling) {
        this(id, prompt, sampling, Optional.empty(), Optional.empty(), 0);
    }

    /** @throws ConfigException if a {@code cache_hit_threshold} is no share */
    public static void requireShare(double cacheHitThreshold) {
        if (!(cacheHitThreshold >= 0 && cacheHitThreshold <= 1)) {
            throw new ConfigException("cache_hit_threshold", "is " + cacheHitThreshold + ", must be in [0, 1]");
        }
    }

    /** Whether UTF-8 can represent all of a text, so that different texts have different bytes. */
    public static boolean isText(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }
}
