package baton.kv.connector;

import baton.kv.ConfigException;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;

/**
 * A connector's view of its engine. Ranks are threads of one process; the scheduler side gets the context of the first.
 *
 * @param config the whole transfer configuration
 * @param model fingerprint of the model that fills the cache
 * @param layout layout of the rank's pool
 * @param modelLayout layout of a pool that had all heads and the layers of all stages, of several groups those that a block has in each
 *     stage; the same for all ranks. The rank's key/value heads begin at
 *     {@code tensor * modelLayout.kvHeads() / tensorParallelSize}; if there are fewer heads than ranks, several have the same one
 * @param groups of the layers of the rank's pool
 * @param tensorParallelSize ranks that share the heads
 * @param pipelineParallelSize stages that share the layers
 * @param ticker the time to wait by
 * @param wake makes a waiting engine poll its connector's reports soon; for any thread, and cheap. Without it the engine polls too, but
 *     seldom
 */
public record ConnectorContext(
        KvTransferConfig config,
        ModelFingerprint model,
        KvLayout layout,
        KvLayout modelLayout,
        KvGroups groups,
        int tensorParallelSize,
        int pipelineParallelSize,
        Ticker ticker,
        Runnable wake) {
    /** This context with another configuration, e.g. of a connector within this one. */
    public ConnectorContext with(KvTransferConfig other) {
        return new ConnectorContext(
                other, model, layout, modelLayout, groups, tensorParallelSize, pipelineParallelSize, ticker, wake);
    }

    /**
     * Refuses latent entries, for a connector with a format of keys and values.
     *
     * @throws ConfigException naming the connector
     */
    public void requireKeysAndValues(String connector) {
        if (modelLayout.latent()) {
            throw new ConfigException(
                    "kv_connector",
                    "is " + connector
                            + ", which transfers keys and values; this model caches latents. It must be one of NixlConnector,"
                            + " NixlPushConnector, MooncakeConnector, SharedStorageConnector, OffloadingConnector, MooncakeStoreConnector");
        }
    }

    /** The context of an engine that polls often and has one group of layers. */
    public ConnectorContext(
            KvTransferConfig config,
            ModelFingerprint model,
            KvLayout layout,
            KvLayout modelLayout,
            int tensorParallelSize,
            int pipelineParallelSize,
            Ticker ticker) {
        this(
                config,
                model,
                layout,
                modelLayout,
                KvGroups.one(layout.layers()),
                tensorParallelSize,
                pipelineParallelSize,
                ticker,
                () -> {});
    }

    /** The context of an engine in one rank: its pool has all layers and heads. */
    public ConnectorContext(KvTransferConfig config, ModelFingerprint model, KvLayout layout, Ticker ticker) {
        this(config, model, layout, layout, 1, 1, ticker);
    }
}
