package baton.connectors.bykey;

import baton.kv.connector.WorkerMetadata;
import java.util.List;

/**
 * Saves that are over, well or badly: their blocks are not read any more. Only the first rank's worker tells.
 *
 * @param ids of the saves
 */
record SavesDone(List<Long> ids) implements WorkerMetadata {
    SavesDone {
        ids = List.copyOf(ids);
    }
}
