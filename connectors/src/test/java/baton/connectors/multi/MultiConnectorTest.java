package baton.connectors.multi;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvEvent;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeKvRequest;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Each rule of compositions, with children that do as the tests say. */
class MultiConnectorTest {
    private static final KvLayout LAYOUT = new KvLayout(2, 1, 4, 4, DType.F32);
    private static final FakeKvRequest R = new FakeKvRequest("r", FakeKvRequest.counting(1, 10), 4);
    private static final int[] TABLE = {5, 6, 7};

    private final Fake first = new Fake("First");
    private final Fake second = new Fake("Second");

    /** Both sides of a composition of the two, with as many ranks as it is made with. */
    private final class Engine {
        private final SchedulerConnector scheduler;
        private final Map<Rank, WorkerConnector> workers = new LinkedHashMap<>();
        private WorkerReport merged = WorkerReport.NOTHING;
        private final List<WorkerReport> reports = new ArrayList<>();

        Engine(int ranks) {
            MultiConnector multi = multi();
            ConnectorContext context = new ConnectorContext(
                    config(List.of(child("First"), child("Second"))).build(),
                    new ModelFingerprint("fake", "00"),
                    LAYOUT,
                    LAYOUT,
                    ranks,
                    1,
                    Ticker.system());
            scheduler = multi.scheduler(context);
            for (int i = 0; i < ranks; i++) {
                Rank rank = new Rank(0, i);
                WorkerConnector worker = multi.worker(context, rank);
                worker.register(new KvCache(
                        MemorySegment.ofArray(new long[(int) (8 * LAYOUT.blockBytes() / Long.BYTES)]),
                        LAYOUT,
                        8,
                        List.of("a", "b")));
                workers.put(rank, worker);
            }
            scheduler.onHandshakeMetadata(
                    Map.of(Rank.FIRST, worker().handshakeMetadata().orElseThrow()));
            first.calls.clear();
            second.calls.clear();
        }

        /** The first rank's. */
        WorkerConnector worker() {
            return Objects.requireNonNull(workers.get(Rank.FIRST));
        }

        /** A step as the engine does it, without a forward pass unless something is scheduled. */
        void step(ScheduledRequest... scheduled) {
            ConnectorMetadata metadata =
                    scheduler.buildMetadata(new ScheduledStep(List.of(scheduled), Set.of(), Set.of()));
            workers.values().forEach(worker -> worker.startLoad(metadata));
            if (scheduled.length > 0) {
                for (int layer = 0; layer < 2; layer++) {
                    for (WorkerConnector worker : workers.values()) {
                        worker.waitForLayerLoad(layer);
                        worker.saveLayer(layer);
                    }
                }
                workers.values().forEach(WorkerConnector::waitForSave);
            }
            reports.clear();
            Map<Rank, WorkerMetadata> told = new LinkedHashMap<>();
            workers.forEach((rank, worker) -> {
                WorkerReport report = worker.report(Set.of());
                reports.add(report);
                report.metadata().ifPresent(each -> told.put(rank, each));
            });
            merged = reports.getFirst();
            scheduler.onStepDone(merged.withMetadata(Optional.empty()), told);
        }

        Release finish() {
            return scheduler.onFinished(R, RequestEnd.LENGTH, TABLE);
        }
    }

    private MultiConnector multi() {
        return new MultiConnector(config -> config.connector()
                .map(name -> name.equals("First") ? first : name.equals("Second") ? second : multi()));
    }

    private static Map<String, Object> child(String name) {
        return Map.of("kv_connector", name);
    }

    private static KvTransferConfig.Builder config(Object connectors) {
        return KvTransferConfig.builder("MultiConnector", KvRole.BOTH)
                .engineId("engine")
                .extra("connectors", connectors);
    }

    private static Release answer(boolean delayed, String json) {
        return new Release(delayed, Optional.of(JsonFields.parse("kv_transfer_params", json)));
    }

    private static WorkerReport sent(String request) {
        return new WorkerReport(Set.of(request), Set.of(), Set.of(), List.of());
    }

