package baton.connectors.mooncake;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.messages.PeerAccess;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.SystemExchange;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeAgentSettings;
import baton.transfer.select.TransferAgents;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The decode instance asks the prefill instance to write a prompt's blocks into its memory, and the prefill instance does so as soon as
 * the prompt is computed: vLLM's {@code MooncakeConnector}. Both requests have the same {@code transfer_id} and may be sent at once. A
 * registry tells decode instances where the prefill instance's ranks are.
 */
public final class MooncakeConnector extends BuiltInConnector {
    private static final Logger log = LoggerFactory.getLogger(MooncakeConnector.class);
    private static final String LOOPBACK = "127.0.0.1";

    private final ConnectorRuntime runtime;
    private final Agents agents;
    private final Exchanges exchanges;

    /** Opens a rank's transfer agent. */
    @FunctionalInterface
    interface Agents {
        /** @throws ConfigException if there can be none */
        TransferAgent open(KvTransferConfig config, MooncakeSettings settings);
    }

    /** Opens the messages of one side of an instance. */
    @FunctionalInterface
    public interface Exchanges {
        /** @param access which peers may connect, and be connected to */
        MooncakeExchange open(PeerAccess access);
    }

    /** Makes a connector on this machine. */
    public MooncakeConnector() {
        this(new SystemRuntime());
    }

    /** Makes a connector with another runtime's memory and threads. */
    public MooncakeConnector(ConnectorRuntime runtime) {
        this(
                runtime,
                (config, settings) -> settings.isSealed() ? embedded(runtime, config, settings) : tcp(config, settings),
                access -> new SystemExchange(access, runtime.background()));
    }

    /** Makes a connector with the transfer agents and threads of another runtime, and messages of another kind, as in a simulation. */
    public MooncakeConnector(ConnectorRuntime runtime, Exchanges exchanges) {
        this(
                runtime,
                (config, settings) -> runtime.transferAgent(config.extra(), settings.host(), settings.access()),
                exchanges);
    }

    private MooncakeConnector(ConnectorRuntime runtime, Agents agents, Exchanges exchanges) {
        super(Set.of("MooncakeConnector"), MooncakeSettings.SETTINGS, CacheSource.P2P);
        this.runtime = runtime;
        this.agents = agents;
        this.exchanges = exchanges;
    }

    /** Baton's own, as Mooncake's protocols have no place for a secret. */
    private static TransferAgent embedded(
            ConnectorRuntime runtime, KvTransferConfig config, MooncakeSettings settings) {
        log.info(
                "Instances have a secret: Baton's embedded transfer agent moves blocks, not Mooncake's transport, and peers of Mooncake are refused");
        ObjectNode extra = JsonNodeFactory.instance.objectNode().put(TransferAgents.TRANSPORT, transport(config));
        return runtime.transferAgent(
                JsonFields.of("kv_connector_extra_config", extra), settings.host(), settings.access());
    }

    private static String transport(KvTransferConfig config) {
        return config.extra().string(TransferAgents.TRANSPORT).orElse("auto");
    }

    /** Mooncake's transfer engine, as the settings ask for it. */
    static TransferAgent tcp(KvTransferConfig config, MooncakeSettings settings) {
        config.extra()
                .withDefaults(MooncakeSettings.SETTINGS)
                .string(MooncakeSettings.PROTOCOL)
                .filter(protocol -> !protocol.equals("tcp"))
                .ifPresent(protocol -> log.info(
                        "The Mooncake Transfer Engine is using tcp as its protocol, not {}: transfers over RDMA need Mooncake's library, which is not in use ({}=tcp says the same)",
                        protocol,
                        MooncakeSettings.PROTOCOL));
        try {
            return MooncakeAgent.open(
                    MooncakeAgentSettings.at(settings.host()).withAccess(Optional.of(settings.access())));
        } catch (TransferException e) {
            throw new ConfigException("kv_ip", "no transfer agent: " + e.getMessage(), e);
        }
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice();
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        MooncakeSettings settings = MooncakeSettings.of(config, System.getenv());
        if (config.isProducer() && settings.registry().isEmpty()) {
            ListenAddress.require(
                    "kv_ip",
                    settings.host(),
                    config.extra().field(MooncakeSettings.BOOTSTRAP_PORT),
                    settings.bootstrapPort());
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        MooncakeSettings settings = settings(context);
        return new MooncakeScheduler(context, settings, exchanges.open(settings.access()));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        MooncakeSettings settings = settings(context);
        return new MooncakeWorker(context, settings, runtime, agents, exchanges.open(settings.access()), rank);
    }

    /** A pair of connectors with a registry of their own. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) {
        return Optional.of(new WarmUpPair(
                new MooncakeConnector(),
                side(KvRole.PRODUCER, config),
                side(KvRole.CONSUMER, config),
                "warm-up-%d"::formatted,
                number -> Map.of(MooncakeScheduler.TRANSFER_ID, "warm-up-" + number),
                () -> {}));
    }

    private static KvTransferConfig side(KvRole role, KvTransferConfig config) {
        return KvTransferConfig.builder("MooncakeConnector", role)
                .ip(LOOPBACK)
                .extra(MooncakeSettings.BOOTSTRAP_PORT, 0)
                .extra(MooncakeSettings.PROTOCOL, "tcp")
                .extra(TransferAgents.TRANSPORT, transport(config))
                .build();
    }

    private static MooncakeSettings settings(ConnectorContext context) {
        return MooncakeSettings.of(context.config(), System.getenv());
    }
}
