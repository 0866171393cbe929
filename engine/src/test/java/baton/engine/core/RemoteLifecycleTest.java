package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Remote prefill (the cache comes from a peer) and remote decode (a peer comes for the cache), from arrival to empty engine. */
class RemoteLifecycleTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(int blocks, UnaryOperator<EngineConfigBuilder> settings) {
        return new CoreHarness(
                blocks,
                4,
                (EngineConfigBuilder config) ->
                        settings.apply(config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                                .build())),
                Optional.of(connector));
    }

    private CoreHarness core(int blocks) {
        return core(blocks, UnaryOperator.identity());
    }

    private static int parked(CoreHarness harness) {
        return harness.core.status(Optional.empty()).waitingForRemoteKv();
    }

    private void loadsWholePrompts(String... requests) {
        connector.match = (request, computed) -> List.of(requests).contains(request.id())
                ? new KvMatch.Tokens(request.promptLength() - computed, true)
                : new KvMatch.None();
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 4, 15, 16, 17})
    void aRemotePrefillComputesTheLastTokenOnly(int length) {
        loadsWholePrompts("a");
        try (CoreHarness harness = core(64)) {
            Result result = harness.add("a", prompt(1, length), 3);
            assertThat(harness.step()).isFalse();
            assertThat(parked(harness)).isEqualTo(1);
            connector.complete("a");
            // Nothing was computed, but the next step has something to compute.
            assertThat(harness.step()).isTrue();
            assertThat(harness.runner.computed).isEmpty();
            assertThat(parked(harness)).isZero();
            assertThat(harness.step()).isTrue();
            assertThat(harness.runner.computed.getFirst().start()).isEqualTo(length - 1);
            assertThat(harness.runner.computed.getFirst().tokens()).hasSize(1);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, length), 3));
            assertThat(connector.events).contains("allocated a " + length, "allocated a 0");
        }
    }

    @Test
    void aRemotePrefillIsSharedOnlyWhenItIsThere() {
        loadsWholePrompts("a");
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 17), 1);
            harness.step();
            Result early = harness.add("b", prompt(1, 17), 1);
            harness.step();
            assertThat(early.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(harness.core.resetPrefixCache()).isFalse();
            connector.complete("a");
            harness.run();
            Result late = harness.add("c", prompt(1, 17), 1);
            harness.run();
            assertThat(late.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(16);
            assertThat(late.tokens).isEqualTo(expected(prompt(1, 17), 1));
        }
    }

    @Test
    void localRequestsGoOnWhileARemotePrefillIsAwaited() {
        loadsWholePrompts("b");
        try (CoreHarness harness = core(64)) {
            Result a = harness.add("a", prompt(1, 9), 4);
            Result b = harness.add("b", prompt(2, 9), 4);
            Result c = harness.add("c", prompt(3, 9), 4);
            for (int i = 0; i < 4; i++) {
                harness.step();
            }
            assertThat(a.reason).contains(FinishReason.LENGTH);
            assertThat(c.reason).contains(FinishReason.LENGTH);
            assertThat(parked(harness)).isEqualTo(1);
            connector.complete("b");
            harness.run();
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 9), 4));
        }
    }

    @Test
    void whereTheBlocksDoNotFitNothingIsParkedUntilTheyDo() {
        loadsWholePrompts("b");
        try (CoreHarness harness = core(8, config -> config.enablePrefixCaching(false))) {
            Result a = harness.add("a", prompt(1, 20), 4);
            harness.step();
            Result b = harness.add("b", prompt(2, 20), 4);
            harness.step();
            assertThat(parked(harness)).isZero();
            assertThat(connector.started).isEmpty();
            while (a.reason.isEmpty()) {
                harness.step();
            }
            harness.step();
            assertThat(parked(harness)).isEqualTo(1);
            connector.complete("b");
            harness.run();
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 20), 4));
        }
    }

    @Test
    void aLoadedRequestWaitsForItsTurnIfARunningOneHasTakenTheLastBlock() {
        loadsWholePrompts("b");
        try (CoreHarness harness = core(8, config -> config.enablePrefixCaching(false))) {
            Result a = harness.add("a", prompt(1, 11), 16);
            Result b = harness.add("b", prompt(2, 16), 10);
            harness.step();
            assertThat(parked(harness)).isEqualTo(1);
            for (int i = 0; i < 6; i++) {
                harness.step();
            }
            connector.complete("b");
            harness.run();
            assertThat(a.tokens).isEqualTo(expected(prompt(1, 11), 16));
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 16), 10));
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive()
                    .isEqualTo(a.stats.orElseThrow().times().preemptions()
                            + b.stats.orElseThrow().times().preemptions());
        }
    }

    @Test
    void ofTwoLoadsThatDoNotFitTogetherOneIsParked() {
        connector.match = (request, computed) -> new KvMatch.Tokens(4 - computed, true);
        try (CoreHarness harness = core(8)) {
            Result a = harness.add("a", prompt(1, 20), 1);
            Result b = harness.add("b", prompt(2, 20), 1);
            harness.step();
            // Each takes one block now, but needs five: the rest of the first's is reserved.
            assertThat(parked(harness)).isEqualTo(1);
            assertThat(harness.used()).isEqualTo(1);
            connector.complete("a");
            while (!connector.isLoading("b")) {
                harness.step();
            }
            connector.complete("b");
            harness.run();
            assertThat(a.tokens).isEqualTo(expected(prompt(1, 20), 1));
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 20), 1));
        }
    }

    @Test
    void twoLoadsThatFitTogetherAreParkedTogether() {
        connector.match = (request, computed) -> new KvMatch.Tokens(4 - computed, true);
        try (CoreHarness harness = core(10)) {
            harness.add("a", prompt(1, 20), 1);
            harness.add("b", prompt(2, 20), 1);
            harness.step();
            assertThat(parked(harness)).isEqualTo(2);
            connector.complete("b");
            connector.complete("a");
            harness.run();
            assertThat(harness.result("a").tokens).isEqualTo(expected(prompt(1, 20), 1));
            assertThat(harness.result("b").tokens).isEqualTo(expected(prompt(2, 20), 1));
        }
    }

    @Test
    void aRequestThatIsAbortedBeforeItIsScheduledHasNothingToLoad() {
        loadsWholePrompts("a");
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 17), 1);
            harness.core.abort("a");
            harness.run();
            assertThat(connector.started).isEmpty();
            assertThat(connector.events).containsExactly("new a", "finished a ABORTED");
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 16, 19})
    void aRemoteDecodeKeepsItsBlocksUntilTheyAreSent(int length) {
        connector.delayed.add("a");
        try (CoreHarness harness = core(64)) {
            Result result = harness.add("a", prompt(1, length), 1);
            harness.step();
            assertThat(result.reason).contains(FinishReason.LENGTH);
            assertThat(result.params).isPresent();
            assertThat(harness.core.status(Optional.empty()).running()).isZero();
            assertThat(harness.core.knows("a")).isTrue();
            int blocks = Math.ceilDiv(length, 4);
            for (int i = 0; i < 3; i++) {
                harness.step();
                assertThat(harness.used()).isEqualTo(blocks);
            }
            connector.nextSent.add("a");
            harness.step();
            assertThat(harness.used()).isZero();
            assertThat(harness.core.knows("a")).isFalse();
            assertThat(harness.core.hasWork()).isFalse();
        }
    }

    @Test
    void blocksKeptForAPeerAreSharedMeanwhileAndStayCachedAfterwards() {
        connector.delayed.add("a");
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 19), 1);
            harness.step();
            Result during = harness.add("b", prompt(1, 19), 2);
            harness.step();
            connector.nextSent.add("a");
            harness.run();
            Result after = harness.add("c", prompt(1, 19), 2);
            harness.run();
            assertThat(during.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(16);
            assertThat(after.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(16);
            assertThat(during.tokens).isEqualTo(expected(prompt(1, 19), 2));
            assertThat(after.tokens).isEqualTo(expected(prompt(1, 19), 2));
        }
    }

    @Test
    void anAbortAfterTheEndChangesNothingForThePeer() {
        connector.delayed.add("a");
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 19), 1);
            harness.step();
            harness.core.abort("a");
            harness.step();
            assertThat(harness.used()).isEqualTo(5);
            assertThat(connector.events.stream().filter(event -> event.startsWith("finished")))
                    .containsExactly("finished a LENGTH");
            connector.nextSent.add("a");
            harness.run();
            assertThat(harness.used()).isZero();
        }
    }

    @Test
    void theConnectorIsNotifiedOnceOfALostAnswerAndOnlyWhileBlocksAreKept() {
        connector.delayed.addAll(Set.of("a", "s-0", "s-1", "other"));
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 19), 1);
            harness.add("free", prompt(2, 19), 1);
            harness.add("other", prompt(3, 9), 1);
            SamplingParams two = SamplingParams.builder().n(2).maxTokens(1).build();
            harness.add("s-0", prompt(4, 9), two, 0);
            harness.add("s-1", prompt(4, 9), two, 0);
            harness.core.answerLost("a");
            for (int i = 0; i < 4; i++) {
                harness.step();
            }
            for (String id : List.of("a", "a", "free", "unknown", "s", "s-0")) {
                harness.core.answerLost(id);
            }
            assertThat(connector.events.stream().filter(event -> event.startsWith("answer lost")))
                    .containsExactlyInAnyOrder("answer lost a", "answer lost s-0", "answer lost s-1");
            connector.nextSent.addAll(connector.delayed);
            harness.run();
            assertThat(harness.used()).isZero();
            harness.core.answerLost("other");
            assertThat(connector.events).doesNotContain("answer lost other");
        }
    }

    @Test
    void aSecondReportOfTheSameSendIsCountedAndIgnored() {
        connector.delayed.add("a");
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 19), 1);
            harness.step();
            connector.nextSent.add("a");
            harness.step();
            Result other = harness.add("b", prompt(2, 19), 3);
            harness.step();
            connector.nextSent.add("a");
            connector.nextReceived.add("a");
            harness.run();
            assertThat(harness.measured).containsEntry("baton:kv_unknown_reports", 2.0);
            assertThat(other.tokens).isEqualTo(expected(prompt(2, 19), 3));
        }
    }
}
