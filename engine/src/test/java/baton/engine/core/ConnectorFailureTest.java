package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvMatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A connector that throws is closed, and the engine goes on without it. */
class ConnectorFailureTest {
    private final ScriptedConnector connector = new ScriptedConnector();
    private final List<String> called = new ArrayList<>();

    private CoreHarness core(int blocks, LoadFailurePolicy policy) {
        CoreHarness harness = new CoreHarness(
                blocks,
                4,
                (EngineConfigBuilder config) -> config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                        .loadFailurePolicy(policy)
                        .build()),
                Optional.of(connector));
        harness.connectorFails = true;
        return harness;
    }

    /** From now on the connector throws this from that method. */
    private void breaks(String method, Throwable thrown) {
        connector.calls = call -> {
            called.add(call);
            if (call.equals(method)) {
                switch (thrown) {
                    case RuntimeException e -> throw e;
                    case Error e -> throw e;
                    default -> throw new IllegalArgumentException(thrown);
                }
            }
        };
    }

    private void breaks(String method) {
        breaks(method, new IllegalStateException("broken"));
    }

    /** The method that broke was the last to be called, but for the calls that end everything. */
    private void assertSwitchedOffAfter(CoreHarness harness, String method) {
        assertThat(called.indexOf(method)).isEqualTo(called.lastIndexOf(method)).isNotNegative();
        List<String> after = new ArrayList<>(called.subList(called.indexOf(method) + 1, called.size()));
        assertThat(after).doesNotHaveDuplicates().endsWith("worker close", "scheduler close");
        assertThat(harness.measured).containsEntry("baton:kv_connector_failures", 1.0);
        connector.events.clear();
        called.clear();
        Result later = harness.add("later", prompt(9, 19), 2);
        harness.run();
        assertThat(later.tokens).isEqualTo(expected(prompt(9, 19), 2));
        assertThat(connector.events).isEmpty();
        assertThat(called).isEmpty();
        assertThat(harness.core.resetPrefixCache()).isTrue();
    }

    /** Requests are running, being loaded within a step and between steps, held for a reader and aborted while they are loaded. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "onNewRequest",
                "match",
                "onAllocated",
                "buildMetadata",
                "onStepDone",
                "takeEvents",
                "takeMeasurements",
                "onFinished",
                "startLoad",
                "waitForLayerLoad",
                "saveLayer",
                "saveHidden",
                "waitForSave",
                "report"
            })
    void inWhateverCallItThrowsAllRequestsEndRight(String method) {
        connector.wantsHidden = true;
        connector.match = (request, computed) -> switch (request.id()) {
            case "async", "aborted" -> new KvMatch.Tokens(16, true);
            case "sync", "fresh" -> new KvMatch.Tokens(16 - computed, false);
            default -> new KvMatch.None();
        };
        connector.delayed.add("held");
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            Result held = harness.add("held", prompt(1, 9), 1);
            Result running = harness.add("running", prompt(2, 9), 8);
            Result async = harness.add("async", prompt(3, 19), 3);
            harness.add("aborted", prompt(4, 19), 3);
            harness.add("sync", prompt(5, 19), 3);
            harness.step();
            harness.core.abort("aborted");
            breaks(method);
            Result fresh = harness.add("fresh", prompt(6, 19), 3);
            harness.run();
            assertThat(held.tokens).isEqualTo(expected(prompt(1, 9), 1));
            assertThat(running.tokens).isEqualTo(expected(prompt(2, 9), 8));
            assertThat(async.tokens).isEqualTo(expected(prompt(3, 19), 3));
            assertThat(harness.result("sync").tokens).isEqualTo(expected(prompt(5, 19), 3));
            assertThat(fresh.tokens).isEqualTo(expected(prompt(6, 19), 3));
            assertThat(harness.used()).isZero();
            assertSwitchedOffAfter(harness, method);
        }
    }

    @Test
    void ifItThrowsAtARefusedRequestItIsSwitchedOffInAStep() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            breaks("onRefused");
            harness.core.refused("r", JsonFields.empty("kv_transfer_params"));
            assertThat(harness.core.hasWork()).isTrue();
            harness.run();
            assertSwitchedOffAfter(harness, "onRefused");
        }
    }

    @Test
    void ifItThrowsWhileItIsAskedForWorkItIsSwitchedOffInAStep() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            breaks("hasPendingWork");
            assertThat(harness.core.hasWork()).isTrue();
            harness.run();
            assertSwitchedOffAfter(harness, "hasPendingWork");
        }
    }

    @Test
    void ifItThrowsWhileTheCacheIsResetItIsSwitchedOffInAStep() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            breaks("resetCache");
            assertThat(harness.core.resetPrefixCache()).isFalse();
            harness.run();
            assertSwitchedOffAfter(harness, "resetCache");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"startLoad", "waitForLayerLoad", "report", "buildMetadata", "onStepDone"})
    void byPolicyTheRequestsFailThatItWasLoading(String method) {
        connector.match = (request, computed) -> switch (request.id()) {
            case "async" -> new KvMatch.Tokens(16, true);
            case "sync" -> new KvMatch.Tokens(16, false);
            default -> new KvMatch.None();
        };
        try (CoreHarness harness = core(64, LoadFailurePolicy.FAIL)) {
            Result async = harness.add("async", prompt(1, 19), 3);
            Result running = harness.add("running", prompt(2, 9), 8);
            harness.step();
            breaks(method);
            Result sync = harness.add("sync", prompt(3, 19), 3);
            harness.run();
            assertThat(async.reason).contains(FinishReason.ERROR);
            assertThat(async.error.orElseThrow()).contains(" 4 of its blocks");
            assertThat(running.tokens).isEqualTo(expected(prompt(2, 9), 8));
            // Blocks loaded before the connector failed are good.
            if (!method.equals("onStepDone")) {
                assertThat(sync.reason).contains(FinishReason.ERROR);
            }
        }
    }

    @ParameterizedTest
    @ValueSource(classes = {AssertionError.class, NoClassDefFoundError.class, InternalError.class})
    void anErrorOfItsCodeIsItsFailureToo(Class<? extends Error> error) throws Exception {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            breaks("startLoad", error.getDeclaredConstructor().newInstance());
            Result result = harness.add("a", prompt(1, 19), 3);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 3));
            assertSwitchedOffAfter(harness, "startLoad");
        }
    }

    @Test
    void anErrorOfTheJvmEndsTheStep() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            harness.add("a", prompt(1, 19), 3);
            breaks("startLoad", new StackOverflowError());
            assertThatThrownBy(harness::step).isInstanceOf(StackOverflowError.class);
            connector.calls = call -> {};
            harness.core.endAll(FinishReason.ERROR, "over");
        }
    }

    @Test
    void aHiddenStateOutlivesItsConnectorsMemory() {
        connector.match = (request, computed) -> new KvMatch.Tokens(request.promptLength(), true);
        Arena arena = Arena.ofShared();
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            List<Integer> right = expected(prompt(1, 16), 3);
            HiddenState state = OracleRunner.hidden(right.getFirst());
            MemorySegment memory = arena.allocate(state.data().byteSize());
            memory.copyFrom(state.data());
            Result result = harness.add("a", prompt(1, 16), 3);
            harness.step();
            connector.nextHidden.put("a", new HiddenState(state.dtype(), memory));
            connector.complete("a");
            harness.step();
            connector.calls = call -> {
                switch (call) {
                    case "buildMetadata" -> throw new IllegalStateException("broken");
                    case "worker close" -> arena.close();
                    default -> {}
                }
            };
            harness.run();
            assertThat(arena.scope().isAlive()).isFalse();
            assertThat(result.tokens).isEqualTo(right);
            assertThat(result.stats.orElseThrow().prompt().localCompute()).isZero();
        }
    }

    /** A load is under way that nothing can end: its blocks are never handed out again, and all others are. */
    @Test
    void ifItCannotBeClosedTheBlocksThatItMayUseAreWithheld() {
        connector.match =
                (request, computed) -> request.id().equals("async") ? new KvMatch.Tokens(16, true) : new KvMatch.None();
        connector.delayed.add("held");
        CoreHarness harness = core(12, LoadFailurePolicy.RECOMPUTE);
        harness.add("held", prompt(1, 7), 1);
        Result async = harness.add("async", prompt(2, 19), 1);
        harness.step();
        int[] loading = connector.started.getFirst().blockTable();
        connector.calls = call -> {
            if (call.equals("report") || call.equals("worker close")) {
                throw new IllegalStateException("broken");
            }
        };
        harness.step();
        harness.runner.computed.clear();
        harness.run();
        assertThat(async.tokens).isEqualTo(expected(prompt(2, 19), 1));
        assertThat(harness.used()).isEqualTo(6);
        for (int i = 0; i < 4; i++) {
            harness.add("r" + i, prompt(3 + i, 19), 1);
        }
        harness.run();
        harness.runner.computed.forEach(slice -> assertThat(slice.blockTable()).doesNotContain(loading));
        assertThat(harness.measured).containsEntry("baton:kv_connector_failures", 2.0);
        harness.core.close();
    }

    @Test
    void aConnectorThatIsOffAdvertisesNothingToPeers() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            breaks("takeEvents");
            harness.add("a", prompt(1, 19), 1);
            harness.run();
            assertThat(harness.core.advertisedKvTransferParams()).isEmpty();
        }
    }

    @Test
    void aRequestEndsWithTheErrorOfAnAnswerThatTheConnectorCannotGive() {
        connector.answerErrors.put("r", "two connectors disagree");
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            Result failed = harness.add("r", prompt(1, 9), 1);
            Result other = harness.add("other", prompt(2, 9), 1);
            harness.run();
            assertThat(failed.reason).contains(FinishReason.ERROR);
            assertThat(failed.error).contains("two connectors disagree");
            assertThat(other.reason).contains(FinishReason.LENGTH);
            assertThat(harness.used()).isZero();
        }
    }

    /** The connector's thread cannot be stopped; but any thread can report the call that does not return. */
    @Test
    void aCallThatDoesNotReturnIsKnownAsLongAsItLasts() throws Exception {
        CountDownLatch called = new CountDownLatch(1);
        CountDownLatch goOn = new CountDownLatch(1);
        AtomicReference<EngineCore> core = new AtomicReference<>();
        connector.calls = method -> {
            if (method.equals("startLoad")) {
                called.countDown();
                try {
                    assertThat(goOn.await(1, TimeUnit.MINUTES)).isTrue();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }
        };
        FutureTask<Result> engine = new FutureTask<>(() -> {
            try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
                core.set(harness.core);
                Result result = harness.add("r", prompt(1, 9), 2);
                harness.run();
                return result;
            }
        });
        Thread thread = Thread.ofPlatform().start(engine);
        assertThat(called.await(1, TimeUnit.MINUTES)).isTrue();
        EngineCore running = Objects.requireNonNull(core.get());
        assertThat(running.longestConnectorCall()).hasValueSatisfying(call -> {
            assertThat(call.method()).isEqualTo("startLoad");
            assertThat(call.thread()).isEqualTo(thread);
            assertThat(call.seconds()).isNotNegative();
        });
        goOn.countDown();
        assertThat(engine.get(1, TimeUnit.MINUTES).tokens).isEqualTo(expected(prompt(1, 9), 2));
        assertThat(running.longestConnectorCall()).isEmpty();
    }

    /** A subscriber would otherwise believe for ever in the blocks that a store held. */
    @Test
    void eventsOfAConnectorThatIsSwitchedOffAreTakenBack() {
        try (CoreHarness harness = core(64, LoadFailurePolicy.RECOMPUTE)) {
            connector.nextEvents.add(new KvEvent.BlockRemoved(List.of(), KvEvent.MEDIUM_CPU));
            harness.add("a", prompt(1, 9), 1);
            harness.run();
            assertThat(harness.events).containsExactly(new KvEvent.BlockRemoved(List.of(), KvEvent.MEDIUM_CPU));
            breaks("onStepDone");
            harness.add("b", prompt(2, 9), 1);
            harness.run();
            assertThat(harness.events)
                    .containsExactly(
                            new KvEvent.BlockRemoved(List.of(), KvEvent.MEDIUM_CPU), new KvEvent.AllBlocksCleared());
        }
    }
}
