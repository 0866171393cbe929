package baton.engine;

import baton.kv.JsonFields;
import java.util.Optional;

/**
 * One prompt to continue.
 *
 * @param id unique among the engine's live requests; appears in logs and traces
 * @param prompt token ids, at least one
 * @param sampling how to continue it; {@code n} sequences
 * @param kvTransferParams {@code kv_transfer_params} for the connector
 * @param cacheSalt separates this request's cached blocks from those of other salts
 * @param priority smaller runs earlier, as in vLLM; 0 unless given
 */
public record GenerationRequest(
        String id,
        int[] prompt,
        SamplingParams sampling,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority) {
    public GenerationRequest(String id, int[] prompt, SamplingParams sampling) {
        this(id, prompt, sampling, Optional.empty(), Optional.empty(), 0);
    }
}
