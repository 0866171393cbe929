package baton.engine.core;

import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.TokenLogprobs;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;

/** Receives a request's tokens and its end, on the core's thread. Must not block. */
public interface RequestListener {
    /** Log probabilities of further prompt tokens, in order. */
    default void onPromptLogprobs(List<TokenLogprobs> logprobs) {}

    /**
     * A new token.
     *
     * @param ends true if the token itself ends the output, e.g. an end-of-text token
     * @return the stop string that the text now contains, which ends the request
     */
    Optional<String> onToken(Sampled token, boolean ends);

    /**
     * The end.
     *
     * @param stopReason the stop string or the stop token that ended it
     * @param error the reason, for {@link FinishReason#ERROR}
     */
    void onFinished(
            FinishReason reason,
            Optional<Object> stopReason,
            RequestStats stats,
            Optional<JsonFields> kvTransferParams,
            Optional<String> error);
}
