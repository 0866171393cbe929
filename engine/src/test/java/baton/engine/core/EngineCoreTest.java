package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.SchedulingPolicy;
import baton.engine.core.CoreHarness.Result;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class EngineCoreTest {
    private static CoreHarness core(int blocks, UnaryOperator<EngineConfigBuilder> settings) {
        return new CoreHarness(blocks, 4, settings, Optional.empty());
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3, 4, 5, 8, 9, 30})
    void continuesAPromptOfAnyLength(int length) {
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            Result result = harness.add("a", prompt(1, length), 12);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, length), 12));
            assertThat(result.reason).contains(FinishReason.LENGTH);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 3, 7, 16})
    void aPromptInChunksGivesTheSame(int budget) {
        try (CoreHarness harness = core(64, config -> config.maxNumSeqs(2).maxNumBatchedTokens(budget))) {
            Result result = harness.add("a", prompt(1, 50), 5);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 50), 5));
            assertThat(harness.runner.computed).allMatch(slice -> slice.tokens().length <= budget);
        }
    }

    @Test
    void aLongPromptDoesNotHoldUpTheOthersNextTokens() {
        try (CoreHarness harness = core(256, config -> config.maxNumSeqs(4).maxNumBatchedTokens(16))) {
            Result small = harness.add("small", prompt(1, 4), 30);
            harness.step();
            harness.add("long", prompt(2, 400), 1);
            for (int i = 0; i < 10; i++) {
                int before = small.tokens.size();
                harness.step();
                assertThat(small.tokens).hasSize(before + 1);
            }
            harness.run();
        }
    }

    @Test
    void aSharedPrefixIsComputedOnce() {
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            int[] prompt = prompt(1, 33);
            harness.add("a", prompt, 3);
            harness.run();
            int before = harness.tokensComputed();
            Result again = harness.add("b", prompt, 3);
            harness.run();
            assertThat(again.tokens).isEqualTo(expected(prompt, 3));
            assertThat(harness.tokensComputed() - before).isEqualTo(1 + 2);
            assertThat(again.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(32);
            assertThat(again.stats.orElseThrow().prompt().localCompute()).isEqualTo(1);
        }
    }

    @Test
    void requestsThatArriveTogetherShareTheirPrefixToo() {
        try (CoreHarness harness = core(128, UnaryOperator.identity())) {
            int[] prompt = prompt(1, 41);
            List<Result> results = IntStream.range(0, 5)
                    .mapToObj(i -> harness.add("r" + i, prompt, 4))
                    .toList();
            harness.run();
            assertThat(results).allSatisfy(result -> assertThat(result.tokens).isEqualTo(expected(prompt, 4)));
            // One computes the prompt, four compute its last token, all compute three tokens of output.
            assertThat(harness.tokensComputed()).isEqualTo(41 + 4 + 5 * 3);
        }
    }

    @Test
    void withoutPrefixCachingNothingIsShared() {
        try (CoreHarness harness = core(64, config -> config.enablePrefixCaching(false))) {
            harness.add("a", prompt(1, 20), 1);
            harness.run();
            harness.add("b", prompt(1, 20), 1);
            harness.run();
            assertThat(harness.tokensComputed()).isEqualTo(40);
        }
    }

    @Test
    void whenBlocksRunOutTheLastInOrderWaitsAgainAndLosesNothing() {
        try (CoreHarness harness = core(14, config -> config.enablePrefixCaching(false))) {
            List<Result> results = IntStream.range(0, 4)
                    .mapToObj(i -> harness.add("r" + i, prompt(i, 9), 30))
                    .toList();
            harness.run();
            for (int i = 0; i < 4; i++) {
                assertThat(results.get(i).tokens).isEqualTo(expected(prompt(i, 9), 30));
            }
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive();
        }
    }

    @Test
    void smallerPriorityRunsEarlier() {
        try (CoreHarness harness = core(
                64,
                config -> config.schedulingPolicy(SchedulingPolicy.PRIORITY)
                        .maxNumSeqs(1)
                        .maxNumBatchedTokens(64))) {
            SamplingParams one = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(1)
                    .ignoreEos(true)
                    .build();
            harness.add("a", prompt(1, 5), one, 5);
            harness.add("b", prompt(2, 5), one, 1);
            harness.step();
            assertThat(harness.result("b").reason).isPresent();
            assertThat(harness.result("a").reason).isEmpty();
            harness.run();
        }
    }

    @Test
    void endsAtTheEndOfText() {
        int[] prompt = IntStream.range(0, 5000)
                .mapToObj(seed ->
                        new Random(seed).ints(6, 1, OracleRunner.VOCABULARY).toArray())
                .filter(candidate -> expected(candidate, 8).indexOf(CoreHarness.EOS) == 5)
                .findFirst()
                .orElseThrow();
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            Result result = harness.add("a", prompt, SamplingParams.greedy(8), 0);
            SamplingParams stop = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(8)
                    .stopTokenIds(Set.of(expected(prompt, 3).get(2)))
                    .build();
            Result stopped = harness.add("b", prompt, stop, 0);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt, 6));
            assertThat(result.reason).contains(FinishReason.STOP);
            assertThat(result.stopReason).isEmpty();
            int first = expected(prompt, 8).indexOf(expected(prompt, 3).get(2));
            assertThat(stopped.tokens).isEqualTo(expected(prompt, first + 1));
            assertThat(stopped.stopReason).contains(expected(prompt, 3).get(2));
        }
    }

    @Test
    void aFailingModelFailsTheStepsRequestsAndServesOn() {
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            Result bad = harness.add("bad", new int[] {1, Integer.MIN_VALUE}, 3);
            harness.runner.poison(Integer.MIN_VALUE);
            harness.run();
            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(bad.error.orElseThrow()).contains("poisoned token");
            Result good = harness.add("good", prompt(1, 10), 3);
            harness.run();
            assertThat(good.tokens).isEqualTo(expected(prompt(1, 10), 3));
        }
    }

    @Test
    void unusableLogitsEndTheirRequestAlone() {
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            SamplingParams drawn = SamplingParams.builder().maxTokens(3).build();
            Result good = harness.add("good", prompt(1, 10), 3);
            Result bad = harness.add("bad", new int[] {1, 96}, 3);
            Result badDraw = harness.add("bad draw", new int[] {2, 96}, drawn, 0);
            Result other = harness.add("other", prompt(2, 7), 3);
            harness.runner.unusableAfter = 96;
            harness.run();
            for (Result failed : List.of(bad, badDraw)) {
                assertThat(failed.reason).contains(FinishReason.ERROR);
                assertThat(failed.error.orElseThrow()).contains("Sampling failed: logits of row");
                assertThat(failed.tokens).isEmpty();
            }
            assertThat(good.tokens).isEqualTo(expected(prompt(1, 10), 3));
            assertThat(other.tokens).isEqualTo(expected(prompt(2, 7), 3));
        }
    }

    @Test
    void aSequenceEndsWhereItsParametersAllowNoToken() {
        try (CoreHarness harness = core(64, UnaryOperator.identity())) {
            SamplingParamsBuilder contradiction = SamplingParams.builder()
                    .maxTokens(5)
                    .allowedTokenIds(Set.of(7))
                    .badWords(List.of(List.of(7, 7, 7)));
            Result drawn = harness.add("drawn", prompt(1, 10), contradiction.build(), 0);
            Result greedy = harness.add(
                    "greedy", prompt(2, 7), contradiction.temperature(0).build(), 0);
            Result other = harness.add("other", prompt(2, 7), 3);
            harness.run();
            for (Result ended : List.of(drawn, greedy)) {
                assertThat(ended.reason).contains(FinishReason.STOP);
                assertThat(ended.stopReason).isEmpty();
                assertThat(ended.error).isEmpty();
                assertThat(ended.tokens).containsExactly(7, 7);
            }
            assertThat(other.tokens).isEqualTo(expected(prompt(2, 7), 3));
        }
    }

    /** Random arrivals, aborts, block sizes, budgets and pools; a request that ends by itself has the oracle's output. */
    @Test
    void randomLoadsEndRightAndLeaveNoBlockInUse() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        for (int round = 0; round < 60; round++) {
            Random random = new Random(seed + round);
            int blockSize = 1 + random.nextInt(8);
            int blocks = 12 + random.nextInt(40);
            int seqs = 1 + random.nextInt(8);
            int budget = seqs + random.nextInt(40);
            boolean caching = random.nextInt(4) > 0;
            try (CoreHarness harness = new CoreHarness(
                    blocks,
                    blockSize,
                    config ->
                            config.maxNumSeqs(seqs).maxNumBatchedTokens(budget).enablePrefixCaching(caching),
                    Optional.empty())) {
                int capacity = blocks * blockSize;
                harness.runRandomLoad(random, capacity / 2, capacity, "seed %d round %d".formatted(seed, round));
            }
        }
    }
}
