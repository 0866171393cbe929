package baton.connectors.offloading;

import baton.connectors.BuiltInConnector;
import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StoreOpener;
import baton.connectors.bykey.StoreScheduler;
import baton.connectors.bykey.StoreSession;
import baton.connectors.bykey.StoreWorker;
import baton.kv.KvTransferConfig;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.store.StoreFormat;
import baton.store.tiered.Backpressure;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Keeps the KV blocks of prompts in host memory when the engine's pool evicts them, and in slower tiers behind it: vLLM's
 * {@code OffloadingConnector}, with the settings of {@code CPUOffloadingSpec} and {@code TieringOffloadingSpec}
 * ({@link OffloadingSettings}).
 */
public final class OffloadingConnector extends BuiltInConnector {
    private final StoreOpener opener;

    /** Shared by all sides of the engine. Guarded by the monitor. */
    private Optional<StoreSession> session = Optional.empty();

    public OffloadingConnector() {
        this(StoreOpener.SYSTEM);
    }

    /** Makes a connector with other stores, as in a simulation. */
    public OffloadingConnector(StoreOpener opener) {
        super(Set.of("OffloadingConnector"), OffloadingSettings.SETTINGS, CacheSource.EXTERNAL_UNSPECIFIED);
        this.opener = opener;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        OffloadingSettings.of(config.extra());
    }

    /** Values that instances of other parallel sizes exchange have all layers: stages have other shares of groups. */
    @Override
    public boolean takesGroups(KvTransferConfig config) {
        return !OffloadingSettings.of(config.extra()).canonicalLayout();
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new StoreScheduler(context, session(context));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new StoreWorker(session(context), rank);
    }

    private synchronized StoreSession session(ConnectorContext context) {
        if (session.isEmpty()) {
            session = Optional.of(open(context));
        }
        return session.get();
    }

    private StoreSession open(ConnectorContext context) {
        OffloadingSettings settings = OffloadingSettings.of(context.config().extra());
        StoreFormat format = settings.format(context);
        String field = context.config().extra().field(OffloadingSettings.BYTES);
        StoreSession opened = StoreSession.open(
                context,
                opener.memory(field, format, settings.memory(), context.ticker()),
                settings.policy(),
                settings.policy().acquire(),
                tiers -> settings.tiers()
                        .forEach(tier -> tiers.add(new Tier(
                                opener.open(StoreKey.seal(settings.key(), format, tier::store), context.ticker()),
                                tier.backpressure().map(pressure -> new Backpressure(pressure, context.ticker())),
                                tier.events()))));
        opened.measured(configInfo(context, opened.store()));
        return opened;
    }

    /**
     * vLLM's {@code vllm:kv_offload_config_info}: 1, with the configuration as labels, for each tier if there are several. The tokens are
     * those of prompts without sliding windows.
     */
    private static List<Measurement> configInfo(ConnectorContext context, TieredStore store) {
        StoreFormat format = store.format();
        long chunks = store.memory().slots();
        Map<String, String> memory = Map.of(
                "cpu_num_chunks", String.valueOf(chunks),
                "cpu_blocks_per_chunk", String.valueOf(format.blocksPerChunk()),
                "cpu_kv_cache_size_bytes", String.valueOf(chunks * format.valueBytes()),
                "cpu_kv_cache_size_tokens",
                        String.valueOf(chunks
                                * format.blocksPerChunk()
                                * format.layout().blockSize()
                                / context.groups().size()));
        List<Measurement> all = new ArrayList<>();
        for (int tier = 0; tier <= store.tiers().size(); tier++) {
            Map<String, String> labels = new HashMap<>(memory);
            if (tier > 0) {
                labels.replaceAll((_, _) -> "");
            }
            if (!store.tiers().isEmpty()) {
                labels.put("tier", store.tierName(tier));
            }
            all.add(new Measurement("vllm:kv_offload_config_info", Measurement.Kind.GAUGE, 1, labels));
        }
        return all;
    }
}
