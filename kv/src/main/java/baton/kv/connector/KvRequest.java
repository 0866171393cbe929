package baton.kv.connector;

import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.ModelFingerprint;
import baton.kv.PromptDigest;
import java.util.List;
import java.util.Optional;

/** A request as a connector sees it. Valid on the scheduler's thread only. */
public interface KvRequest {
    /** Unique within the engine, for as long as the engine lives. */
    String id();

    /** Tokens of the prompt, and of the output that another instance generated before this one continues it. */
    int promptLength();

    /** Tokens of the prompt and of the output so far. */
    int length();

    /** A copy of the tokens {@code [from, to)} of prompt and output. */
    int[] tokens(int from, int to);

    /** Hashes of the full blocks among {@link #length} tokens. */
    List<BlockHash> blockHashes();

    /** The request's {@code kv_transfer_params}. */
    Optional<JsonFields> kvTransferParams();

    Optional<String> cacheSalt();

    /** The tenant that its cached blocks belong to: the salt up to its first {@code :}; empty without a salt. The rest of a salt divides the tenant's cache. */
    default String tenant() {
        return cacheSalt().map(salt -> salt.split(":", 2)[0]).orElse("");
    }

    Optional<String> loraId();

    /** {@link PromptDigest} of its first tokens. */
    default String digest(ModelFingerprint model, int tokens) {
        return PromptDigest.of(model, loraId(), cacheSalt(), tokens(0, tokens));
    }

    /**
     * True if {@link SchedulerConnector#match} is asked about it. False if the engine computes the whole prompt in any case, because
     * all its hidden states are needed.
     */
    default boolean mayLoad() {
        return true;
    }

    /** The id of a prompt's first sample, for its later samples ({@code n}); the first may have ended. */
    default Optional<String> firstSample() {
        return Optional.empty();
    }
}
