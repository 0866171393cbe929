package baton.connectors.mooncakestore;

import baton.kv.KvEvent;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.List;
import java.util.Map;

/** A scheduler side that only loads, or only stores. */
final class RoleScheduler implements SchedulerConnector {
    private final SchedulerConnector scheduler;
    private final boolean loads;
    private final boolean stores;

    RoleScheduler(SchedulerConnector scheduler, boolean loads, boolean stores) {
        this.scheduler = scheduler;
        this.loads = loads;
        this.stores = stores;
    }

    @Override
    public void onNewRequest(KvRequest request) {
        scheduler.onNewRequest(request);
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        return loads ? scheduler.match(request, computedTokens) : new KvMatch.None();
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        scheduler.onAllocated(request, blockTable, computedTokens, externalTokens);
    }

    /** What is not told to be scheduled is not stored. */
    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        return scheduler.buildMetadata(stores ? step : new ScheduledStep(List.of(), step.finished(), step.preempted()));
    }

    @Override
    public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        scheduler.onStepDone(report, metadata);
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        return scheduler.onFinished(request, end, blockTable);
    }

    @Override
    public void onAnswerLost(String requestId) {
        scheduler.onAnswerLost(requestId);
    }

    @Override
    public boolean hasPendingWork() {
        return scheduler.hasPendingWork();
    }

    @Override
    public boolean isStoring() {
        return scheduler.isStoring();
    }

    @Override
    public boolean resetCache() {
        return scheduler.resetCache();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return scheduler.takeMeasurements();
    }

    @Override
    public List<KvEvent> takeEvents() {
        return scheduler.takeEvents();
    }

    @Override
    public void close() {
        scheduler.close();
    }
}
