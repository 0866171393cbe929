package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvEvent;
import baton.kv.connector.KvMatch;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Blocks of requests with logits that are not finite: no request shares them, and connectors save none of them. */
class NotFiniteTest {
    private static final int BAD = 96;

    private static CoreHarness core(UnaryOperator<EngineConfigBuilder> settings, ScriptedConnector connector) {
        CoreHarness harness = new CoreHarness(64, 4, settings, Optional.of(connector));
        harness.runner.unusableAfter = BAD;
        return harness;
    }

    /** Tokens that are not {@link #BAD} but for the last one. */
    private static int[] endingBadly(int length) {
        int[] prompt =
                Arrays.stream(prompt(1, length)).map(token -> token % BAD).toArray();
        prompt[length - 1] = BAD;
        return prompt;
    }

    @Test
    void noBlockOfThePromptIsShared() {
        ScriptedConnector connector = new ScriptedConnector();
        try (CoreHarness harness = core(UnaryOperator.identity(), connector)) {
            Result good = harness.add("good", prompt(2, 12), 1);
            Result bad = harness.add("bad", endingBadly(20), 3);
            harness.run();

            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(bad.error.orElseThrow()).contains("logits of row");
            assertThat(good.tokens).isEqualTo(expected(prompt(2, 12), 1));
            assertThat(harness.core.cachedHashes(0)).hasSize(3);
            assertThat(connector.discarded).containsExactly("bad");
        }
    }

    /** Blocks of earlier steps were published before the logits were known. */
    @Test
    void blocksOfEarlierChunksAreNotSharedAnyMore() {
        ScriptedConnector connector = new ScriptedConnector();
        try (CoreHarness harness = core(config -> config.maxNumSeqs(2).maxNumBatchedTokens(8), connector)) {
            Result bad = harness.add("bad", endingBadly(20), 3);
            harness.step();
            assertThat(harness.core.cachedHashes(0)).hasSize(2);
            harness.run();

            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(harness.core.cachedHashes(0)).isEmpty();
            Set<Object> announced = new HashSet<>();
            for (KvEvent event : harness.events) {
                switch (event) {
                    case KvEvent.BlockStored stored -> announced.addAll(stored.blockHashes());
                    case KvEvent.BlockRemoved removed -> announced.removeAll(removed.blockHashes());
                    case KvEvent.AllBlocksCleared _ -> announced.clear();
                }
            }
            assertThat(announced).isEmpty();
        }
    }

    @Test
    void blocksThatWereSharedBeforeAreNotSharedAnyMore() {
        ScriptedConnector connector = new ScriptedConnector();
        try (CoreHarness harness = core(UnaryOperator.identity(), connector)) {
            int[] bad = endingBadly(20);
            harness.add("before", Arrays.copyOf(bad, 17), 1);
            harness.run();
            assertThat(harness.core.cachedHashes(0)).hasSize(4);
            Result failed = harness.add("bad", bad, 3);
            harness.run();

            assertThat(failed.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(16);
            assertThat(harness.core.cachedHashes(0)).isEmpty();
            harness.runner.unusableAfter = -1;
            Result again = harness.add("again", bad, 3);
            harness.run();
            assertThat(again.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(again.tokens).isEqualTo(expected(bad, 3));
        }
    }

    @Test
    void loadedBlocksAreNotSharedAnyMore() {
        ScriptedConnector connector = new ScriptedConnector();
        connector.match = (request, computed) ->
                request.id().equals("bad") && computed == 0 ? new KvMatch.Tokens(16, true) : new KvMatch.None();
        try (CoreHarness harness = core(UnaryOperator.identity(), connector)) {
            Result bad = harness.add("bad", endingBadly(20), 3);
            harness.step();
            connector.complete("bad");
            harness.run();

            assertThat(bad.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(16);
            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(harness.core.cachedHashes(0)).isEmpty();
        }
    }

    @Test
    void aTokenOfTheAnswerEndsTheSharingToo() {
        int[] prompt = IntStream.range(0, 5000)
                .mapToObj(seed -> prompt(seed, 9))
                .filter(candidate -> expected(candidate, 8).indexOf(BAD) == 4
                        && Arrays.stream(candidate).noneMatch(token -> token == BAD))
                .findFirst()
                .orElseThrow();
        ScriptedConnector connector = new ScriptedConnector();
        try (CoreHarness harness = core(UnaryOperator.identity(), connector)) {
            Result bad = harness.add("bad", prompt, 8);
            harness.run();

            assertThat(bad.tokens).isEqualTo(expected(prompt, 5));
            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(harness.core.cachedHashes(0)).isEmpty();
            assertThat(connector.discarded).isEqualTo(Set.copyOf(List.of("bad")));
        }
    }
}
