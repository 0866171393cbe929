package baton.connectors.p2pnccl;

import baton.kv.connector.ConnectorMetadata;
import baton.messages.p2p.P2pRequestId.Found;
import java.util.List;

/**
 * The workers' tasks in a step.
 *
 * @param dropped ids common to both legs, of requests of which no more tensors are sent
 * @param unwanted ids common to both legs, of requests that take no more tensors
 */
record P2pNcclConnectorMetadata(List<Load> loads, List<Save> saves, List<String> dropped, List<String> unwanted)
        implements ConnectorMetadata {
    P2pNcclConnectorMetadata {
        loads = List.copyOf(loads);
        saves = List.copyOf(saves);
        dropped = List.copyOf(dropped);
        unwanted = List.copyOf(unwanted);
    }

    /**
     * Loads the tokens {@code [firstToken, endToken)} of a prompt.
     *
     * @param firstToken a multiple of the block size
     * @param blocks the blocks to fill
     * @param digest of the prompt and the model that computes it
     */
    record Load(String requestId, Found id, int firstToken, int endToken, int[] blocks, String digest) {}

    /**
     * Saves a prompt's KV, which is complete when this step's forward pass ends.
     *
     * @param blocks all blocks of the prompt
     */
    record Save(String requestId, Found id, int tokens, int[] blocks, String digest) {}
}
