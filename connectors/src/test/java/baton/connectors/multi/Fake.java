package baton.connectors.multi;

import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvEvent;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** A child that a test scripts, and that records its calls. */
final class Fake implements KvConnector {
    record Step(int number) implements ConnectorMetadata {}

    record Told(String by) implements WorkerMetadata, HandshakeMetadata {}

    final String name;
    final List<String> calls = new ArrayList<>();
    final List<KvTransferConfig> configs = new ArrayList<>();
    /** The exceptions by the call that throws them. */
    final Map<String, RuntimeException> thrown = new HashMap<>();

    KvMatch match = new KvMatch.None();
    SchedulerConnector.Release release = SchedulerConnector.Release.NOW;
    Optional<JsonFields> advertised = Optional.empty();
    boolean wantsHidden;
    boolean pending;
    boolean resets = true;
    List<KvEvent> events = List.of();
    List<Measurement> measured = List.of();
    /** Each rank's next report. */
    final Map<Rank, WorkerReport> reports = new HashMap<>();
    /** The reports that the scheduler side got. */
    final List<WorkerReport> got = new ArrayList<>();

    final List<Map<Rank, WorkerMetadata>> gotMetadata = new ArrayList<>();
    final Map<Rank, HandshakeMetadata> handshakes = new HashMap<>();
    final Set<String> scheduled = new HashSet<>();
    private int steps;

    Fake(String name) {
        this.name = name;
    }

    private void call(String method, Object... arguments) {
        StringBuilder line = new StringBuilder(method);
        for (Object argument : arguments) {
            line.append(' ').append(argument);
        }
        calls.add(line.toString());
        RuntimeException failure = thrown.get(method);
        if (failure != null) {
            throw failure;
        }
    }

    List<String> takeCalls() {
        List<String> taken = List.copyOf(calls);
        calls.clear();
        return taken;
    }

    /** The next report of the first rank. */
    void reports(WorkerReport report) {
        reports.put(Rank.FIRST, report);
    }

    static InvalidFieldException refusal() {
        return new InvalidFieldException("kv_transfer_params.x", "is bad");
    }

    @Override
    public Set<String> names() {
        return Set.of(name);
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(Set.of("known"));
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        configs.add(config);
        config.extra().integerAtLeast("known", 1);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        call("scheduler");
        configs.add(context.config());
        return new SchedulerConnector() {
            @Override
            public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
                handshakes.putAll(metadata);
            }

            @Override
            public Optional<JsonFields> advertisedKvTransferParams() {
                return advertised;
            }

            @Override
            public void onNewRequest(KvRequest request) {
                call("onNewRequest", request.id());
            }

            @Override
            public void onRefused(String requestId, JsonFields kvTransferParams) {
                call("onRefused", requestId);
            }

            @Override
            public void onAnswerLost(String requestId) {
                call("onAnswerLost", requestId);
            }

            @Override
            public KvMatch match(KvRequest request, int computedTokens) {
                call("match", request.id(), computedTokens);
                return match;
            }

            @Override
            public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
                call("onAllocated", request.id(), blockTable.length, computedTokens, externalTokens);
            }

            @Override
            public ConnectorMetadata buildMetadata(ScheduledStep step) {
                call("buildMetadata");
                scheduled.clear();
                step.requests()
                        .forEach(each -> scheduled.add(
                                each.request().id() + " " + each.computedTokens() + "+" + each.scheduledTokens()));
                return new Step(++steps);
            }

            @Override
            public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
                call("onStepDone");
                got.add(report);
                gotMetadata.add(metadata);
            }

            @Override
            public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
                call("onFinished", request.id(), end);
                return release;
            }

            @Override
            public boolean hasPendingWork() {
                return pending;
            }

            @Override
            public boolean resetCache() {
                call("resetCache");
                return resets;
            }

            @Override
            public List<Measurement> takeMeasurements() {
                return measured;
            }

            @Override
            public List<KvEvent> takeEvents() {
                return events;
            }

            @Override
            public void close() {
                call("scheduler close");
            }
        };
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        call("worker");
        return new WorkerConnector() {
            private Optional<ConnectorMetadata> got = Optional.empty();

            @Override
            public void register(KvCache cache) {
                call("register");
            }

            @Override
            public Optional<HandshakeMetadata> handshakeMetadata() {
                return Optional.of(new Told(name));
            }

            @Override
            public boolean wantsHidden() {
                return wantsHidden;
            }

            @Override
            public void startLoad(ConnectorMetadata metadata) {
                got = Optional.of(metadata);
                call("startLoad", metadata instanceof Step);
            }

            @Override
            public void waitForLayerLoad(int layer) {
                call("waitForLayerLoad", layer);
            }

            @Override
            public void saveLayer(int layer) {
                call("saveLayer", layer);
            }

            @Override
            public void saveHidden(String requestId, HiddenState state) {
                call("saveHidden", requestId);
            }

            @Override
            public void waitForSave() {
                call("waitForSave");
            }

            @Override
            public WorkerReport report(Set<String> finished) {
                if (got.isEmpty()) {
                    throw new AssertionError("a report without a step");
                }
                call("report");
                return Optional.ofNullable(reports.remove(rank)).orElse(WorkerReport.NOTHING);
            }

            @Override
            public void close() {
                call("close");
            }
        };
    }
}
