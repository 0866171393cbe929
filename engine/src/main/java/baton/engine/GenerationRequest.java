package baton.engine;

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
        List<int[]> generated,
        boolean first) {
    /** @throws IllegalArgumentException if {@code cacheSalt} is not text, or output is given for another number of sequences */
    public GenerationRequest {
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
        this(id, prompt, sampling, kvTransferParams, cacheSalt, priority, List.of(), false);
    }

    public GenerationRequest(String id, int[] prompt, SamplingParams sampling) {
        this(id, prompt, sampling, Optional.empty(), Optional.empty(), 0);
    }

    /** Whether UTF-8 can represent all of a text, so that different texts have different bytes. */
    public static boolean isText(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }
}