    @Test
    void theFirstChildWithTokensLoadsAndAllGetTheBlocks() {
        Engine engine = new Engine(1);
        second.match = new KvMatch.Tokens(8, true);
        for (int i = 0; i < 3; i++) {
            assertThat(engine.scheduler.match(R, 0)).isEqualTo(second.match);
        }
        first.match = new KvMatch.Tokens(4, true);
        assertThat(engine.scheduler.match(R, 4)).isEqualTo(first.match);
        first.calls.clear();
        second.calls.clear();
        engine.scheduler.onAllocated(R, TABLE, 4, 4);
        assertThat(first.takeCalls()).containsExactly("onAllocated r 3 4 4");
        assertThat(second.takeCalls()).containsExactly("onAllocated r 3 4 0");
        engine.scheduler.onAllocated(R, TABLE, 8, 0);
        assertThat(first.takeCalls()).containsExactly("onAllocated r 3 8 0");
        assertThat(second.takeCalls()).containsExactly("onAllocated r 3 8 0");
    }

    @Test
    void aChildThatDoesNotKnowYetHoldsTheRequestUnlessAnEarlierOneHasTokens() {
        Engine engine = new Engine(1);
        first.match = new KvMatch.Pending();
        second.match = new KvMatch.Tokens(8, true);
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(new KvMatch.Pending());
        assertThat(second.calls).isEmpty();
        first.match = new KvMatch.Tokens(4, true);
        second.match = new KvMatch.Pending();
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(first.match);
        first.match = new KvMatch.None();
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(new KvMatch.Pending());
        second.match = new KvMatch.None();
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(new KvMatch.None());
    }

    @Test
    void afterAPreemptionAnotherChildMayLoad() {
        Engine engine = new Engine(1);
        first.match = new KvMatch.Tokens(8, true);
        engine.scheduler.match(R, 0);
        engine.scheduler.onAllocated(R, TABLE, 0, 8);
        engine.step();
        first.reports(new WorkerReport(Set.of(), Set.of("r"), Set.of(), List.of()));
        engine.step();
        assertThat(engine.merged.received()).containsExactly("r");
        first.match = new KvMatch.None();
        second.match = new KvMatch.Tokens(4, true);
        engine.scheduler.match(R, 0);
        second.calls.clear();
        engine.scheduler.onAllocated(R, TABLE, 0, 4);
        assertThat(second.takeCalls()).containsExactly("onAllocated r 3 0 4");
        engine.step();
        second.reports(new WorkerReport(Set.of(), Set.of("r"), Set.of(), List.of()));
        engine.step();
        assertThat(engine.merged.received()).containsExactly("r");
    }

    /** It is over with a step of its own, so that failed blocks are known before another child saves any of them. */
    @Test
    void aLoadWithinAStepIsOneBetweenStepsForTheEngine() {
        Engine engine = new Engine(1);
        second.match = new KvMatch.Tokens(10, false);
        // The prompt's last token is computed.
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(new KvMatch.Tokens(9, true));
        engine.scheduler.onAllocated(R, TABLE, 0, 9);
        assertThat(engine.scheduler.hasPendingWork()).isTrue();
        second.calls.clear();
        second.reports(new WorkerReport(Set.of(), Set.of(), Set.of(6), List.of()));
        engine.step();
        assertThat(first.scheduled).isEmpty();
        assertThat(second.scheduled).containsExactly("r 9+0");
        assertThat(second.takeCalls())
                .containsExactly(
                        "buildMetadata",
                        "startLoad true",
                        "waitForLayerLoad 0",
                        "waitForLayerLoad 1",
                        "report",
                        "onStepDone");
        assertThat(engine.merged.received()).containsExactly("r");
        assertThat(engine.merged.invalidBlocks()).containsExactly(6);
        assertThat(engine.scheduler.hasPendingWork()).isFalse();
    }

    @Test
    void aRequestThatEndsAheadOfItsLoadWithinAStepIsNotLoaded() {
        Engine engine = new Engine(1);
        second.match = new KvMatch.Tokens(8, false);
        engine.scheduler.match(R, 0);
        engine.scheduler.onAllocated(R, TABLE, 0, 8);
        engine.scheduler.onFinished(R, RequestEnd.ABORTED, TABLE);
        engine.step();
        assertThat(second.scheduled).isEmpty();
        assertThat(engine.merged.received()).containsExactly("r");
    }

