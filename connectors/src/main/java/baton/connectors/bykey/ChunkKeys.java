package baton.connectors.bykey;

import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** The keys of a request's chunks in the store, and which requests use it. Called on the scheduler's thread. */
public interface ChunkKeys {
    /**
     * A request has come.
     *
     * @throws baton.kv.InvalidFieldException if its {@code kv_transfer_params} cannot be used
     */
    default void begin(KvRequest request) {}

    /** Keys of the chunks {@code [from, to)} of a request's tokens, all of which it has. Equal keys mean equal keys and values. */
    List<BlockHash> keys(KvRequest request, int from, int to);

    /** Whether chunks of the request may be loaded. */
    default boolean loads(KvRequest request) {
        return true;
    }

    /** Whether chunks of the request are stored. */
    default boolean stores(KvRequest request) {
        return true;
    }

    /** Fewer tokens than this are not worth a load. */
    default int leastLoad() {
        return 1;
    }

    /**
     * The request has ended: nothing more is asked about it.
     *
     * @param end how
     * @return {@code kv_transfer_params} for a request that goes on elsewhere
     */
    default Optional<JsonFields> forget(KvRequest request, RequestEnd end) {
        return Optional.empty();
    }

    /** The request has ended, and all saves of its chunks too. Follows {@link #forget}. */
    default void saved(String requestId) {}

    /** Keys by the engine's block hashes: a chunk's key is the hash of its last block. */
    static ChunkKeys blockHashes(int blocksPerChunk) {
        return (request, from, to) -> {
            List<BlockHash> hashes = request.blockHashes();
            List<BlockHash> keys = new ArrayList<>(to - from);
            for (int chunk = from; chunk < to; chunk++) {
                keys.add(hashes.get((chunk + 1) * blocksPerChunk - 1));
            }
            return keys;
        };
    }
}
