package baton.engine;

import baton.engine.model.ModelConfig;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.kv.JsonFields;
import java.time.Duration;
import java.util.Optional;
import java.util.function.Consumer;

/** A running engine: takes prompts from any thread, continues many of them at once. */
public interface Engine extends AutoCloseable {
    EngineConfig config();

    ModelConfig model();

    /** Tokens that prompt and output may have together. */
    int maxModelLen();

    Tokenizer tokenizer();

    Optional<ChatTemplate> chatTemplate();

    /**
     * Connection parameters of this instance's connector that another instance needs before this one has answered a request: {@code
     * kv_transfer_params} of a decode request that is sent at the same time as its prefill request to this instance. Never changes.
     * Empty if there is no connector or it needs none.
     */
    default Optional<JsonFields> advertisedKvTransferParams() {
        return Optional.empty();
    }

    /**
     * Compiles the format of a request's output, which may take milliseconds, so that {@link #submit} finds it compiled.
     *
     * @throws baton.kv.ConfigException if it cannot be compiled
     * @throws EngineUnavailableException if too many formats are being compiled
     */
    default void prepare(SamplingParams sampling) {}

    /** A seed for a request that has none, as {@link #submit} draws one. */
    long drawSeed();

    /**
     * Queues a request. Its events go to {@code sink} in order, from the engine's thread; the sink must not block. Every request
     * that was accepted ends with one {@link GenerationEvent.Finished} for each of its sequences, also when the engine fails.
     *
     * @throws baton.kv.ConfigException if the request cannot be served as it is, e.g. a prompt over the limit
     * @throws EngineUnavailableException if the engine is stopping, has failed or has too many requests waiting
     */
    void submit(GenerationRequest request, Consumer<GenerationEvent> sink);

    /**
     * Says that a request was rejected and will not be submitted, so that a peer which keeps blocks for it can release them. {@link
     * #submit} does this itself for requests that it rejects.
     *
     * @param id the id that it would have had
     */
    default void refused(String id, JsonFields kvTransferParams) {}

    /** Ends a request, if it is still there, with {@link FinishReason#ABORT}. */
    void abort(String id);

    /**
     * As {@link #abort}, of a request after its answer was lost on the way to its client. The blocks of an ended request are not kept for a
     * peer that needs the answer to find them.
     */
    default void abandon(String id) {
        abort(id);
    }

    /** Empties the prefix cache. False, and nothing is done, while requests run. */
    boolean resetPrefixCache();

    /**
     * From now until the returned object is closed, requests only warm the engine up: they are scheduled and computed as usual, but
     * their blocks are not published in the prefix cache, they draw no seed, and the connector does not see them. Closing aborts those that
     * still run. The caller must not submit a client's request meanwhile.
     *
     * @param meanwhile gets the events in place of the engine's listener, except the connector's measurements
     * @throws EngineUnavailableException if the engine is stopping or has failed
     */
    WarmUp warmUp(EngineListener meanwhile);

    /** The time in which requests warm up. */
    interface WarmUp extends AutoCloseable {
        /**
         * Runs hand-overs of this engine's connector, if it has one, between two stand-ins for instances within this process.
         *
         * @return the number of prompts that were handed over
         */
        int warmUpHandovers(Duration atMost);

        @Override
        void close();
    }

    /** A recent view of the engine's load. */
    EngineStatus status();

    /** Stops at once; live requests end with {@link FinishReason#ABORT}. */
    @Override
    void close();
}