    @Test
    void onlyTheLoadingChildCanReceiveAndGiveAHiddenState() {
        Engine engine = new Engine(1);
        first.match = new KvMatch.Tokens(9, true);
        engine.scheduler.match(R, 0);
        engine.scheduler.onAllocated(R, TABLE, 0, 9);
        HiddenState right = new HiddenState(DType.F32, MemorySegment.ofArray(new float[] {1}));
        HiddenState wrong = new HiddenState(DType.F32, MemorySegment.ofArray(new float[] {2}));
        second.reports(new WorkerReport(Set.of(), Set.of("r"), Set.of(), List.of()).withHidden(Map.of("r", wrong)));
        engine.step();
        assertThat(engine.merged.received()).isEmpty();
        assertThat(engine.merged.hidden()).isEmpty();
        assertThat(engine.merged.measurements()).contains(Measurement.count("baton:kv_unknown_reports", 1));
        first.reports(new WorkerReport(Set.of(), Set.of("r"), Set.of(5), List.of()).withHidden(Map.of("r", right)));
        second.reports(new WorkerReport(Set.of(), Set.of(), Set.of(1), List.of()));
        engine.step();
        assertThat(engine.merged.received()).containsExactly("r");
        assertThat(engine.merged.hidden()).containsExactly(Map.entry("r", right));
        assertThat(engine.merged.invalidBlocks()).containsExactlyInAnyOrder(5, 1);
    }

    @Test
    void blocksAreReleasedWhenAllChildrenHaveSentThemOnAllRanks() {
        Engine engine = new Engine(2);
        first.release = answer(true, "{\"a\": 1, \"both\": true}");
        second.release = answer(true, "{\"b\": [2], \"both\": true}");
        Release release = engine.finish();
        assertThat(release.delayed()).isTrue();
        assertThat(release.error()).isEmpty();
        assertThat(release.kvTransferParams()).contains(JsonFields.parse("", "{\"a\": 1, \"both\": true, \"b\": [2]}"));
        second.reports.put(new Rank(0, 1), sent("r"));
        engine.step();
        second.reports(sent("r"));
        first.reports(sent("r"));
        engine.step();
        engine.step();
        assertThat(engine.reports)
                .allSatisfy(report -> assertThat(report.sent()).isEmpty());
        first.reports.put(new Rank(0, 1), sent("r"));
        engine.step();
        assertThat(engine.scheduler.hasPendingWork()).isTrue();
        engine.step();
        assertThat(engine.reports)
                .allSatisfy(report -> assertThat(report.sent()).containsExactly("r"));
        engine.step();
        assertThat(engine.reports)
                .allSatisfy(report -> assertThat(report.sent()).isEmpty());
        assertThat(engine.scheduler.hasPendingWork()).isFalse();
        assertThat(first.got.getLast().sent()).isEmpty();
        assertThat(first.got.get(3).sent()).containsExactly("r");
    }

    @Test
    void aReportAboutBlocksThatAChildDoesNotHoldIsCounted() {
        Engine engine = new Engine(1);
        first.release = answer(true, "{}");
        assertThat(engine.finish().delayed()).isTrue();
        second.reports(sent("r"));
        engine.step();
        engine.step();
        assertThat(engine.merged.sent()).isEmpty();
        assertThat(engine.scheduler.takeMeasurements()).contains(Measurement.count("baton:kv_unknown_reports", 1));
    }

    @Test
    void childrenThatAnswerTheSameFieldDifferentlyFailTheRequestAndNothingElse() {
        Engine engine = new Engine(1);
        first.release = answer(true, "{\"remote_host\": \"a\"}");
        second.release = answer(false, "{\"remote_host\": \"b\"}");
        Release release = engine.finish();
        assertThat(release)
                .isEqualTo(new Release(
                        true,
                        Optional.empty(),
                        Optional.of("kv_transfer_params: First and Second both set 'remote_host', to different values:"
                                + " \"a\" and \"b\""),
                        Release.ANSWER_AT_ONCE));
        first.reports(sent("r"));
        engine.step();
        engine.step();
        assertThat(engine.merged.sent()).containsExactly("r");
    }

