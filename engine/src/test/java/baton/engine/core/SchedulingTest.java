package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.greedy;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.SchedulingPolicy;
import baton.engine.core.CoreHarness.Result;
import baton.kv.BlockHasher;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.testkit.VirtualTicker;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The order in which requests are served: policies, preemption, long prompts among short ones, and thousands that wait. */
class SchedulingTest {
    private static CoreHarness core(int blocks, UnaryOperator<EngineConfigBuilder> settings) {
        return new CoreHarness(blocks, 4, settings, Optional.empty());
    }

    private static List<String> orderOfEnds(SchedulingPolicy policy) {
        try (CoreHarness harness =
                core(64, config -> config.schedulingPolicy(policy).maxNumSeqs(1).maxNumBatchedTokens(64))) {
            int[] priorities = {1, 0, 2, 0, -1};
            for (int i = 0; i < priorities.length; i++) {
                harness.add("r" + i, prompt(i, 5), greedy(2), priorities[i]);
            }
            List<String> ended = new ArrayList<>();
            while (harness.core.hasWork()) {
                harness.step();
                harness.results.forEach((id, result) -> {
                    if (result.reason.isPresent() && !ended.contains(id)) {
                        ended.add(id);
                    }
                });
            }
            return ended;
        }
    }

    @Test
    void theSmallestPriorityIsScheduledFirstAndEqualOnesInOrderOfArrival() {
        assertThat(orderOfEnds(SchedulingPolicy.PRIORITY)).containsExactly("r4", "r1", "r3", "r0", "r2");
    }

    @Test
    void firstComeFirstServedIgnoresPriorities() {
        assertThat(orderOfEnds(SchedulingPolicy.FCFS)).containsExactly("r0", "r1", "r2", "r3", "r4");
    }

    @ParameterizedTest
    @EnumSource
    void aRequestThatContinuesAnAnswerIsScheduledBeforeOthers(SchedulingPolicy policy) {
        try (CoreHarness harness =
                core(64, config -> config.schedulingPolicy(policy).maxNumSeqs(2).maxNumBatchedTokens(8))) {
            Result running = harness.add("running", prompt(1, 40), greedy(2), -5);
            harness.step();
            Result waiting = harness.add("waiting", prompt(2, 5), greedy(1), -5);
            int[] output =
                    expected(prompt(3, 10), 6).stream().mapToInt(id -> id).toArray();
            Result continued = harness.addContinued("continued", prompt(3, 10), Arrays.copyOf(output, 4), greedy(6));
            int steps = 0;
            while (continued.reason.isEmpty()) {
                harness.step();
                steps++;
            }
            assertThat(List.of(running.reason, waiting.reason)).containsOnly(Optional.empty());
            assertThat(steps).as("14 tokens by 8, and a token more").isEqualTo(3);
            assertThat(continued.tokens).isEqualTo(expected(prompt(3, 10), 6));
            harness.run();
            assertThat(running.tokens).isEqualTo(expected(prompt(1, 40), 2));
        }
    }

    @Test
    void whenBlocksRunOutTheRequestOfTheLargestPriorityIsPreempted() {
        try (CoreHarness harness = core(
                10, config -> config.schedulingPolicy(SchedulingPolicy.PRIORITY).enablePrefixCaching(false))) {
            Result least = harness.add("least", prompt(1, 9), greedy(16), 5);
            Result most = harness.add("most", prompt(2, 9), greedy(16), 0);
            Result middle = harness.add("middle", prompt(3, 9), greedy(16), 1);
            while (most.reason.isEmpty()) {
                harness.step();
            }
            assertThat(least.tokens.size()).isLessThan(middle.tokens.size());
            harness.run();
            assertThat(List.of(least.tokens, most.tokens, middle.tokens))
                    .containsExactly(
                            expected(prompt(1, 9), 16), expected(prompt(2, 9), 16), expected(prompt(3, 9), 16));
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive();
        }
    }

    @Test
    void theLongPrefillThresholdLeavesTheRestOfTheStepToShortPrompts() {
        int[] stepsUntilShortIsAnswered = new int[2];
        for (int limited = 0; limited < 2; limited++) {
            int threshold = limited * 8;
            try (CoreHarness harness = core(
                    256,
                    config -> config.longPrefillTokenThreshold(threshold)
                            .maxNumSeqs(4)
                            .maxNumBatchedTokens(16))) {
                Result first = harness.add("long", prompt(1, 400), 1);
                Result second = harness.add("short", prompt(2, 6), 1);
                while (second.reason.isEmpty()) {
                    harness.step();
                    stepsUntilShortIsAnswered[limited]++;
                }
                assertThat(first.reason.isPresent()).isEqualTo(limited == 0);
                harness.run();
                assertThat(first.tokens).isEqualTo(expected(prompt(1, 400), 1));
                assertThat(harness.runner.computed)
                        .allMatch(slice -> threshold == 0 || slice.tokens().length <= threshold);
            }
        }
        assertThat(stepsUntilShortIsAnswered).containsExactly(25 + 1, 1);
    }

