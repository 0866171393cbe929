package baton.engine.core;

import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A scheduler connector that is not called any more once the connector, on either side, has thrown something. It then matches nothing
 * and reports nothing. {@link ConnectorFailures} has the reason. Methods that are called before the first step, and {@link #close}, may throw.
 */
final class GuardedScheduler implements SchedulerConnector {
    private final SchedulerConnector connector;
    private final ConnectorFailures failures;
    private boolean closed;
    /** Whether there were events that subscribers believe in. */
    private boolean told;

    GuardedScheduler(SchedulerConnector connector, ConnectorFailures failures) {
        this.connector = connector;
        this.failures = failures;
    }

    private <T> T call(String method, T otherwise, ConnectorFailures.Call<T> call) {
        return failures.any() ? otherwise : failures.guard(method, otherwise, call);
    }

    private <T> T callThatMayRefuse(String method, T otherwise, ConnectorFailures.Call<T> call) {
        List<InvalidFieldException> refusal = new ArrayList<>();
        T result = call(method, otherwise, () -> {
            try {
                return call.run();
            } catch (InvalidFieldException e) {
                refusal.add(e);
                return otherwise;
            }
        });
        if (!refusal.isEmpty()) {
            throw refusal.getFirst();
        }
        return result;
    }

    private void call(String method, Runnable call) {
        if (!failures.any()) {
            failures.guard(method, call);
        }
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        connector.onHandshakeMetadata(metadata);
    }

    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return connector.advertisedKvTransferParams();
    }

    /** @throws InvalidFieldException if the request has a parameter that the connector refuses */
    @Override
    public void onNewRequest(KvRequest request) {
        callThatMayRefuse("onNewRequest", true, () -> {
            connector.onNewRequest(request);
            return true;
        });
    }

    @Override
    public boolean isPrefilledElsewhere(KvRequest request) {
        return call("isPrefilledElsewhere", false, () -> connector.isPrefilledElsewhere(request));
    }

    @Override
    public void onRefused(String requestId, JsonFields kvTransferParams) {
        call("onRefused", () -> connector.onRefused(requestId, kvTransferParams));
    }

    /** @throws InvalidFieldException if the request has a parameter that the connector refuses */
    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        return callThatMayRefuse("match", new KvMatch.None(), () -> connector.match(request, computedTokens));
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        call("onAllocated", () -> connector.onAllocated(request, blockTable, computedTokens, externalTokens));
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        return call("buildMetadata", new ConnectorMetadata.None(), () -> connector.buildMetadata(step));
    }

    @Override
    public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        call("onStepDone", () -> connector.onStepDone(report, metadata));
    }

    /** A connector that fails here may still be sending from the blocks: they are kept until it is closed. */
    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        Release kept = new Release(!closed, Optional.empty());
        Release release = call("onFinished", kept, () -> connector.onFinished(request, end, blockTable));
        return release.answerIsHeld().equals(Release.ANSWER_AT_ONCE)
                ? release
                : new Release(
                        release.delayed(),
                        release.kvTransferParams(),
                        release.error(),
                        () -> call("answerIsHeld", false, release.answerIsHeld()::getAsBoolean));
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        call("onWrongLoad", () -> connector.onWrongLoad(request));
    }

    @Override
    public void onAnswerLost(String requestId) {
        call("onAnswerLost", () -> connector.onAnswerLost(requestId));
    }

    /** One that has failed needs a step in which it is closed. */
    @Override
    public boolean hasPendingWork() {
        boolean pending = call("hasPendingWork", false, connector::hasPendingWork);
        return failures.any() ? !closed : pending;
    }

    @Override
    public boolean isStoring() {
        return call("isStoring", false, connector::isStoring);
    }

    @Override
    public boolean resetCache() {
        return call("resetCache", closed, connector::resetCache);
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return call("takeMeasurements", List.of(), connector::takeMeasurements);
    }

    @Override
    public List<KvEvent> takeEvents() {
        if (closed) {
            // Its last events are lost and its blocks are gone: subscribers must forget them.
            boolean cleared = told;
            told = false;
            return cleared ? List.of(new KvEvent.AllBlocksCleared()) : List.of();
        }
        List<KvEvent> events = call("takeEvents", List.of(), connector::takeEvents);
        told |= !events.isEmpty();
        return events;
    }

    /** Closes it, once. */
    @Override
    public void close() {
        if (!closed) {
            closed = true;
            connector.close();
        }
    }
}
