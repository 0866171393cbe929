package baton.kv.connector;

import baton.kv.KvCache;
import baton.kv.KvFence;
import java.util.Optional;
import java.util.Set;

/**
 * The moving side of a connector, for one rank. All calls come from that rank's thread. In each step, in this order:
 * {@link #startLoad}, then per layer {@link #waitForLayerLoad}, the layer's forward pass, {@link #saveLayer}; then
 * {@link #discardSaves}, {@link #waitForSave} and {@link #report}. A step without a forward pass has only {@link #startLoad} and {@link #report}.
 *
 * <p>A method that waits does so up to a deadline of its own, and reports blocks that it could not load as invalid. It never
 * throws because of a peer, a file or a network. One that throws all the same is closed, see {@link SchedulerConnector}.
 */
public interface WorkerConnector extends AutoCloseable {
    /**
     * The pool to load into and save from, once, before the first step. It outlives this connector. It is in host memory, unless
     * {@link KvConnector#needsHostMemory} says that it need not be.
     */
    void register(KvCache cache);

    /** This worker's handshake metadata for peers, requested once, after {@link #register}. */
    default Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.empty();
    }

    /**
     * Ends operations that still read blocks that this step may write to. Of several connectors in one all do so before any starts a load, which may
     * write to such blocks; {@link #startLoad} does it, too.
     */
    default void endReads(ConnectorMetadata metadata) {}

    /** Starts this step's loads and keeps the metadata for the rest of the step. */
    void startLoad(ConnectorMetadata metadata);

    /**
     * Returns when the layer's blocks are loaded, or known not to be.
     *
     * @param layer of this rank's layers, from 0
     */
    default void waitForLayerLoad(int layer) {}

    /**
     * {@link #waitForLayerLoad} as the engine calls it. A connector over a device's pool need not wait.
     *
     * @return passed when the layer's blocks are loaded, or known not to be
     */
    default KvFence layerLoaded(int layer) {
        waitForLayerLoad(layer);
        return KvFence.PASSED;
    }

    /** The layer's keys and values of this step are in the pool. */
    default void saveLayer(int layer) {}

    /**
     * {@link #saveLayer(int)} as the engine calls it. A connector over a device's pool need not wait.
     *
     * @param computed passed when this step's keys and values of the layer, and of those before it, are in the pool
     */
    default void saveLayer(int layer, KvFence computed) {
        computed.await();
        saveLayer(layer);
    }

    /**
     * Whether {@link #saveLayer(int)} does something. Over a device's pool, a connector that says no gets whole blocks, in fewer and
     * larger copies, before {@link #waitForSave}.
     */
    default boolean savesByLayer() {
        return true;
    }

    /** Whether {@link #saveHidden} is to be called; asked once, after {@link #register}. */
    default boolean wantsHidden() {
        return false;
    }

    /**
     * This step computed the last token of a request's prompt. Called after the last layer, in the ranks of the last stage, which
     * all have the same. Not called if the token was computed together with later ones, as after a preemption.
     *
     * @param state in memory that is valid during the call
     */
    default void saveHidden(String requestId, HiddenState state) {}

    /**
     * Logits that this step computed for these requests are not finite, or keys and values that were loaded for them are not those of the
     * model, so the step's results for them are wrong: their saves of this step must not become visible to a peer or a store. The requests
     * end with an error, or are computed again. Not called in steps without such requests.
     */
    default void discardSaves(Set<String> requestIds) {}

    /** All ranks have computed the step. Returns when the pool may be written to again. */
    default void waitForSave() {}

    /**
     * The work since the last report.
     *
     * @param finished requests that ended since the last step
     */
    default WorkerReport report(Set<String> finished) {
        return WorkerReport.NOTHING;
    }

    /**
     * Ends all transfers, with a deadline. When it returns, nothing reads or writes the pool through this connector any more, neither here
     * nor at a peer, as far as that can be held back.
     */
    @Override
    void close();
}
