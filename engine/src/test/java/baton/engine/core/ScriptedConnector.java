package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvEvent;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
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
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A connector that a test scripts. Its loads are right, unless scripted to fail. The test reports asynchronous loads and sends
 * as done when it likes.
 */
final class ScriptedConnector implements KvConnector {
    /** A load as the worker sees it. */
    record Load(String request, int[] tokens, int from, int[] blockTable, boolean async) {}

    record Loads(List<Load> loads) implements ConnectorMetadata {}

    /** Runs at the beginning of each call, given the method's name, and may throw. */
    Consumer<String> calls = method -> {};
    /** Answers to {@code match(request, computedTokens)}. */
    BiFunction<KvRequest, Integer, KvMatch> match = (request, computed) -> new KvMatch.None();
    /** Which of a load's blocks fail: indices in its block table. */
    BiFunction<Load, Integer, Boolean> fails = (load, index) -> false;
    /** Requests with blocks to keep after their end. */
    Set<String> delayed = new HashSet<>();
    /** Requests with held answers. */
    Set<String> held = new HashSet<>();
    /** Why there is no response for a request. */
    final Map<String, String> answerErrors = new HashMap<>();
    /** The requests that the next report names as sent. */
    final Set<String> nextSent = new HashSet<>();

    final Set<String> nextReceived = new HashSet<>();
    final Set<Integer> nextInvalid = new HashSet<>();
    /** The metadata of the next reports for the scheduler side, and the metadata that it received. */
    Optional<WorkerMetadata> nextMetadata = Optional.empty();

    final List<Map<Rank, WorkerMetadata>> gotMetadata = new ArrayList<>();
    final List<KvEvent> nextEvents = new ArrayList<>();
    final Map<String, HiddenState> nextHidden = new HashMap<>();
    /** Whether it wants hidden states, and those that it was given. */
    boolean wantsHidden;

    final Map<String, HiddenState> saved = new HashMap<>();
    final List<Load> started = new ArrayList<>();
    final List<String> events = new ArrayList<>();
    /** Requests with discarded saves. */
    final Set<String> discarded = new HashSet<>();
    /** Requests reported as having lost their blocks. */
    final Set<String> preempted = new HashSet<>();

    private @Nullable KvCache registered;
    private final Map<String, Load> pendingAsync = new HashMap<>();

    boolean isLoading(String request) {
        return pendingAsync.containsKey(request);
    }

    /** Fills the blocks of a load that is under way, as the transfer would; the next report says that it is over. */
    void complete(String request) {
        Load load = Objects.requireNonNull(pendingAsync.remove(request), request);
        fill(load);
        nextReceived.add(request);
    }

    /** The next report says that a block of a load under way is invalid; the load goes on. */
    void reportInvalid(String request, int index) {
        nextInvalid.add(
                Objects.requireNonNull(pendingAsync.get(request), request).blockTable()[index]);
    }

    private void fill(Load load) {
        KvCache cache = Objects.requireNonNull(registered, "no cache");
        int blockSize = cache.layout().blockSize();
        for (int position = load.from(); position < load.tokens().length; position++) {
            int index = position / blockSize;
            if (fails.apply(load, index)) {
                nextInvalid.add(load.blockTable()[index]);
            } else {
                for (int layer = 0; layer < cache.layout().layers(); layer++) {
                    OracleRunner.write(cache, layer, load.blockTable(), position, load.tokens()[position]);
                }
            }
        }
    }