    @Test
    void anAnswerIsHeldWhileAChildHoldsItUnlessItHasParameters() {
        Engine engine = new Engine(1);
        AtomicBoolean held = new AtomicBoolean(true);
        second.release = new Release(false, Optional.empty(), Optional.empty(), held::get);
        Release release = engine.finish();
        assertThat(release.answerIsHeld().getAsBoolean()).isTrue();
        held.set(false);
        assertThat(release.answerIsHeld().getAsBoolean()).isFalse();

        held.set(true);
        first.release = answer(false, "{\"remote_host\": \"a\"}");
        assertThat(engine.finish().answerIsHeld()).isEqualTo(Release.ANSWER_AT_ONCE);
    }

    @Test
    void advertisedParametersAreMergedAndAClashIsRefusedAtTheStart() {
        Engine engine = new Engine(1);
        assertThat(engine.scheduler.advertisedKvTransferParams()).isEmpty();
        first.advertised = Optional.of(JsonFields.parse("", "{\"a\": 1}"));
        second.advertised = Optional.of(JsonFields.parse("", "{\"b\": 1}"));
        assertThat(engine.scheduler.advertisedKvTransferParams())
                .contains(JsonFields.parse("", "{\"a\": 1, \"b\": 1}"));
        second.advertised = Optional.of(JsonFields.parse("", "{\"a\": 2}"));
        assertThatThrownBy(() -> engine.scheduler.advertisedKvTransferParams())
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("kv_connector_extra_config.connectors: kv_transfer_params: First and Second"
                        + " both set 'a', to different values: 1 and 2");
    }

    @Test
    void eachChildHasItsOwnMetadataReportsAndHandshakes() {
        Engine engine = new Engine(2);
        assertThat(first.handshakes).containsExactly(Map.entry(Rank.FIRST, new Fake.Told("First")));
        assertThat(second.handshakes).containsExactly(Map.entry(Rank.FIRST, new Fake.Told("Second")));
        Rank other = new Rank(0, 1);
        first.reports.put(
                other,
                new WorkerReport(Set.of(), Set.of(), Set.of(3), List.of(), true)
                        .withMetadata(Optional.of(new Fake.Told("first's worker"))));
        engine.step(new ScheduledRequest(R, TABLE, 0, 10));
        assertThat(first.got).hasSize(1);
        assertThat(first.got.getFirst().invalidBlocks()).containsExactly(3);
        assertThat(first.got.getFirst().busy()).isTrue();
        assertThat(first.gotMetadata).containsExactly(Map.of(other, new Fake.Told("first's worker")));
        assertThat(second.got).containsExactly(WorkerReport.NOTHING);
        assertThat(second.gotMetadata).containsExactly(Map.of());
        assertThat(engine.reports.getLast().busy()).isTrue();
        assertThat(engine.reports.getFirst().busy()).isFalse();
        List<String> calls = first.takeCalls();
        assertThat(calls).filteredOn(call -> call.equals("startLoad true")).hasSize(2);
        assertThat(calls).contains("waitForLayerLoad 0", "saveLayer 1", "waitForSave");
        assertThat(first.takeCalls()).isEmpty();
        assertThat(second.takeCalls()).isEqualTo(calls);
    }

    @Test
    void measurementsSayWhichConnectorTheyAreOfAndEventsAreOfAll() {
        Engine engine = new Engine(1);
        first.measured = List.of(Measurement.count("baton:kv_load_failures", 1, "cause", "digest"));
        second.measured = first.measured;
        first.reports(new WorkerReport(Set.of(), Set.of(), Set.of(), List.of(Measurement.count("loads", 1))));
        engine.step();
        assertThat(engine.merged.measurements()).containsExactly(Measurement.count("loads", 1, "connector", "First"));
        assertThat(engine.scheduler.takeMeasurements())
                .extracting(Measurement::labels)
                .containsExactly(
                        Map.of("cause", "digest", "connector", "First"),
                        Map.of("cause", "digest", "connector", "Second"));
        assertThat(MultiWorker.labelled(Measurement.count("loads", 1, "connector", "First"), "MultiConnector"))
                .isEqualTo(Measurement.count("loads", 1, "connector", "MultiConnector/First"));
        first.events = List.of(new KvEvent.AllBlocksCleared());
        second.events = List.of(new KvEvent.AllBlocksCleared(), new KvEvent.AllBlocksCleared());
        assertThat(engine.scheduler.takeEvents()).hasSize(3);
    }

