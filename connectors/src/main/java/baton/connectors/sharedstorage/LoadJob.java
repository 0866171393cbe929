package baton.connectors.sharedstorage;

import baton.kv.connector.ConnectorContext;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.prompt.StorageException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** Reads an entry layer by layer and puts the layers' blocks into the pools. Nothing waits for it; it wakes the engine when it is over. */
final class LoadJob extends FileJob {
    private final SharedStorageConnectorMetadata.Load load;
    private final RankPools pools;
    private final long deadline;

    LoadJob(
            SharedStorageConnectorMetadata.Load load,
            RankPools pools,
            long timeoutNanos,
            IoTasks tasks,
            IoThreads threads,
            ConnectorContext context) {
        super("the load of request " + load.requestId(), tasks, threads, context.ticker(), context.wake());
        this.load = load;
        this.pools = pools;
        this.deadline = startNanos() + timeoutNanos;
    }

    SharedStorageConnectorMetadata.Load load() {
        return load;
    }

    /** Fails if it is over its deadline. */
    void expire() {
        expireAt(deadline);
    }

    @Override
    void advance() throws StorageException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment packed = pools.buffer(arena, load.entry().tokens());
            for (int layer = 0; layer < pools.layers().size(); layer++) {
                pools.storage().read(load.entry(), layer, packed);
                synchronized (this) {
                    if (isOver()) {
                        return;
                    }
                    pools.scatter(load.blocks(), layer, packed, load.firstToken());
                }
            }
            end();
        } catch (StorageException e) {
            switch (e.fault()) {
                case DIGEST, DAMAGED, MISSING -> pools.storage().distrust(load.entry());
                case INCOMPATIBLE, FOREIGN, NO_SPACE, DENIED, IO -> {}
            }
            throw e;
        }
    }
}
