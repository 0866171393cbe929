package baton.kv.connector;

import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import java.io.IOException;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * A way to exchange KV caches with other instances. An engine makes one {@link SchedulerConnector} for its scheduler and one
 * {@link WorkerConnector} for each rank; the two kinds share nothing but the metadata that the first hands to the second in
 * every step.
 *
 * <p>Connectors are found by {@link KvConnectors}: built-in ones by {@link java.util.ServiceLoader}, a user's own by
 * {@code kv_connector} (class) and {@code kv_connector_module_path} (its package, or its jar). An implementation needs a public
 * constructor without parameters that does no work.
 */
public interface KvConnector {
    /** Values of {@code kv_connector} that mean this connector. */
    Set<String> names();

    /** Its keys of {@code kv_connector_extra_config}, in the order in which they are described; empty if that is not known. */
    default List<Setting> settings() {
        return List.of();
    }

    /**
     * Names in {@code kv_connector_extra_config} that mean something to this connector. It is warned of others, as they may be
     * misspelt or another connector's.
     *
     * @return empty if that is not known, or the connector refuses other names itself
     */
    default Optional<Set<String>> settingNames() {
        return Optional.of(Setting.names(settings())).filter(names -> !names.isEmpty());
    }

    /** The source of the tokens that it loads, for the metrics. */
    default CacheSource source() {
        return CacheSource.EXTERNAL_UNSPECIFIED;
    }

    /**
     * Whether the workers read and write the pool's bytes, so that a pool of a device reaches them through a staging pool in host
     * memory. A connector that says no is given a pool of a device as it is.
     */
    default boolean needsHostMemory(KvTransferConfig config) {
        return true;
    }

    /**
     * Whether it takes blocks of several groups of layers, of which those with a window keep only the blocks that it reaches: vLLM's
     * {@code SupportsHMA}. For a connector that says no, all layers of the pool are one group and keep all positions.
     */
    default boolean takesGroups(KvTransferConfig config) {
        return false;
    }

    /**
     * Refuses settings that cannot work, before the model is loaded, which may take minutes. Asked once for
     * an engine.
     *
     * @param ranks that the engine has
     * @throws baton.kv.ConfigException if the configuration cannot work
     */
    default void check(KvTransferConfig config, int ranks) {}

    /**
     * The side that decides.
     *
     * @throws baton.kv.ConfigException if the configuration cannot work
     */
    SchedulerConnector scheduler(ConnectorContext context);

    /**
     * The side that moves bytes, for one rank. The ranks are asked for in order, stage after stage. They are threads of one process, so
     * their workers may share state.
     *
     * @throws baton.kv.ConfigException if the configuration cannot work
     */
    WorkerConnector worker(ConnectorContext context, Rank rank);

    /**
     * How hand-overs are made ahead of the first request, as a warm-up, so that the costs of first use are paid by then. The instance
     * itself has no part in it.
     *
     * @param config of the instance
     * @return empty if that is not possible, or not needed; the caller closes it
     * @throws IOException if its resources cannot be had
     */
    default Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        return Optional.empty();
    }
}
