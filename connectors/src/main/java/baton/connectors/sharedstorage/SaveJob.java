package baton.connectors.sharedstorage;

import baton.kv.Ticker;
import baton.kv.connector.Rank;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.prompt.SharedStorage;
import baton.store.prompt.StorageException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Writes an entry layer by layer, each when the ranks have computed it, and commits it when they have all agreed. */
final class SaveJob extends FileJob {
    private final SharedStorageConnectorMetadata.Save save;
    private final RankPools pools;

    /** The number of each rank's layers that are in its pool. Guarded by the monitor, as is {@link #mayCommit}. */
    private final Map<Rank, Integer> readyLayers = new HashMap<>();

    private final Set<Rank> mayCommit = new HashSet<>();

    /** Owned by the job's running task, of which there is at most one. */
    private Optional<SharedStorage.Writer> writer = Optional.empty();

    private int writtenLayers;
    private volatile boolean stored;

    SaveJob(
            SharedStorageConnectorMetadata.Save save,
            RankPools pools,
            IoTasks tasks,
            IoThreads threads,
            Ticker ticker) {
        super("the save of request " + save.requestId(), tasks, threads, ticker, () -> {});
        this.save = save;
        this.pools = pools;
    }

    SharedStorageConnectorMetadata.Save save() {
        return save;
    }

    /** Whether the entry is in the storage because of this job. */
    boolean isStored() {
        return stored;
    }

    @Override
    void advance() throws StorageException {
        if (writer.isEmpty()) {
            writer = Optional.of(pools.storage().write(save.name(), save.tokens()));
        }
        SharedStorage.Writer open = writer.get();
        if (isNextLayerReady()) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment packed = pools.buffer(arena, save.tokens());
                while (gatherNextLayer(packed)) {
                    open.layer(writtenLayers, packed);
                    writtenLayers++;
                }
            }
        }
        if (isToCommit()) {
            stored = open.commit();
            end();
        }
    }

    @Override
    void release() {
        writer.ifPresent(SharedStorage.Writer::close);
    }

    private synchronized boolean isNextLayerReady() {
        return !isOver() && writtenLayers < pools.layers().size() && isReady(writtenLayers);
    }

    /** Copies the next layer from the pools. Returns false if it is not computed yet, or there is none. */
    private synchronized boolean gatherNextLayer(MemorySegment packed) {
        boolean ready = isNextLayerReady();
        if (ready) {
            pools.gather(save.blocks(), writtenLayers, packed);
        }
        return ready;
    }

    private synchronized boolean isToCommit() {
        return !isOver() && writtenLayers == pools.layers().size() && mayCommit.containsAll(pools.ranks());
    }

    /** True if all ranks that have a part of the layer have computed it. */
    private boolean isReady(int layer) {
        return pools.ranks().stream()
                .filter(rank -> {
                    int inPool = layer - pools.firstLayer(rank);
                    return inPool >= 0 && inPool < pools.layersOf(rank);
                })
                .allMatch(rank -> readyLayers.getOrDefault(rank, 0) > layer - pools.firstLayer(rank));
    }

    synchronized void layerIsReady(Rank rank, int layer) {
        readyLayers.put(rank, layer + 1);
        changed();
    }

    synchronized void mayCommit(Rank rank) {
        if (readyLayers.getOrDefault(rank, 0) < pools.layersOf(rank)) {
            fail("abandoned", "not all layers were computed");
            return;
        }
        mayCommit.add(rank);
        changed();
    }
}
