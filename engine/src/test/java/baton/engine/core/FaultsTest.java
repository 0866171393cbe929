package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.core.CoreHarness.Result;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.BlockHasher;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

/** A fault of one request or one step does not affect others. */
class FaultsTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(int blocks) {
        return new CoreHarness(blocks, 4, UnaryOperator.identity(), Optional.of(connector));
    }

    @Test
    void aFailedStepLeavesNothingInThePrefixCache() {
        try (CoreHarness harness = new CoreHarness(64, 4, UnaryOperator.identity(), Optional.empty())) {
            int[] good = prompt(1, 13);
            int[] bad = Arrays.copyOf(good, 14);
            bad[13] = Integer.MIN_VALUE;
            harness.runner.poison(Integer.MIN_VALUE);
            assertThat(harness.add("bad", bad, 3)).isNotNull();
            harness.run();
            Result result = harness.add("good", good, 3);
            harness.run();
            assertThat(harness.result("bad").reason).contains(FinishReason.ERROR);
            assertThat(result.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(result.tokens).isEqualTo(expected(good, 3));
        }
    }

    @Test
    void aRequestWithAParameterThatTheConnectorRefusesFailsAlone() {
        connector.match = (request, computed) -> {
            if (request.id().equals("bad")) {
                throw new ConfigException("kv_transfer_params", "no answer");
            }
            return new KvMatch.None();
        };
        try (CoreHarness harness = core(64)) {
            Result bad = harness.add("bad", prompt(1, 9), 3);
            Result good = harness.add("good", prompt(2, 9), 3);
            harness.run();
            assertThat(bad.reason).contains(FinishReason.ERROR);
            assertThat(bad.error.orElseThrow()).contains("no answer");
            assertThat(good.tokens).isEqualTo(expected(prompt(2, 9), 3));
            assertThat(harness.measured).doesNotContainKey("baton:kv_connector_failures");
        }
    }

    @Test
    void anImpossibleInvalidBlockIsCountedAndIgnored() {
        connector.match = (request, computed) -> new KvMatch.Tokens(8 - computed, false);
        connector.fails = (load, index) -> {
            load.blockTable()[index] = 1_000_000;
            return true;
        };
        try (CoreHarness harness = core(64)) {
            harness.add("a", prompt(1, 9), 1);
            harness.run();
            assertThat(harness.result("a").reason).isPresent();
            assertThat(harness.measured).containsEntry("baton:kv_unknown_reports", 1.0);
        }
    }

    @Test
    void theMessageOfAFailedLoadCountsTheRequestsOwnBlocks() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, false);
        connector.fails = (load, index) -> load.request().equals("a") ? index == 3 : index >= 2;
        try (CoreHarness harness = new CoreHarness(
                64,
                4,
                (EngineConfigBuilder config) -> config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .build()),
                Optional.of(connector))) {
            Result a = harness.add("a", prompt(1, 19), 2);
            Result b = harness.add("b", prompt(2, 19), 2);
            harness.run();
            assertThat(a.error.orElseThrow()).contains(" 1 of its blocks");
            assertThat(b.error.orElseThrow()).contains(" 2 of its blocks");
        }
    }

    /** The first in the queue holds one block and needs most of the pool, the second holds all other blocks but one. */
    @Test
    void requestsThatWereLoadedCannotBlockEachOther() {
        connector.match = (request, computed) -> computed > 0
                ? new KvMatch.None()
                : new KvMatch.Tokens(request.id().equals("a") ? 4 : 40, true);
        try (CoreHarness harness = core(12)) {
            Result a = harness.add("a", prompt(1, 39), 1);
            Result b = harness.add("b", prompt(2, 43), 1);
            for (int i = 0; i < 50 && harness.core.hasWork(); i++) {
                harness.step();
                List.copyOf(connector.started).forEach(load -> {
                    connector.started.remove(load);
                    connector.complete(load.request());
                });
            }
            assertThat(a.tokens).isEqualTo(expected(prompt(1, 39), 1));
            assertThat(b.tokens).isEqualTo(expected(prompt(2, 43), 1));
        }
    }

    @Test
    void logprobsOfThePromptComeOnceWhateverIsComputedTwice() {
        try (CoreHarness harness = new CoreHarness(
                14,
                4,
                config -> config.enablePrefixCaching(false).maxNumSeqs(4).maxNumBatchedTokens(5),
                Optional.empty())) {
            List<Integer> counts = new ArrayList<>();
            BlockHasher hasher = new BlockHasher(4);
            List<Result> results = new ArrayList<>();
            SamplingParams sampling = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(20)
                    .ignoreEos(true)
                    .promptLogprobs(1)
                    .build();
            for (int i = 0; i < 4; i++) {
                int index = i;
                counts.add(0);
                Result result = new Result(prompt(i, 11));
                results.add(result);
                RequestListener listener = new RequestListener() {
                    @Override
                    public void onPromptLogprobs(List<TokenLogprobs> logprobs) {
                        counts.set(index, counts.get(index) + logprobs.size());
                    }

                    @Override
                    public Optional<String> onToken(Sampled token, boolean ends) {
                        return result.onToken(token, ends);
                    }

                    @Override
                    public void onFinished(
                            FinishReason reason,
                            Optional<Object> stopReason,
                            RequestStats stats,
                            Optional<JsonFields> params,
                            Optional<String> error) {
                        result.onFinished(reason, stopReason, stats, params, error);
                    }
                };
                harness.core.add(new Request(
                        "r" + i,
                        result.prompt,
                        56,
                        sampling,
                        hasher,
                        listener,
                        SequenceOptions.builder().arrivalNanos(1).build()));
            }
            harness.run();
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive();
            assertThat(counts).containsOnly(10);
            for (int i = 0; i < 4; i++) {
                assertThat(results.get(i).tokens).isEqualTo(expected(prompt(i, 11), 20));
            }
        }
    }

    /** 32 running, thousands waiting: processor time of a step besides the model. Prints it; the bound is far above noise. */
    @Test
    void aStepCostsLittleWhileThousandsWait() {
        try (CoreHarness harness = new CoreHarness(
                4096, 16, config -> config.maxNumSeqs(32).maxNumBatchedTokens(2048), Optional.empty())) {
            for (int i = 0; i < 4000; i++) {
                harness.add("r" + i, prompt(i, 40), 600);
            }
            long[] nanos = new long[400];
            ThreadMXBean thread = ManagementFactory.getThreadMXBean();
            for (int i = 0; i < nanos.length; i++) {
                long before = thread.getCurrentThreadCpuTime();
                harness.core.step();
                nanos[i] = thread.getCurrentThreadCpuTime() - before - harness.runner.forwardNanos;
            }
            Arrays.sort(nanos);
            System.out.printf("step without the model: median %.0f us%n", nanos[nanos.length / 2] / 1e3);
            assertThat(nanos[nanos.length / 2]).isLessThan(1_000_000);
            harness.core.endAll(FinishReason.ABORT, "");
            harness.run();
        }
    }
}