    @Test
    void requestsDeferredForABlockAreNotScheduledBeforeItIsPublished() {
        ScriptedConnector connector = new ScriptedConnector();
        try (CoreHarness harness = new CoreHarness(
                512, 4, config -> config.maxNumSeqs(64).maxNumBatchedTokens(64), Optional.of(connector))) {
            int[] shared = prompt(1, 401);
            List<Result> results = IntStream.range(0, 500)
                    .mapToObj(i -> harness.add("r" + i, shared, 2))
                    .toList();
            for (int i = 0; i < 7; i++) {
                connector.events.clear();
                harness.step();
                assertThat(connector.events.stream().filter(event -> event.startsWith("match")))
                        .as("asked in step %d", i)
                        .hasSize(i == 0 ? 1 : 0);
            }
            harness.run();
            assertThat(results).allSatisfy(result -> assertThat(result.tokens).isEqualTo(expected(shared, 2)));
            assertThat(harness.tokensComputed()).isEqualTo(401 + 499 + 500);
        }
    }

    @Test
    void aRequestDeferredForABlockComputesItIfTheOtherRequestLeaves() {
        try (CoreHarness harness = core(64, config -> config.maxNumSeqs(4).maxNumBatchedTokens(8))) {
            harness.add("first", prompt(1, 41), 4);
            Result second = harness.add("second", prompt(1, 41), 4);
            Result third = harness.add("third", prompt(1, 41), 4);
            harness.step();
            harness.core.abort("first");
            harness.core.abort("third");
            harness.run();
            assertThat(second.tokens).isEqualTo(expected(prompt(1, 41), 4));
            assertThat(third.reason).contains(FinishReason.ABORT);
        }
    }

    @Test
    void aStepAsksAgainAboutAFewHundredPendingMatchesAndTheNextStepContinuesBehindThem() {
        ScriptedConnector connector = new ScriptedConnector();
        Map<String, Integer> asked = new TreeMap<>();
        boolean[] known = {false};
        connector.match = (request, computed) -> {
            asked.merge(request.id(), 1, Integer::sum);
            return known[0] ? new KvMatch.None() : new KvMatch.Pending();
        };
        try (CoreHarness harness = new CoreHarness(64, 4, UnaryOperator.identity(), Optional.of(connector))) {
            for (int i = 0; i < 1000; i++) {
                harness.add("r" + i, prompt(i, 3), 1);
            }
            harness.step();
            assertThat(asked).hasSize(256);
            for (int i = 0; i < 3; i++) {
                harness.step();
            }
            assertThat(asked).hasSize(1000);
            known[0] = true;
            harness.run();
            assertThat(harness.results.values())
                    .allSatisfy(result -> assertThat(result.reason).contains(FinishReason.LENGTH));
        }
    }

    @Test
    void aListenerThatThrowsIsCountedAndTheEngineGoesOn() {
        List<Measurement> measured = new ArrayList<>();
        EngineListener throwing = new EngineListener() {
            @Override
            public void onStep(StepStats stats) {
                throw new IllegalStateException("onStep");
            }

            @Override
            public void onFirstToken(double seconds, PromptTokens prompt) {
                throw new IllegalStateException("onFirstToken");
            }

            @Override
            public void onMeasurements(List<Measurement> measurements) {
                measured.addAll(measurements);
            }
        };
        OracleRunner runner = new OracleRunner(16, 4);
        Result result = new Result(prompt(1, 5));
        try (EngineCore core = new EngineCore(
                EngineConfig.of(Path.of("oracle")).blockSize(4).build(),
                runner,
                Set.of(),
                Optional.empty(),
                throwing,
                new VirtualTicker())) {
            BlockHasher hasher = new BlockHasher(4);
            core.add(new Request(
                    "a",
                    result.prompt,
                    64,
                    greedy(4),
                    hasher,
                    result,
                    SequenceOptions.builder().build()));
            while (core.hasWork()) {
                core.step();
            }
        }
        assertThat(result.tokens).isEqualTo(expected(prompt(1, 5), 4));
        // One for the first token, one for each step but the last, which no call follows.
        assertThat(measured.stream().mapToDouble(Measurement::value).sum()).isGreaterThanOrEqualTo(1 + 3);
        assertThat(measured).allMatch(each -> each.name().equals("baton:listener_failures"));
    }
}
