package baton.engine.core;

import baton.engine.core.Scheduler.Slice;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/** The connector's view of requests: none that warm up, and none once the connector has failed. */
final class ConnectorView {
    private final Optional<SchedulerConnector> connector;
    private final LiveRequests live;
    /** False once the connector has failed. */
    private boolean connected = true;

    ConnectorView(Optional<SchedulerConnector> connector, LiveRequests live) {
        this.connector = connector;
        this.live = live;
    }

    /** The connector, unless it must not see the request. */
    Optional<SchedulerConnector> of(Request request) {
        return request.warmsUp() || !connected ? Optional.empty() : connector;
    }

    /** Stops calling the connector, which has failed. */
    void disconnect() {
        connected = false;
    }

    /**
     * The connector's work for a step.
     *
     * @param finished ids of requests that have ended since the last step and did not warm up
     * @param preempted ids of requests that have lost their blocks
     */
    ConnectorMetadata metadata(List<Slice> slices, Set<String> finished, Set<String> preempted) {
        return connector
                .map(c -> c.buildMetadata(new ScheduledStep(
                        slices.stream()
                                .filter(slice ->
                                        slice.count() > 0 && !slice.request().warmsUp())
                                .map(slice -> new ScheduledRequest(
                                        slice.request(),
                                        slice.request().blocks.toArray(),
                                        slice.start(),
                                        slice.count()))
                                .toList(),
                        finished,
                        preempted.stream()
                                .filter(id ->
                                        live.find(id).filter(Request::warmsUp).isEmpty())
                                .collect(Collectors.toUnmodifiableSet()))))
                .orElseGet(ConnectorMetadata.None::new);
    }
}