    @Test
    void allChildrenAreNotifiedAndAnyOfThemCounts() {
        second.wantsHidden = true;
        Engine engine = new Engine(1);
        WorkerConnector worker = engine.worker();
        assertThat(worker.wantsHidden()).isTrue();
        worker.saveHidden("r", new HiddenState(DType.F32, MemorySegment.ofArray(new float[1])));
        assertThat(first.takeCalls()).isEmpty();
        assertThat(second.takeCalls()).containsExactly("saveHidden r");
        assertThat(engine.scheduler.hasPendingWork()).isFalse();
        second.pending = true;
        assertThat(engine.scheduler.hasPendingWork()).isTrue();
        first.resets = false;
        assertThat(engine.scheduler.resetCache()).isFalse();
        engine.scheduler.onRefused("x", JsonFields.empty(""));
        assertThat(second.takeCalls()).containsExactly("resetCache", "onRefused x");
        first.resets = true;
        assertThat(engine.scheduler.resetCache()).isTrue();
    }

    @Test
    void aChildThatRefusesARequestRefusesItForAll() {
        Engine engine = new Engine(1);
        first.thrown.put("onNewRequest", Fake.refusal());
        assertThatThrownBy(() -> engine.scheduler.onNewRequest(R)).isInstanceOf(InvalidFieldException.class);
        assertThat(second.takeCalls()).containsExactly("onNewRequest r");
        second.thrown.put("match", Fake.refusal());
        assertThatThrownBy(() -> engine.scheduler.match(R, 0)).isInstanceOf(InvalidFieldException.class);
        engine.scheduler.onFinished(R, RequestEnd.ERROR, new int[0]);
        assertThat(first.takeCalls()).endsWith("onFinished r ERROR");
        assertThat(second.takeCalls()).endsWith("onFinished r ERROR");
        assertThat(engine.scheduler.hasPendingWork()).isFalse();
    }

    @Test
    void childrenThatKeepBlocksAreNotifiedOfALostAnswer() {
        Engine engine = new Engine(1);
        first.release = answer(true, "{}");
        assertThat(engine.scheduler.onFinished(R, RequestEnd.LENGTH, TABLE).delayed())
                .isTrue();
        first.takeCalls();
        second.takeCalls();
        engine.scheduler.onAnswerLost("r");
        engine.scheduler.onAnswerLost("unknown");
        assertThat(first.takeCalls()).containsExactly("onAnswerLost r");
        assertThat(second.takeCalls()).isEmpty();
    }

