package baton.kv.connector;

import baton.kv.JsonFields;
import baton.kv.KvEvent;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Passes every call on to another scheduler side; a subclass overrides the methods that it changes. */
public abstract class ForwardingScheduler implements SchedulerConnector {
    private final SchedulerConnector inner;

    protected ForwardingScheduler(SchedulerConnector inner) {
        this.inner = inner;
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        inner.onHandshakeMetadata(metadata);
    }

    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return inner.advertisedKvTransferParams();
    }

    @Override
    public void onNewRequest(KvRequest request) {
        inner.onNewRequest(request);
    }

    @Override
    public boolean isPrefilledElsewhere(KvRequest request) {
        return inner.isPrefilledElsewhere(request);
    }

    @Override
    public void onRefused(String requestId, JsonFields kvTransferParams) {
        inner.onRefused(requestId, kvTransferParams);
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        return inner.match(request, computedTokens);
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        inner.onAllocated(request, blockTable, computedTokens, externalTokens);
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        return inner.buildMetadata(step);
    }

    @Override
    public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        inner.onStepDone(report, metadata);
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        return inner.onFinished(request, end, blockTable);
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        inner.onWrongLoad(request);
    }

    @Override
    public void onAnswerLost(String requestId) {
        inner.onAnswerLost(requestId);
    }

    @Override
    public boolean hasPendingWork() {
        return inner.hasPendingWork();
    }

    @Override
    public boolean isStoring() {
        return inner.isStoring();
    }

    @Override
    public boolean resetCache() {
        return inner.resetCache();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return inner.takeMeasurements();
    }

    @Override
    public List<KvEvent> takeEvents() {
        return inner.takeEvents();
    }

    @Override
    public void close() {
        inner.close();
    }
}
