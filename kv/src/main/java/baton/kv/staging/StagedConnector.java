package baton.kv.staging;

import baton.kv.KvCache;
import baton.kv.KvMemory;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import java.lang.foreign.Arena;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * vLLM's host buffer. The staging pool is a mirror: it has the blocks of the device's pool under the same numbers, so the connector
 * inside, its peers and its stores need not know of the device.
 *
 * Computed: after each layer of a step the blocks that the step wrote are copied to the mirror, and then the connector's saveLayer is
 * called. So for the connector the mirror always equals the pool in all blocks that were computed here.
 *
 * Loaded: the connector writes to the mirror. A load within a step is copied to the device layer by layer, before each layer; a load
 * between steps in one batch, in the step that reports it as over.
 *
 * Blocks are the connector's as long as the engine says, on both sides: the engine hands out no block that a load writes or a peer
 * reads. Several connectors that are composed share one mirror, so that one saves what another has loaded.
 */

/** Runs a connector that needs host memory over the pool of a device, through a pool in host memory of the same size. */
public final class StagedConnector implements KvConnector {
    private static final Logger log = LoggerFactory.getLogger(StagedConnector.class);

    private final KvConnector inner;
    private final StagingMemory memory;

    /** Host memory for staging pools. */
    @FunctionalInterface
    public interface StagingMemory {
        /**
         * @param arena with which the memory ends
         * @throws IllegalStateException if the system refuses
         */
        KvMemory.Host allocate(Arena arena, long bytes);
    }

    private StagedConnector(KvConnector inner, StagingMemory memory) {
        this.inner = inner;
        this.memory = memory;
    }

    /** The connector itself where it can work with that pool, else the connector over staging pools. */
    public static KvConnector where(
            KvConnector connector, KvTransferConfig config, KvCache pool, StagingMemory memory) {
        return switch (pool.memory()) {
            case KvMemory.Host _ -> connector;
            case KvMemory.Device device -> {
                if (!connector.needsHostMemory(config)) {
                    yield connector;
                }
                log.info(
                        "{} needs host memory (kv_buffer_device={}): each pool of {} has a staging pool of {} MiB",
                        config.connector().orElse("The connector"),
                        config.bufferDevice(),
                        device.device(),
                        device.bytes() >> 20);
                yield new StagedConnector(connector, memory);
            }
        };
    }

    @Override
    public Set<String> names() {
        return inner.names();
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new StagedScheduler(inner.scheduler(context), context.layout().blockSize(), context.groups());
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new StagedWorker(inner.worker(context, rank), memory);
    }
}