    /** In whatever call it throws, it is closed on all ranks at the latest in the next step, and its blocks are released after that. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "onNewRequest",
                "buildMetadata",
                "startLoad",
                "waitForLayerLoad",
                "saveLayer",
                "waitForSave",
                "report",
                "onStepDone",
                "onFinished",
                "onRefused"
            })
    void aChildThatThrowsIsSwitchedOffAloneAndItsLoadsAreInvalid(String method) {
        Engine engine = new Engine(2);
        FakeKvRequest held = new FakeKvRequest("held", FakeKvRequest.counting(1, 4), 4);
        first.release = answer(true, "{}");
        assertThat(engine.scheduler
                        .onFinished(held, RequestEnd.LENGTH, new int[] {1})
                        .delayed())
                .isTrue();
        first.release = Release.NOW;
        first.match = new KvMatch.Tokens(8, true);
        engine.scheduler.match(R, 0);
        engine.scheduler.onAllocated(R, TABLE, 0, 8);
        engine.step();
        first.thrown.put(method, new IllegalStateException("broken"));
        engine.scheduler.onNewRequest(new FakeKvRequest("new", FakeKvRequest.counting(1, 4), 4));
        engine.scheduler.onRefused("refused", JsonFields.empty(""));
        FakeKvRequest other = new FakeKvRequest("other", FakeKvRequest.counting(1, 4), 4);
        boolean kept = engine.scheduler
                .onFinished(other, RequestEnd.LENGTH, new int[] {2})
                .delayed();
        assertThat(kept)
                .isEqualTo(List.of("onNewRequest", "onRefused", "onFinished").contains(method));

        Map<Integer, Set<String>> received = new LinkedHashMap<>();
        Set<Integer> invalid = new HashSet<>();
        Set<String> sent = new HashSet<>();
        int closedAfter = 0;
        for (int step = 0; step < 4; step++) {
            engine.step(new ScheduledRequest(other, TABLE, 0, 4));
            for (int rank = 0; rank < 2; rank++) {
                WorkerReport report = engine.reports.get(rank);
                received.computeIfAbsent(rank, _ -> new HashSet<>()).addAll(report.received());
                invalid.addAll(report.invalidBlocks());
                sent.addAll(report.sent());
            }
            if (first.calls.stream().filter("close"::equals).count() == 2 && closedAfter == 0) {
                closedAfter = step + 1;
                assertThat(sent).as("released when all are closed").isEmpty();
            }
        }
        assertThat(closedAfter).isBetween(1, 2);
        assertThat(received).allSatisfy((_, requests) -> assertThat(requests).containsExactly("r"));
        assertThat(invalid).containsExactlyInAnyOrder(5, 6);
        assertThat(sent).isEqualTo(kept ? Set.of("held", "other") : Set.of("held"));
        assertThat(first.calls).endsWith("scheduler close");
        assertThat(first.calls.stream().filter(call -> call.startsWith(method))).hasSize(1 + calledBefore(method));
        assertThat(second.calls).doesNotContain("close", "scheduler close").endsWith("onStepDone");
        assertThat(engine.scheduler.takeMeasurements())
                .contains(
                        Measurement.count("baton:kv_connector_failures", 1),
                        Measurement.gauge("baton:kv_connector_switched_off", 1, "connector", "First"));
        assertThat(engine.scheduler.hasPendingWork()).isFalse();
        assertThat(engine.scheduler.match(R, 0)).isEqualTo(new KvMatch.None());
        assertThat(engine.scheduler.resetCache()).isTrue();
        engine.scheduler.close();
        engine.workers.values().forEach(WorkerConnector::close);
        assertThat(first.calls.stream().filter(call -> call.contains("close"))).hasSize(3);
        assertThat(second.calls.stream().filter(call -> call.contains("close"))).hasSize(3);
    }

    @Test
    void aChildThatIsSwitchedOffIsNotAdvertisedAndItsEventsAreTakenBack() {
        Engine engine = new Engine(1);
        first.advertised = Optional.of(JsonFields.parse("", "{\"a\": 1}"));
        second.advertised = Optional.of(JsonFields.parse("", "{\"b\": 1}"));
        first.events = List.of(new KvEvent.BlockRemoved(List.of(), "CPU"));
        assertThat(engine.scheduler.takeEvents()).hasSize(1);
        first.thrown.put("onStepDone", new IllegalStateException("broken"));
        engine.step();
        engine.step();
        assertThat(first.calls).endsWith("scheduler close");
        assertThat(engine.scheduler.advertisedKvTransferParams()).contains(JsonFields.parse("", "{\"b\": 1}"));
        assertThat(engine.scheduler.takeEvents()).containsExactly(new KvEvent.AllBlocksCleared());
        assertThat(engine.scheduler.takeEvents()).isEmpty();
    }

    /** How often the method was called on the first child before its scripted throw. */
    private static int calledBefore(String method) {
        return switch (method) {
            case "startLoad", "report" -> 2;
            case "buildMetadata", "onStepDone", "onFinished" -> 1;
            default -> 0;
        };
    }

    @Test
    void aChildThatCannotBeClosedIsAFailureOfTheWhole() {
        Engine engine = new Engine(1);
        first.thrown.put("onNewRequest", new IllegalStateException("broken"));
        first.thrown.put("close", new IllegalStateException("stuck"));
        engine.scheduler.onNewRequest(R);
        assertThatThrownBy(engine::step).hasMessage("First, which has failed, could not be closed");
        WorkerConnector worker = engine.worker();
        assertThatThrownBy(worker::close).hasMessage("First, which has failed, could not be closed");
        assertThat(second.takeCalls()).endsWith("close");
    }

