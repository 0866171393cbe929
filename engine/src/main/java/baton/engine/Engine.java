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
     * What leads other instances' connectors to this one's before any request: {@code kv_transfer_params} of a decode request
     * that is sent along with its prefill request to this instance. Never changes. Empty if the connector has nothing to tell, or
     * there is none.
     */
    default Optional<JsonFields> advertisedKvTransferParams() {
        return Optional.empty();
    }

    /**
     * Queues a request. Its events go to {@code sink} in order, from the engine's thread; the sink must not block. Every request
     * that was accepted ends with one {@link GenerationEvent.Finished} for each of its sequences, also when the engine fails.
     *
     * @throws baton.kv.ConfigException if the request cannot be served as it is, e.g. a prompt over the limit
     * @throws EngineUnavailableException if the engine is stopping, has failed or has too many requests waiting
     */
    void submit(GenerationRequest request, Consumer<GenerationEvent> sink);

    /**
     * A request will not be submitted, because it was refused before. Who keeps blocks for it hears that they are not needed; {@link
     * #submit} does so itself for what it refuses.
     *
     * @param id that it would have had
     */
    default void refused(String id, JsonFields kvTransferParams) {}

    /** Ends a request, if it is still there, with {@link FinishReason#ABORT}. */
    void abort(String id);

    /** Forgets cached prefixes. False if that is not possible while requests run. */
    boolean resetPrefixCache();

    /**
     * From now until the returned object is closed, requests only warm the engine up: they are scheduled and computed as usual, but
     * their blocks are not published in the prefix cache, they draw no seed, and the connector is not told. Closing aborts those that
     * still run. The caller submits no client's request meanwhile.
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
