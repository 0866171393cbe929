package baton.connectors.nixl;

import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import java.util.Set;

/**
 * The decode instance reads the prefill instance's blocks by one-sided transfer: vLLM's {@code NixlConnector}, which is its
 * {@code NixlPullConnector}. A reference ({@link Reference}) comes from the prefill instance's answer with the decode request;
 * what it leads to is checked against seals ({@link Seals}) after it was copied.
 */
public final class NixlConnector implements KvConnector {
    private final Fabric fabric;

    /** Over this machine's. */
    public NixlConnector() {
        this(new SystemFabric());
    }

    /** Over that fabric. */
    public NixlConnector(Fabric fabric) {
        this.fabric = fabric;
    }

    @Override
    public Set<String> names() {
        return Set.of("NixlConnector", "NixlPullConnector");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new NixlScheduler(context, settings(context), fabric, TransferMode.PULL);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new NixlWorker(context, settings(context), fabric, rank, TransferMode.PULL);
    }

    static NixlSettings settings(ConnectorContext context) {
        return NixlSettings.of(context.config().extra(), System.getenv());
    }
}