    @Test
    void allAreClosedAlthoughOneThrows() {
        Engine engine = new Engine(1);
        first.thrown.put("close", new IllegalStateException("worker"));
        first.thrown.put("scheduler close", new IllegalStateException("scheduler"));
        assertThatThrownBy(() -> engine.worker().close()).hasMessage("worker");
        assertThatThrownBy(engine.scheduler::close).hasMessage("scheduler");
        assertThat(second.takeCalls()).containsExactly("close", "scheduler close");
    }

    @Test
    void childrenInheritMissingFields() {
        multi().check(
                        config(List.of(
                                        child("First"),
                                        Map.of("kv_connector", "Second", "kv_role", "kv_consumer", "engine_id", "own")))
                                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                                .build(),
                        1);
        assertThat(first.configs.getFirst().role()).contains(KvRole.BOTH);
        assertThat(first.configs.getFirst().engineId()).isEqualTo("engine");
        assertThat(first.configs.getFirst().loadFailurePolicy()).isEqualTo(LoadFailurePolicy.RECOMPUTE);
        assertThat(second.configs.getFirst().role()).contains(KvRole.CONSUMER);
        assertThat(second.configs.getFirst().engineId()).isEqualTo("own");
    }

    @Test
    void wrongFieldsAreRefusedByTheirWholePath() {
        String list = "kv_connector_extra_config.connectors";
        assertRefused(List.of(), list + ": must be a list of KVTransferConfig objects");
        assertRefused("First", list + ": must be an array of objects");
        assertRefused(List.of(child("First"), Map.of()), list + "[1].kv_connector: is missing");
        assertRefused(List.of(Map.of("kv_connector", 7)), list + "[0].kv_connector: must be a string");
        assertRefused(
                List.of(Map.of("kv_connector", "First", "kv_rol", "x")),
                list + "[0].kv_rol: unknown field; did you mean kv_role?");
        assertRefused(
                List.of(Map.of("kv_connector", "First", "kv_load_failure_policy", "recompute")),
                list + "[0].kv_load_failure_policy: is recompute, but the engine has one policy");
        assertRefused(
                List.of(Map.of("kv_connector", "First", "verify_kv", "full")),
                list + "[0].verify_kv: is full, but the engine compares all loads alike");
        assertRefused(
                List.of(Map.of("kv_connector", "First", "kv_connector_extra_config", Map.of("known", 0))),
                list + "[0].kv_connector_extra_config.known: is 0, must be at least 1");
        assertRefused(
                List.of(Map.of(
                        "kv_connector",
                        "Multi",
                        "kv_connector_extra_config",
                        Map.of("connectors", List.of(Map.of("kv_connector", "First", "kv_port", -1))))),
                list + "[0]." + list + "[0].kv_port: ");
        assertThatThrownBy(() -> new MultiConnector()
                        .check(config(List.of(child("NoSuchConnector"))).build(), 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(list + "[0].kv_connector: Unsupported connector type: NoSuchConnector");
    }

    private void assertRefused(Object connectors, String message) {
        assertThatThrownBy(() -> multi().check(config(connectors).build(), 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }

    @Test
    void aChildThatCannotBeMadeClosesThoseThatWere() {
        second.thrown.put("worker", new ConfigException("known", "is bad"));
        second.thrown.put("scheduler", new ConfigException("known", "is bad"));
        ConnectorContext context = new ConnectorContext(
                config(List.of(child("First"), child("Second"))).build(),
                new ModelFingerprint("fake", "00"),
                LAYOUT,
                Ticker.system());
        String message = "kv_connector_extra_config.connectors[1].known: is bad";
        assertThatThrownBy(() -> multi().worker(context, Rank.FIRST)).hasMessage(message);
        assertThatThrownBy(() -> multi().scheduler(context)).hasMessage(message);
        assertThat(first.takeCalls()).containsExactly("worker", "close", "scheduler", "scheduler close");
    }
}
