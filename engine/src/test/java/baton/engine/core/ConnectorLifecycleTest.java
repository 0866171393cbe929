package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.BlockHash;
import baton.kv.KvEvent;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerMetadata;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The guarantees for a connector, and its effects on a request. */
class ConnectorLifecycleTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(LoadFailurePolicy policy) {
        return core(64, policy);
    }

    private CoreHarness core(int blocks, LoadFailurePolicy policy) {
        return new CoreHarness(
                blocks,
                4,
                (EngineConfigBuilder config) -> config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                        .loadFailurePolicy(policy)
                        .build()),
                Optional.of(connector));
    }

    @Test
    void aLoadWithinTheStepCountsAsComputed() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, false);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 4);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(harness.runner.computed.getFirst().tokens()).hasSize(3);
            assertThat(result.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(16);
            assertThat(result.stats.orElseThrow().prompt().localCompute()).isEqualTo(3);
            assertThat(connector.events).containsExactly("new a", "match a 0", "allocated a 16", "finished a LENGTH");
        }
    }

    @Test
    void aLoadOfTheWholePromptWithinTheStepLeavesTheLastTokenToCompute() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, false);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 16), 2);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 16), 2));
            assertThat(harness.runner.computed.getFirst().tokens()).hasSize(1);
        }
    }

    @Test
    void theConnectorIsAskedAgainAboutAPendingMatch() {
        int[] asked = {0};
        connector.match = (request, computed) -> ++asked[0] < 4 ? new KvMatch.Pending() : new KvMatch.None();
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 9), 2);
            for (int i = 0; i < 3; i++) {
                assertThat(harness.step()).isFalse();
                assertThat(harness.used()).isZero();
            }
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 9), 2));
            assertThat(asked[0]).isEqualTo(4);
        }
    }

    @Test
    void anAsynchronousLoadParksTheRequestWithItsBlocks() {
        connector.match =
                (request, computed) -> request.id().equals("a") ? new KvMatch.Tokens(16, true) : new KvMatch.None();
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result parked = harness.add("a", prompt(1, 19), 3);
            Result other = harness.add("b", prompt(2, 6), 3);
            harness.step();
            assertThat(harness.core.status(Optional.empty()).waitingForRemoteKv())
                    .isEqualTo(1);
            assertThat(harness.runner.computed).hasSize(1);
            harness.step();
            harness.step();
            assertThat(other.reason).isPresent();
            assertThat(harness.used()).isEqualTo(4);
            connector.complete("a");
            harness.step();
            harness.run();
            assertThat(parked.tokens).isEqualTo(expected(prompt(1, 19), 3));
            assertThat(connector.events).contains("allocated a 16", "allocated a 0");
            assertThat(connector.events.stream().filter(event -> event.startsWith("match a")))
                    .hasSize(1);
        }
    }

    @Test
    void whenEverythingCameFromElsewhereTheLastTokenIsComputed() {
        connector.match = (request, computed) -> new KvMatch.Tokens(request.promptLength(), true);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 16), 3);
            harness.step();
            connector.complete("a");
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 16), 3));
            assertThat(harness.runner.computed.getFirst().tokens()).hasSize(1);
        }
    }

    @Test
    void laterRequestsDoNotTakeTheBlocksThatALoadedOneStillNeeds() {
        connector.match = (request, computed) -> new KvMatch.Tokens(request.id().equals("a") ? 4 : 12, true);
        try (CoreHarness harness = core(12, LoadFailurePolicy.FAIL)) {
            Result first = harness.add("a", prompt(1, 44), 2);
            harness.step();
            Result second = harness.add("b", prompt(2, 13), 2);
            harness.step();
            connector.complete("a");
            for (int i = 0; i < 20 && second.reason.isEmpty(); i++) {
                if (connector.isLoading("b")) {
                    connector.complete("b");
                }
                harness.step();
            }
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, 44), 2));
            assertThat(second.tokens).isEqualTo(expected(prompt(2, 13), 2));
        }
    }

    @Test
    void blocksOfALoadAreNotSharedBeforeItIsOver() {
        connector.match =
                (request, computed) -> request.id().equals("a") ? new KvMatch.Tokens(16, true) : new KvMatch.None();
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            harness.add("a", prompt(1, 19), 1);
            harness.step();
            Result same = harness.add("b", prompt(1, 19), 1);
            harness.step();
            assertThat(same.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(same.tokens).isEqualTo(expected(prompt(1, 19), 1));
            connector.complete("a");
            harness.run();
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aFailedBlockIsComputedFromThereOn(boolean async) {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, async);
        connector.fails = (load, index) -> index == 2;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            Result result = harness.add("a", prompt(1, 19), 4);
            harness.step();
            if (async) {
                connector.complete("a");
            }
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(result.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(8);
            assertThat(result.stats.orElseThrow().prompt().localCompute()).isEqualTo(11);
            assertThat(harness.measured).containsEntry("baton:kv_load_failed_requests", 1.0);
            assertThat(harness.measured).containsEntry("baton:kv_recomputed_tokens", 8.0);
            // Asked once: a load that failed is not tried again.
            assertThat(connector.events.stream().filter(event -> event.startsWith("match")))
                    .hasSize(1);
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void byPolicyAFailedLoadFailsTheRequest(boolean async) {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, async);
        connector.fails = (load, index) -> index == 0;
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 4);
            harness.step();
            if (async) {
                connector.complete("a");
            }
            harness.run();
            assertThat(result.reason).contains(FinishReason.ERROR);
            assertThat(result.error.orElseThrow()).contains("kv_load_failure_policy=fail");
            assertThat(result.tokens).isEmpty();
            assertThat(harness.measured)
                    .containsEntry("baton:kv_load_failed_requests", 1.0)
                    .doesNotContainKey("baton:kv_recomputed_tokens");
        }
    }

    @Test
    void aFailedLoadLeavesNothingInThePrefixCache() {
        connector.match =
                (request, computed) -> request.id().equals("a") ? new KvMatch.Tokens(16, false) : new KvMatch.None();
        connector.fails = (load, index) -> index >= 1;
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            harness.add("a", prompt(1, 19), 4);
            harness.run();
            Result result = harness.add("b", prompt(1, 19), 4);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(result.stats.orElseThrow().prompt().localCacheHit()).isLessThanOrEqualTo(4);
        }
    }

    @Test
    void anAbortDuringALoadKeepsTheBlocksUntilTheLoadIsOver() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, true);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 4);
            harness.step();
            harness.core.abort("a");
            assertThat(result.reason).contains(FinishReason.ABORT);
            harness.step();
            assertThat(harness.used()).isEqualTo(4);
            connector.complete("a");
            harness.run();
            assertThat(harness.used()).isZero();
        }
    }

    @Test
    void aDelayedReleaseKeepsTheBlocksUntilTheyAreSent() {
        connector.delayed.add("a");
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 1);
            harness.step();
            assertThat(result.reason).contains(FinishReason.LENGTH);
            assertThat(result.params.orElseThrow().string("from")).contains("a");
            harness.step();
            assertThat(harness.used()).isEqualTo(5);
            connector.nextSent.add("a");
            harness.run();
            assertThat(harness.used()).isZero();
        }
    }

    @Test
    void reportsAboutUnknownRequestsAreCountedAndIgnored() {
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 3);
            harness.step();
            connector.nextSent.add("ghost");
            connector.nextReceived.add("ghost");
            connector.nextReceived.add("a");
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 3));
            assertThat(harness.measured).containsEntry("baton:kv_unknown_reports", 3.0);
        }
    }

    @ParameterizedTest
    @EnumSource(LoadFailurePolicy.class)
    void whenTheKvOfAPreemptedRequestIsAskedForAgainTheAnswerIsStillRight(LoadFailurePolicy policy) {
        connector.match =
                (request, computed) -> computed >= 8 ? new KvMatch.None() : new KvMatch.Tokens(8 - computed, false);
        try (CoreHarness harness = core(12, policy)) {
            Result a = harness.add("a", prompt(1, 12), 28);
            Result b = harness.add("b", prompt(2, 12), 28);
            harness.run();
            assertThat(a.tokens).isEqualTo(expected(prompt(1, 12), 28));
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 12), 28));
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive();
        }
    }

    @Test
    void aWorkersMetadataComesToTheSchedulerSideByRank() {
        record Stored(int job) implements WorkerMetadata {}
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            harness.add("a", prompt(1, 19), 2);
            connector.nextMetadata = Optional.of(new Stored(7));
            harness.run();
            assertThat(connector.gotMetadata).containsExactly(Map.of(Rank.FIRST, new Stored(7)), Map.of(), Map.of());
        }
    }

    @Test
    void aConnectorsEventsComeToTheListener() {
        KvEvent event = new KvEvent.BlockRemoved(List.of(new BlockHash(1, 2, 3, 4)), KvEvent.MEDIUM_CPU);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            harness.add("a", prompt(1, 19), 2);
            connector.nextEvents.add(event);
            harness.run();
            assertThat(harness.events).containsExactly(event);
        }
    }

    @Test
    void theStatsOfARequestNameIt() {
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result result = harness.add("a", prompt(1, 19), 2);
            harness.run();
            assertThat(result.stats.orElseThrow().requestId()).isEqualTo("a");
        }
    }

    @Test
    void bothSidesAreClosed() {
        core(LoadFailurePolicy.FAIL).close();
        assertThat(connector.events).containsExactly("worker closed", "scheduler closed");
    }
}
