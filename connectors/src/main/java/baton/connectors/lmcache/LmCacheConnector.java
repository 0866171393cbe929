package baton.connectors.lmcache;

import baton.connectors.bykey.StoreScheduler;
import baton.connectors.bykey.StoreSession;
import baton.connectors.bykey.StoreWorker;
import baton.kv.ChunkHashing;
import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.lmcache.CacheEngineKeys;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Shares KV cache with LMCache: vLLM's {@code LMCacheConnectorV1}, configured as LMCache is ({@link LmCacheSettings}). Chunks are in host memory
 * in Baton's layout; what is at {@code remote_url} has LMCache's keys and bytes.
 */
public final class LmCacheConnector implements KvConnector {
    private static final Duration CASCADE_TIMEOUT = Duration.ofSeconds(30);

    private final LmCacheStores stores;
    private final Map<String, String> environment;

    /** Shared by all sides of the engine. Guarded by the monitor. */
    private Optional<Opened> opened = Optional.empty();

    private record Opened(StoreSession session, CacheEngineKeys names, LmCacheSettings settings) {}

    /** On this machine. */
    public LmCacheConnector() {
        this(new SystemStores(), System.getenv());
    }

    /**
     * With other stores, as in a simulation.
     *
     * @param environment variables that LMCache reads
     */
    public LmCacheConnector(LmCacheStores stores, Map<String, String> environment) {
        this.stores = stores;
        this.environment = Map.copyOf(environment);
    }

    /** On this machine, with other variables than the process's. */
    public static LmCacheConnector withEnvironment(Map<String, String> environment) {
        return new LmCacheConnector(new SystemStores(), environment);
    }

    @Override
    public Set<String> names() {
        return Set.of("LMCacheConnectorV1");
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        LmCacheSettings.of(config, environment);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        Opened shared = open(context);
        LmCacheSettings settings = shared.settings;
        return new StoreScheduler(
                context,
                shared.session,
                new TokenChunkKeys(
                        settings.chunkSize(), settings.hashes().open(environment), shared.names, settings.use()));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new StoreWorker(open(context).session, rank);
    }

    private synchronized Opened open(ConnectorContext context) {
        if (opened.isEmpty()) {
            LmCacheSettings settings = LmCacheSettings.of(context.config(), environment);
            ChunkHashing hashing = settings.hashes().open(environment);
            CacheEngineKeys names = new CacheEngineKeys(
                    settings.modelName(context),
                    context.tensorParallelSize() * context.pipelineParallelSize(),
                    context.modelLayout().dtype(),
                    hashing.isSigned());
            opened = Optional.of(new Opened(session(context, settings, names), names, settings));
        }
        return opened.get();
    }

    private StoreSession session(ConnectorContext context, LmCacheSettings settings, CacheEngineKeys names) {
        StoreFormat format = settings.format(context);
        ValueCache memory;
        try {
            memory = stores.memory(format, settings.memoryBytes(), context.ticker());
        } catch (IllegalArgumentException | IllegalStateException e) {
            throw new ConfigException("max_local_cpu_size", "cannot be used: " + e.getMessage(), e);
        }
        List<BlockStore> others = new ArrayList<>();
        try {
            settings.disk().ifPresent(disk -> others.add(stores.disk(disk, format, context.ticker())));
            settings.remote()
                    .ifPresent(remote -> others.add(
                            stores.remote(remote, format, settings.shares(context, format), names, context.ticker())));
        } catch (RuntimeException e) {
            others.forEach(BlockStore::close);
            memory.close();
            throw e;
        }
        TieredStore store = new TieredStore(
                memory,
                others.stream()
                        .map(other -> new Tier(other, Optional.empty(), false))
                        .toList(),
                new TieredStore.Timeouts(settings.lookupTimeout(), CASCADE_TIMEOUT),
                context.ticker());
        return new StoreSession(context, store, settings.policy());
    }
}
