package baton.connectors.nixl;

import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import java.util.Optional;
import java.util.Set;

/**
 * {@link NixlConnector} in which blocks that are named are written too: vLLM's {@code NixlPushConnector}, which only writes. The decode
 * instance registers where they go.
 */
public final class NixlPushConnector implements KvConnector {
    private final ConnectorRuntime fabric;

    /** Over this machine's. */
    public NixlPushConnector() {
        this(new SystemRuntime());
    }

    /** Over that fabric. */
    public NixlPushConnector(ConnectorRuntime fabric) {
        this.fabric = fabric;
    }

    @Override
    public Set<String> names() {
        return Set.of("NixlPushConnector");
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(NixlSettings.NAMES);
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        NixlConnector.checkSettings(config);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new NixlScheduler(context, NixlConnector.settings(context), fabric, TransferMode.PUSH);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new NixlWorker(context, NixlConnector.settings(context), fabric, rank);
    }

    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) {
        return NixlWarmUp.of(new NixlPushConnector(), "NixlPushConnector", config);
    }
}
