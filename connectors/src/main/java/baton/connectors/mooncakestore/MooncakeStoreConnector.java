package baton.connectors.mooncakestore;

import baton.connectors.BuiltInConnector;
import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StoreOpener;
import baton.connectors.bykey.StoreScheduler;
import baton.connectors.bykey.StoreSession;
import baton.connectors.bykey.StoreWorker;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.mooncake.MooncakeConfig;
import baton.store.mooncake.MooncakeNames;
import baton.store.tiered.Tier;
import java.io.Closeable;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Shares the KV blocks of prompts with other instances through a Mooncake store: vLLM's {@code MooncakeStoreConnector}, with its settings
 * ({@link MooncakeStoreSettings}). In front of the store is memory of the instance.
 */
public final class MooncakeStoreConnector extends BuiltInConnector {
    private final StoreOpener opener;
    private final Map<String, String> environment;

    /** Shared by all sides of the engine. Guarded by the monitor. */
    private Optional<StoreSession> session = Optional.empty();

    public MooncakeStoreConnector() {
        this(StoreOpener.SYSTEM, System.getenv());
    }

    /** Makes a connector with other stores, as in a simulation, and another environment. */
    public MooncakeStoreConnector(StoreOpener opener, Map<String, String> environment) {
        super(Set.of("MooncakeStoreConnector"), MooncakeStoreSettings.SETTINGS, CacheSource.EXTERNAL_UNSPECIFIED);
        this.opener = opener;
        this.environment = Map.copyOf(environment);
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        MooncakeStoreSettings.of(config, environment);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        MooncakeStoreSettings settings = MooncakeStoreSettings.of(context.config(), environment);
        if (settings.isCapacityOnly()) {
            return new CapacityOnly.Scheduler(mount(context, settings));
        }
        SchedulerConnector scheduler = new StoreScheduler(context, session(context, settings));
        return settings.loads() && settings.stores()
                ? scheduler
                : new RoleScheduler(scheduler, settings.loads(), settings.stores());
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        MooncakeStoreSettings settings = MooncakeStoreSettings.of(context.config(), environment);
        return settings.isCapacityOnly()
                ? new CapacityOnly.Worker()
                : new StoreWorker(session(context, settings), rank);
    }

    private Closeable mount(ConnectorContext context, MooncakeStoreSettings settings) {
        try {
            return settings.access().mount(context.ticker());
        } catch (IllegalStateException e) {
            throw unusable(e);
        }
    }

    private synchronized StoreSession session(ConnectorContext context, MooncakeStoreSettings settings) {
        if (session.isEmpty()) {
            session = Optional.of(open(context, settings));
        }
        return session.get();
    }

    private StoreSession open(ConnectorContext context, MooncakeStoreSettings settings) {
        boolean shared = settings.storeTensorShares().isPresent();
        MooncakeNames names = names(context, settings);
        StoreFormat format = new StoreFormat(
                context.model(),
                context.modelLayout(),
                1,
                shared ? 0 : context.tensorParallelSize(),
                context.pipelineParallelSize());
        ValueCache memory = opener.memory(
                context.config().extra().field(MooncakeConfig.BUFFER),
                format,
                HostMemorySettings.of(settings.memoryBytes()),
                context.ticker());
        return StoreSession.open(
                context, memory, settings.policy(), settings.policy().acquire(), tiers -> {
                    StoreOpener.Closed store = StoreKey.seal(
                            settings.key(),
                            format,
                            each -> new StoreAccess.Shared(settings.access(), each, names, shared));
                    try {
                        tiers.add(new Tier(opener.open(store, context.ticker()), Optional.empty(), true));
                    } catch (IllegalStateException e) {
                        throw unusable(e);
                    }
                });
    }

    private static ConfigException unusable(IllegalStateException e) {
        return new ConfigException(MooncakeConfig.MASTER, "the store cannot be used: " + e.getMessage(), e);
    }

    private static MooncakeNames names(ConnectorContext context, MooncakeStoreSettings settings) {
        KvLayout layout = context.modelLayout();
        int ranks = context.tensorParallelSize();
        // A sealed value is one object.
        boolean sealed = settings.key().isPresent();
        int stages = sealed ? 1 : context.pipelineParallelSize();
        int shares = sealed ? 1 : Math.min(ranks, layout.kvHeads());
        if (settings.storeTensorShares().isPresent()) {
            JsonFields extra = context.config().extra();
            int wanted = settings.storeTensorShares().getAsInt();
            if (wanted % ranks != 0 || layout.kvHeads() > 1 && layout.kvHeads() % wanted != 0) {
                throw new ConfigException(
                        extra.field(MooncakeStoreSettings.STORE_TP),
                        "is %d, must be a multiple of tensor_parallel_size=%d and divide the model's %d key/value heads"
                                .formatted(wanted, ranks, layout.kvHeads()));
            }
            if (layout.layers() % stages != 0) {
                throw new ConfigException(
                        extra.field(MooncakeStoreSettings.STORE_TP),
                        "is %d, cannot be used with pipeline_parallel_size=%d, which does not divide the model's %d layers"
                                .formatted(wanted, stages, layout.layers()));
            }
            shares = Math.min(wanted, layout.kvHeads());
        }
        return new MooncakeNames(settings.prefix(), context.model().name(), shares, stages);
    }
}
