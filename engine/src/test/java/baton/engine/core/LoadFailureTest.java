package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.engine.RequestTimes.KvLoad;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Blocks that fail to load: which tokens are computed here instead, which requests fail, and which blocks other requests may still share.
 */
class LoadFailureTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(LoadFailurePolicy policy) {
        return new CoreHarness(
                64,
                4,
                (EngineConfigBuilder config) -> config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                        .loadFailurePolicy(policy)
                        .build()),
                Optional.of(connector));
    }

    private long asked(String request) {
        return connector.events.stream()
                .filter(event -> event.startsWith("match " + request))
                .count();
    }

    @Test
    void ofThreeAsynchronousLoadsOnlyTheOneWithAnInvalidBlockIsCutAndAllStayParkedUntilTheirOwnEnd() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, true);
        connector.fails = (load, index) -> load.request().equals("b") && index == 2;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            List<Result> results = List.of(
                    harness.add("a", prompt(1, 19), 2),
                    harness.add("b", prompt(2, 19), 2),
                    harness.add("c", prompt(3, 19), 2));
            harness.step();
            connector.reportInvalid("b", 2);
            harness.step();
            assertThat(harness.core.status(Optional.empty()).waitingForRemoteKv())
                    .isEqualTo(3);
            assertThat(harness.runner.computed).isEmpty();
            List.of("a", "b", "c").forEach(connector::complete);
            harness.run();
            for (int i = 0; i < 3; i++) {
                assertThat(results.get(i).tokens).isEqualTo(expected(prompt(i + 1, 19), 2));
                assertThat(results.get(i).stats.orElseThrow().prompt().externalKvTransfer())
                        .isEqualTo(i == 1 ? 8 : 16);
                RequestTimes times = results.get(i).stats.orElseThrow().times();
                KvLoad load = times.load().orElseThrow();
                assertThat(load.tokens()).isEqualTo(16);
                assertThat(load.blocks()).isEqualTo(4);
                assertThat(load.bytes()).isPositive();
                assertThat(load.attempts()).isEqualTo(1);
                assertThat(load.failures()).isEqualTo(i == 1 ? 1 : 0);
                assertThat(load.ended().orElseThrow())
                        .isBetween(load.started(), times.scheduled().orElseThrow());
                assertThat(times.firstToken().orElseThrow())
                        .isBetween(times.scheduled().orElseThrow(), times.ended());
            }
        }
    }

    /** A quarter of 64 blocks, so three of these prompts at once; loads from other peers, and computing, continue. */
    @Test
    void loadsFromPeersThatWereNeverReachedHoldAPartOfThePool() {
        connector.match = (request, computed) -> switch (request.id().charAt(0)) {
            case 'u' -> new KvMatch.Tokens(16, true, false);
            case 'r' -> new KvMatch.Tokens(16, true, true);
            default -> new KvMatch.None();
        };
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            List<Result> dead = IntStream.range(0, 8)
                    .mapToObj(i -> harness.add("u" + i, prompt(10 + i, 19), 2))
                    .toList();
            Result reached = harness.add("r", prompt(1, 19), 2);
            Result local = harness.add("local", prompt(2, 19), 2);
            for (int i = 0; i < 4; i++) {
                harness.step();
            }
            assertThat(connector.started.stream().map(ScriptedConnector.Load::request))
                    .containsExactly("u0", "u1", "u2", "r");
            assertThat(harness.used()).isEqualTo(16);
            assertThat(local.tokens).isEqualTo(expected(prompt(2, 19), 2));
            connector.complete("r");
            // Its load may still write to its blocks.
            harness.core.abort("u0");
            connector.complete("u1");
            for (int i = 0; i < 4; i++) {
                harness.step();
            }
            assertThat(reached.tokens).isEqualTo(expected(prompt(1, 19), 2));
            assertThat(connector.started.stream().map(ScriptedConnector.Load::request))
                    .containsExactly("u0", "u1", "u2", "r", "u3");
            for (String id : List.of("u0", "u2", "u3")) {
                connector.complete(id);
            }
            for (int i = 4; i < 8; i++) {
                while (!connector.isLoading("u" + i)) {
                    harness.step();
                }
                connector.complete("u" + i);
            }
            harness.run();
            for (int i = 1; i < 8; i++) {
                assertThat(dead.get(i).tokens).isEqualTo(expected(prompt(10 + i, 19), 2));
            }
            assertThat(harness.used()).isZero();
        }
    }

    /** A load may take all blocks. */
    @Test
    void oneLoadFromAPeerThatWasNeverReachedIsAlwaysAdmitted() {
        connector.match = (request, computed) -> new KvMatch.Tokens(200, true, false);
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            Result result = harness.add("u", prompt(1, 203), 2);
            harness.step();
            connector.complete("u");
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 203), 2));
        }
    }

    @Test
    void ofThreeLoadsWithinAStepOnlyTheOneWithAnInvalidBlockGoesOnAndIsNotAskedAboutAgain() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, false);
        connector.fails = (load, index) -> load.request().equals("b") && index == 1;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            harness.add("a", prompt(1, 19), 1);
            Result bad = harness.add("b", prompt(2, 19), 1);
            harness.add("c", prompt(3, 19), 1);
            harness.step();
            assertThat(connector.events.stream().filter(event -> event.startsWith("finished")))
                    .containsExactly("finished a LENGTH", "finished c LENGTH");
            assertThat(harness.core.status(Optional.empty()).running()).isEqualTo(1);
            assertThat(bad.tokens).isEmpty();
            harness.run();
            assertThat(bad.tokens).isEqualTo(expected(prompt(2, 19), 1));
            assertThat(bad.stats.orElseThrow().times().load().orElseThrow().ended())
                    .as("a load within a step")
                    .isEmpty();
            assertThat(asked("b")).isEqualTo(1);
            assertThat(connector.events.stream().filter(event -> event.equals("finished b LENGTH")))
                    .hasSize(1);
        }
    }

    @Test
    void aRunningRequestKeepsItsBlocksWhileItComputesFailedOnes() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, false);
        connector.fails = (load, index) -> index == 2;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            Result result = harness.add("a", prompt(1, 19), 1);
            harness.step();
            assertThat(harness.used()).isEqualTo(5);
            int[] before = connector.started.getFirst().blockTable();
            harness.step();
            assertThat(harness.runner.computed.getLast().blockTable()).startsWith(before);
            assertThat(harness.runner.computed.getLast().start()).isEqualTo(8);
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 1));
        }
    }

    @Test
    void failuresThatComeBitByBitCutAtTheFirstInvalidBlockInAnyOrder() {
        connector.match = (request, computed) -> new KvMatch.Tokens(24, true);
        connector.fails = (load, index) -> List.of(2, 3, 5).contains(index);
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            Result result = harness.add("a", prompt(1, 27), 2);
            harness.step();
            for (int index : new int[] {3, 2, 5}) {
                connector.reportInvalid("a", index);
                harness.step();
            }
            connector.complete("a");
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 27), 2));
            assertThat(result.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(8);
            assertThat(harness.measured).containsEntry("baton:kv_recomputed_tokens", 16.0);
        }
    }

    @Test
    void anInvalidBlockThatTwoRequestsShareIsComputedAgainByTheFirstOfThem() {
        connector.match = (request, computed) ->
                request.id().equals("a") ? new KvMatch.Tokens(16 - computed, false) : new KvMatch.None();
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            int[] shared = prompt(1, 19);
            Result a = harness.add("a", shared, 20);
            harness.step();
            Result b = harness.add("b", shared, 20);
            harness.step();
            assertThat(b.stats).isEmpty();
            int[] blocks = connector.started.getFirst().blockTable();
            for (int layer = 0; layer < 2; layer++) {
                OracleRunner.write(harness.runner.cache(), layer, blocks, 6, 96);
            }
            connector.nextInvalid.add(blocks[1]);
            harness.runner.computed.clear();
            harness.step();
            int outputA = a.tokens.size();
            int outputB = b.tokens.size();
            harness.step();
            harness.step();
            assertThat(a.tokens.size()).isGreaterThan(outputA);
            assertThat(b.tokens.size()).isGreaterThanOrEqualTo(outputB);
            long again = harness.runner.computed.stream()
                    .filter(slice -> slice.start() <= 4 && slice.start() + slice.tokens().length > 4)
                    .count();
            assertThat(again).as("times that the bad block was computed").isEqualTo(1);
            harness.run();
            assertThat(a.tokens).isEqualTo(expected(shared, 20));
            assertThat(b.tokens).isEqualTo(expected(shared, 20));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void byPolicyOnlyTheRequestWithAnInvalidBlockFails(boolean async) {
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, async);
        connector.fails = (load, index) -> load.request().equals("b") && index == 3;
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result good = harness.add("a", prompt(1, 19), 3);
            Result bad = harness.add("b", prompt(2, 19), 3);
            harness.step();
            if (async) {
                connector.complete("b");
                connector.complete("a");
            }
            harness.run();
            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(bad.tokens).isEmpty();
            assertThat(connector.events).contains("finished b ERROR", "finished a LENGTH");
            assertThat(good.tokens).isEqualTo(expected(prompt(1, 19), 3));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void blocksThatFailedToLoadAndThoseBehindThemAreNoHitForTheNextRequest(boolean async) {
        connector.match = (request, computed) ->
                request.id().equals("a") ? new KvMatch.Tokens(16 - computed, async) : new KvMatch.None();
        connector.fails = (load, index) -> index == 2;
        for (LoadFailurePolicy policy : LoadFailurePolicy.values()) {
            try (CoreHarness harness = core(policy)) {
                harness.add("a", prompt(1, 19), 3);
                harness.step();
                if (async) {
                    connector.complete("a");
                }
                harness.step();
                harness.core.abort("a");
                Result next = harness.add("b", Arrays.copyOf(prompt(1, 19), 12), 3);
                harness.run();
                assertThat(next.tokens).isEqualTo(expected(prompt(1, 12), 3));
                if (policy == LoadFailurePolicy.FAIL) {
                    assertThat(next.stats.orElseThrow().prompt().localCacheHit())
                            .isLessThanOrEqualTo(8);
                }
            }
        }
    }

    @Test
    void ofAnAsynchronousLoadOnlyTheBlocksBeforeTheInvalidOneAreCached() {
        connector.match =
                (request, computed) -> request.id().equals("a") ? new KvMatch.Tokens(16, true) : new KvMatch.None();
        connector.fails = (load, index) -> index == 2;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            harness.add("a", prompt(1, 19), 3);
            harness.step();
            connector.complete("a");
            harness.step();
            harness.core.abort("a");
            assertThat(harness.runner.computed).isEmpty();
            Result next = harness.add("b", prompt(1, 19), 1);
            harness.run();
            assertThat(next.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(8);
            assertThat(next.tokens).isEqualTo(expected(prompt(1, 19), 1));
        }
    }

    @Test
    void aLoadThatFailedWhollyIsComputedFromTheStartAndNotTriedAgain() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, true);
        connector.fails = (load, index) -> true;
        try (CoreHarness harness = core(LoadFailurePolicy.RECOMPUTE)) {
            Result result = harness.add("a", prompt(1, 19), 2);
            harness.step();
            connector.complete("a");
            harness.step();
            assertThat(harness.used()).isZero();
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 2));
            assertThat(result.stats.orElseThrow().prompt().localCompute()).isEqualTo(19);
            assertThat(asked("a")).isEqualTo(1);
            assertThat(harness.runner.computed.getFirst().tokens()).hasSize(19);
        }
    }
}
