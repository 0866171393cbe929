package baton.connectors.bykey;

import baton.kv.BlockHash;
import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Set;

/**
 * The work of a step.
 *
 * @param loads to start
 * @param saves to start when the step has been computed
 * @param flush requests that lose their blocks in this step: their saves are over before it begins
 * @param released requests that have ended, all their saves too
 */
record StoreConnectorMetadata(List<Load> loads, List<Save> saves, Set<String> flush, Set<String> released)
        implements ConnectorMetadata {
    static final StoreConnectorMetadata NOTHING = new StoreConnectorMetadata(List.of(), List.of(), Set.of(), Set.of());

    StoreConnectorMetadata {
        loads = List.copyOf(loads);
        saves = List.copyOf(saves);
    }

    /**
     * A load of chunks, which are pinned.
     *
     * @param keys of the chunks
     * @param places of the blocks in the chunks: a chunk's index times the blocks of a chunk, and the block's index in the chunk
     * @param blocks of the pool that are filled
     * @param withinStep whether this step's forward pass reads them
     */
    record Load(String requestId, List<BlockHash> keys, int[] places, int[] blocks, boolean withinStep) {}

    /**
     * A save of whole chunks.
     *
     * @param id of the save, unique within the connector
     * @param blocks of the pool: for each key those of its chunk
     */
    record Save(long id, String requestId, List<BlockHash> keys, int[] blocks) {}
}
