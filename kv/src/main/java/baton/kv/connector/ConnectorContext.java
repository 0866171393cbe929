package baton.kv.connector;

import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;

/**
 * What a connector knows of its engine.
 *
 * @param config the whole transfer configuration
 * @param model fingerprint of the model that fills the cache
 * @param layout layout of one rank's pool
 * @param tensorParallelSize ranks that share the heads
 * @param pipelineParallelSize stages that share the layers
 * @param ticker the time to wait by
 */
public record ConnectorContext(
        KvTransferConfig config,
        ModelFingerprint model,
        KvLayout layout,
        int tensorParallelSize,
        int pipelineParallelSize,
        Ticker ticker) {}