    @Override
    public Set<String> names() {
        return Set.of("Scripted");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new SchedulerConnector() {
            private List<Load> loads = new ArrayList<>();
            private final Map<String, Boolean> async = new HashMap<>();

            @Override
            public void onNewRequest(KvRequest request) {
                calls.accept("onNewRequest");
                events.add("new " + request.id() + (request.mayLoad() ? "" : ", loads nothing"));
            }

            @Override
            public KvMatch match(KvRequest request, int computedTokens) {
                calls.accept("match");
                events.add("match " + request.id() + " " + computedTokens);
                KvMatch answer = match.apply(request, computedTokens);
                if (answer instanceof KvMatch.Tokens tokens) {
                    async.put(request.id(), tokens.async());
                }
                return answer;
            }

            @Override
            public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
                calls.accept("onAllocated");
                events.add("allocated " + request.id() + " " + externalTokens);
                if (externalTokens > 0) {
                    loads.add(new Load(
                            request.id(),
                            request.tokens(0, computedTokens + externalTokens),
                            computedTokens,
                            blockTable,
                            async.getOrDefault(request.id(), false)));
                }
            }

            @Override
            public ConnectorMetadata buildMetadata(ScheduledStep step) {
                calls.accept("buildMetadata");
                preempted.addAll(step.preempted());
                Loads metadata = new Loads(loads);
                loads = new ArrayList<>();
                return metadata;
            }

            @Override
            public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
                calls.accept("onStepDone");
                assertThat(report.metadata()).isEmpty();
                gotMetadata.add(metadata);
            }

            @Override
            public List<KvEvent> takeEvents() {
                calls.accept("takeEvents");
                List<KvEvent> taken = List.copyOf(nextEvents);
                nextEvents.clear();
                return taken;
            }

            @Override
            public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
                calls.accept("onFinished");
                events.add("finished " + request.id() + " " + end);
                return new Release(
                        delayed.contains(request.id()),
                        Optional.of(JsonFields.parse("", "{\"from\":\"" + request.id() + "\"}")),
                        Optional.ofNullable(answerErrors.get(request.id())),
                        () -> {
                            calls.accept("answerIsHeld");
                            return held.contains(request.id());
                        });
            }

            @Override
            public boolean hasPendingWork() {
                calls.accept("hasPendingWork");
                return false;
            }

            @Override
            public boolean resetCache() {
                calls.accept("resetCache");
                return true;
            }

            @Override
            public List<Measurement> takeMeasurements() {
                calls.accept("takeMeasurements");
                return List.of();
            }

            @Override
            public void onRefused(String requestId, JsonFields kvTransferParams) {
                calls.accept("onRefused");
            }

            @Override
            public void onAnswerLost(String requestId) {
                calls.accept("onAnswerLost");
                events.add("answer lost " + requestId);
            }

            @Override
            public void close() {
                events.add("scheduler closed");
                calls.accept("scheduler close");
            }
        };
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new WorkerConnector() {
            @Override
            public void register(KvCache cache) {
                registered = cache;
            }

            @Override
            public void startLoad(ConnectorMetadata metadata) {
                calls.accept("startLoad");
                for (Load load : ((Loads) metadata).loads()) {
                    started.add(load);
                    if (load.async()) {
                        pendingAsync.put(load.request(), load);
                    } else {
                        fill(load);
                    }
                }
            }

            @Override
            public boolean wantsHidden() {
                return wantsHidden;
            }

            @Override
            public void saveHidden(String requestId, HiddenState state) {
                calls.accept("saveHidden");
                assertThat(saved.put(requestId, state.copy())).isNull();
            }

            @Override
            public WorkerReport report(Set<String> finished) {
                calls.accept("report");
                WorkerReport report = new WorkerReport(
                                Set.copyOf(nextSent), Set.copyOf(nextReceived), Set.copyOf(nextInvalid), List.of())
                        .withHidden(Map.copyOf(nextHidden))
                        .withMetadata(nextMetadata);
                nextMetadata = Optional.empty();
                nextHidden.clear();
                nextSent.clear();
                nextReceived.clear();
                nextInvalid.clear();
                return report;
            }

            @Override
            public void waitForLayerLoad(int layer) {
                calls.accept("waitForLayerLoad");
            }

            @Override
            public void saveLayer(int layer) {
                calls.accept("saveLayer");
            }

            @Override
            public void discardSaves(Set<String> requestIds) {
                calls.accept("discardSaves");
                discarded.addAll(requestIds);
            }

            @Override
            public void waitForSave() {
                calls.accept("waitForSave");
            }

            @Override
            public void close() {
                events.add("worker closed");
                calls.accept("worker close");
            }
        };
    }
}
