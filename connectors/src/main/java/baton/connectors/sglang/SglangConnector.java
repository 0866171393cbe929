package baton.connectors.sglang;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.messages.sglang.SglangExchange;
import java.util.Set;

/**
 * Prefill and decode instances as SGLang's routers drive them: both get the request at once, with {@code bootstrap_host},
 * {@code bootstrap_port} and {@code bootstrap_room}. The decode instance finds the prefill instance's ranks by the registry at that
 * address and sends them where its pages are; the prefill instance writes the prompt's keys and values there. Each side may be SGLang's, over
 * Mooncake's TCP transport.
 */
public final class SglangConnector extends BuiltInConnector {
    private final ConnectorRuntime runtime;

    public SglangConnector() {
        this(new SystemRuntime());
    }

    SglangConnector(ConnectorRuntime runtime) {
        super(Set.of("SglangConnector"), SglangSettings.SETTINGS, CacheSource.P2P);
        this.runtime = runtime;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        SglangSettings settings = SglangSettings.of(config);
        if (config.isProducer()) {
            ListenAddress.require(
                    "kv_ip",
                    settings.host(),
                    config.extra().field(SglangSettings.BOOTSTRAP_PORT),
                    settings.bootstrapPort());
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        context.requireKeysAndValues("SglangConnector");
        SglangSettings settings = SglangSettings.of(context.config());
        return new SglangScheduler(context, settings, exchange(settings));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        SglangSettings settings = SglangSettings.of(context.config());
        return new SglangWorker(context, settings, runtime, exchange(settings), rank);
    }

    private SglangExchange exchange(SglangSettings settings) {
        return new SglangExchange(settings.access(), runtime.background(), runtime.ticker());
    }
}
