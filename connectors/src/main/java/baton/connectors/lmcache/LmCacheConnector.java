package baton.connectors.lmcache;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.connectors.bykey.ChunkKeys;
import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StoreOpener;
import baton.connectors.bykey.StoreScheduler;
import baton.connectors.bykey.StoreSession;
import baton.connectors.bykey.StoreWorker;
import baton.connectors.lmcache.pd.PdPool;
import baton.connectors.lmcache.pd.PdReceiver;
import baton.connectors.lmcache.pd.PdSender;
import baton.connectors.lmcache.pd.PdSettings;
import baton.connectors.lmcache.pd.ReceiverKeys;
import baton.connectors.lmcache.pd.SenderKeys;
import baton.kv.ChunkHashing;
import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.lmcache.CacheEngineKeys;
import baton.store.memory.HostMemorySettings;
import baton.store.tiered.Tier;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Shares KV cache with LMCache: vLLM's {@code LMCacheConnectorV1}, configured as LMCache is ({@link LmCacheSettings}). Chunks in host
 * memory have Baton's layout; chunks at {@code remote_url} have LMCache's keys and bytes. With {@code enable_pd} a prefill instance sends
 * its blocks to the decode instance that the keys name.
 */
public final class LmCacheConnector extends BuiltInConnector {
    private final StoreOpener stores;
    private final ConnectorRuntime runtime;
    private final Map<String, String> environment;

    /** Shared by all sides of the engine. Guarded by the monitor. */
    private Optional<Opened> opened = Optional.empty();

    private record Opened(StoreSession session, ChunkKeys keys) {}

    /** Makes a connector on this machine. */
    public LmCacheConnector() {
        this(StoreOpener.SYSTEM, System.getenv());
    }

    /**
     * With other stores, as in a simulation.
     *
     * @param environment variables that LMCache reads
     */
    public LmCacheConnector(StoreOpener stores, Map<String, String> environment) {
        this(stores, new SystemRuntime(), environment);
    }

    /** Makes a connector with another runtime's messages, threads and transfer agents. */
    LmCacheConnector(StoreOpener stores, ConnectorRuntime runtime, Map<String, String> environment) {
        super(Set.of("LMCacheConnectorV1"), LmCacheSettings.SETTINGS, CacheSource.EXTERNAL_UNSPECIFIED);
        this.stores = stores;
        this.runtime = runtime;
        this.environment = Map.copyOf(environment);
    }

    /** Makes a connector on this machine, with other variables than the process's. */
    public static LmCacheConnector withEnvironment(Map<String, String> environment) {
        return new LmCacheConnector(StoreOpener.SYSTEM, environment);
    }

    /** Keys may have a prefix, and unknown ones are refused by {@link #check}. */
    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.empty();
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        LmCacheSettings.of(config, environment).pd().ifPresent(pd -> {
            if (pd.role() == PdSettings.Role.RECEIVER) {
                ListenAddress.require("pd_peer_host", pd.host(), "pd_peer_init_port", pd.port());
            }
        });
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        context.requireKeysAndValues("LMCacheConnectorV1");
        Opened shared = open(context);
        return new StoreScheduler(context, shared.session, shared.keys);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new StoreWorker(open(context).session, rank);
    }

    private synchronized Opened open(ConnectorContext context) {
        if (opened.isEmpty()) {
            LmCacheSettings settings = LmCacheSettings.of(context.config(), environment);
            opened = Optional.of(settings.pd()
                    .map(pd -> openPd(context, settings, pd))
                    .orElseGet(() -> openStores(context, settings)));
        }
        return opened.get();
    }

    private Opened openStores(ConnectorContext context, LmCacheSettings settings) {
        ChunkHashing hashing = settings.hashes().open(environment);
        CacheEngineKeys names = new CacheEngineKeys(
                settings.modelName(context),
                context.tensorParallelSize() * context.pipelineParallelSize(),
                context.modelLayout().dtype(),
                hashing.isSigned());
        return new Opened(
                session(context, settings, names),
                new TokenChunkKeys(settings.chunkSize(), settings.hashes().open(environment), names, settings.use()));
    }

    /** A buffer of single blocks, of which LMCache's chunks are more: its other end is another instance of Baton. */
    private Opened openPd(ConnectorContext context, LmCacheSettings settings, PdSettings pd) {
        StoreFormat format = new StoreFormat(context.model(), context.modelLayout(), 1, 0, 0);
        ValueCache memory =
                stores.memory(PdConfig.BYTES, format, HostMemorySettings.of(pd.bufferBytes()), context.ticker());
        try {
            PdConfig.requireRoom(settings.config(), (long) memory.slots() * format.tokens());
            TransferAgent agent = runtime.transferAgent(context.config().extra(), pd.host(), pd.access());
            try {
                PdPool pool = PdPool.of(memory, agent);
                return switch (pd.role()) {
                    case SENDER -> {
                        PdSender sender = new PdSender(pd, pool, runtime, context.ticker());
                        yield new Opened(pdSession(context, memory, sender, settings), new SenderKeys(pd, sender));
                    }
                    case RECEIVER -> {
                        PdReceiver receiver = new PdReceiver(pd, pool, runtime, context.ticker());
                        yield new Opened(
                                pdSession(context, memory, receiver, settings), new ReceiverKeys(pd, receiver));
                    }
                };
            } catch (TransferException e) {
                agent.close();
                throw new ConfigException(PdConfig.BYTES, "the buffer cannot be registered: " + e.getMessage(), e);
            } catch (RuntimeException e) {
                agent.close();
                throw e;
            }
        } catch (RuntimeException e) {
            memory.close();
            throw e;
        }
    }

    private static StoreSession pdSession(
            ConnectorContext context, ValueCache memory, BlockStore other, LmCacheSettings settings) {
        return StoreSession.open(
                context,
                memory,
                settings.policy(),
                settings.policy().acquire(),
                tiers -> tiers.add(new Tier(other, Optional.empty(), false)));
    }

    private StoreSession session(ConnectorContext context, LmCacheSettings settings, CacheEngineKeys names) {
        StoreFormat format = settings.format(context);
        ValueCache memory = stores.memory(
                "max_local_cpu_size", format, HostMemorySettings.of(settings.memoryBytes()), context.ticker());
        return StoreSession.open(context, memory, settings.policy(), settings.lookupTimeout(), tiers -> {
            Consumer<StoreOpener.Closed> open =
                    store -> tiers.add(new Tier(stores.open(store, context.ticker()), Optional.empty(), false));
            settings.disk()
                    .map(disk -> StoreKey.seal(settings.key(), format, each -> new LocalDisk(disk, each)))
                    .ifPresent(open);
            settings.remote()
                    .map(remote -> new RemoteObjects(remote, format, settings.shares(context, format), names))
                    .ifPresent(open);
        });
    }
}
