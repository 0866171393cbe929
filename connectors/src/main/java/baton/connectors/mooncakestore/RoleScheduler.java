package baton.connectors.mooncakestore;

import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.ForwardingScheduler;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector;
import java.util.List;

/** A scheduler side that only loads, or only stores. */
final class RoleScheduler extends ForwardingScheduler {
    private final boolean loads;
    private final boolean stores;

    RoleScheduler(SchedulerConnector scheduler, boolean loads, boolean stores) {
        super(scheduler);
        this.loads = loads;
        this.stores = stores;
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        return loads ? super.match(request, computedTokens) : new KvMatch.None();
    }

    /** Tokens that the connector does not see scheduled are not stored. */
    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        return super.buildMetadata(stores ? step : new ScheduledStep(List.of(), step.finished(), step.preempted()));
    }
}
