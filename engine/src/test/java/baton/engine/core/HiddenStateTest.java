package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener.StepStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.core.CoreHarness.Result;
import baton.kv.DType;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvMatch;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

/** Hidden states of prompts' last tokens: given to a connector that wants them, and sampled from when they come with all KV. */
class HiddenStateTest {
    private static final int LENGTH = 19;

    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(UnaryOperator<EngineConfigBuilder> settings) {
        return new CoreHarness(
                64,
                4,
                config -> settings.apply(config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                        .build())),
                Optional.of(connector));
    }

    private CoreHarness loading(UnaryOperator<EngineConfigBuilder> settings) {
        connector.match = (request, computed) -> new KvMatch.Tokens(request.promptLength() - computed, true);
        return core(settings);
    }

    private void complete(String request, int[] prompt) {
        connector.complete(request);
        connector.nextHidden.put(request, OracleRunner.hidden(OracleRunner.next(prompt)));
    }

    private static int scheduledTokens(CoreHarness harness) {
        return harness.steps.stream().mapToInt(StepStats::scheduledTokens).sum();
    }

    @Test
    void nothingOfAPromptIsComputedIfItsLastHiddenStateCameWithAllOfItsKv() {
        try (CoreHarness harness = loading(config -> config)) {
            Result result = harness.add("a", prompt(1, LENGTH), 3);
            harness.step();
            complete("a", prompt(1, LENGTH));
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, LENGTH), 3));
            assertThat(result.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(LENGTH);
            assertThat(result.stats.orElseThrow().prompt().localCompute()).isZero();
            // The second and the third token's.
            assertThat(harness.tokensComputed()).isEqualTo(2);
            assertThat(scheduledTokens(harness)).isEqualTo(2);
        }
    }

    @Test
    void theFirstTokenIsSampledInTheSameBatchAsOtherRequests() {
        try (CoreHarness harness = loading(config -> config.maxNumSeqs(8).maxNumBatchedTokens(32))) {
            Result before = harness.add("before", prompt(2, 9), 30);
            harness.step();
            complete("before", prompt(2, 9));
            harness.step();
            harness.step();
            Result loaded = harness.add("loaded", prompt(1, LENGTH), 4);
            harness.step();
            complete("loaded", prompt(1, LENGTH));
            harness.step();
            connector.match = (request, computed) -> new KvMatch.None();
            Result computed = harness.add("computed", prompt(3, 25), 4);
            harness.step();
            assertThat(loaded.tokens).hasSize(1);
            assertThat(computed.tokens).hasSize(1);
            harness.run();
            assertThat(before.tokens).isEqualTo(expected(prompt(2, 9), 30));
            assertThat(loaded.tokens).isEqualTo(expected(prompt(1, LENGTH), 4));
            assertThat(computed.tokens).isEqualTo(expected(prompt(3, 25), 4));
            assertThat(harness.tokensComputed()).isEqualTo(29 + 3 + 25 + 3);
        }
    }

    @Test
    void aLoadedRequestThatWaitsForItsTurnIsSampledFromItsHiddenStateThen() {
        try (CoreHarness harness = loading(config -> config.maxNumSeqs(1))) {
            Result first = harness.add("a", prompt(1, LENGTH), 6);
            Result second = harness.add("b", prompt(2, LENGTH), 2);
            for (int i = 0; i < 10 && !connector.isLoading("a"); i++) {
                harness.step();
            }
            complete("a", prompt(1, LENGTH));
            for (int i = 0; i < 20 && !connector.isLoading("b"); i++) {
                harness.step();
            }
            complete("b", prompt(2, LENGTH));
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, LENGTH), 6));
            assertThat(second.tokens).isEqualTo(expected(prompt(2, LENGTH), 2));
            assertThat(harness.tokensComputed()).isEqualTo(5 + 1);
        }
    }

    @Test
    void withoutAHiddenStateOrWithoutAllKvTheRestIsComputed() {
        connector.fails = (load, index) -> load.request().equals("torn") && index == 3;
        try (CoreHarness harness = loading(config -> config)) {
            Result none = harness.add("none", prompt(1, LENGTH), 2);
            Result torn = harness.add("torn", prompt(2, LENGTH), 2);
            harness.step();
            connector.complete("none");
            complete("torn", prompt(2, LENGTH));
            harness.run();
            assertThat(none.tokens).isEqualTo(expected(prompt(1, LENGTH), 2));
            assertThat(torn.tokens).isEqualTo(expected(prompt(2, LENGTH), 2));
            assertThat(harness.tokensComputed()).isEqualTo((1 + 1) + (LENGTH - 12 + 1));
        }
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, true);
        try (CoreHarness harness = core(config -> config)) {
            Result fewer = harness.add("fewer", prompt(3, LENGTH), 2);
            harness.step();
            complete("fewer", prompt(3, LENGTH));
            harness.run();
            assertThat(fewer.tokens).isEqualTo(expected(prompt(3, LENGTH), 2));
            assertThat(harness.tokensComputed()).isEqualTo(LENGTH - 16 + 1);
        }
    }

    @Test
    void aHiddenStateThatIsNotThisModelsIsNotUsed() {
        try (CoreHarness harness = loading(config -> config)) {
            Result wide = harness.add("wide", prompt(1, LENGTH), 2);
            Result half = harness.add("half", prompt(2, LENGTH), 2);
            harness.step();
            connector.complete("wide");
            connector.complete("half");
            connector.nextHidden.put("wide", new HiddenState(DType.F32, MemorySegment.ofArray(new float[2])));
            connector.nextHidden.put("half", new HiddenState(DType.F16, MemorySegment.ofArray(new float[1])));
            harness.run();
            assertThat(wide.tokens).isEqualTo(expected(prompt(1, LENGTH), 2));
            assertThat(half.tokens).isEqualTo(expected(prompt(2, LENGTH), 2));
        }
    }

    @Test
    void theHiddenStateOfARequestThatHasEndedIsDropped() {
        try (CoreHarness harness = loading(config -> config)) {
            Result gone = harness.add("a", prompt(1, LENGTH), 2);
            harness.step();
            harness.core.abort("a");
            complete("a", prompt(1, LENGTH));
            harness.run();
            assertThat(gone.reason).contains(FinishReason.ABORT);
            assertThat(gone.tokens).isEmpty();
            assertThat(harness.tokensComputed()).isZero();
        }
    }

    @Test
    void aRequestThatIsPreemptedAfterItsHiddenStateCameIsComputedAgain() {
        // Two that grow beyond the pool together: the later loses its blocks, and the connector has nothing for it any
        // more.
        try (CoreHarness harness = new CoreHarness(
                16,
                4,
                config -> config.enablePrefixCaching(false)
                        .kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                                .build()),
                Optional.of(connector))) {
            connector.match = (request, computed) -> new KvMatch.Tokens(request.promptLength() - computed, true);
            Result first = harness.add("a", prompt(1, LENGTH), 30);
            Result second = harness.add("b", prompt(2, LENGTH), 30);
            harness.step();
            complete("a", prompt(1, LENGTH));
            complete("b", prompt(2, LENGTH));
            connector.match = (request, computed) -> new KvMatch.None();
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, LENGTH), 30));
            assertThat(second.tokens).isEqualTo(expected(prompt(2, LENGTH), 30));
            assertThat(harness.steps.stream().mapToInt(StepStats::preempted).sum())
                    .isPositive();
        }
    }

    @Test
    void promptLogprobsNeedAllHiddenStatesSoNothingIsLoaded() {
        try (CoreHarness harness = loading(config -> config)) {
            SamplingParams sampling = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(1)
                    .promptLogprobs(0)
                    .build();
            Result result = harness.add("a", prompt(1, LENGTH), sampling, 0);
            assertThat(harness.core.status(Optional.empty()).waiting()).isEqualTo(1);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, LENGTH), 1));
            assertThat(connector.events).doesNotContain("match a 0").contains("new a, loads nothing");
            assertThat(harness.tokensComputed()).isEqualTo(LENGTH);
        }
    }

    @Test
    void aConnectorThatWantsHiddenStatesIsGivenTheLastOneOfEachPrompt() {
        connector.wantsHidden = true;
        try (CoreHarness harness = core(config -> config.maxNumSeqs(8).maxNumBatchedTokens(8))) {
            harness.add("chunks", prompt(1, LENGTH), 3);
            harness.add("short", prompt(2, 5), 3);
            harness.run();
            assertThat(connector.saved).containsOnlyKeys("chunks", "short");
            assertThat(saved("chunks")).isEqualTo(OracleRunner.next(prompt(1, LENGTH)));
            assertThat(saved("short")).isEqualTo(OracleRunner.next(prompt(2, 5)));
        }
    }

    private int saved(String request) {
        HiddenState state = Optional.ofNullable(connector.saved.get(request)).orElseThrow();
        return (int) state.data().get(ValueLayout.JAVA_FLOAT_UNALIGNED, 0);
    }

    @Test
    void aConnectorThatDoesNotWantHiddenStatesIsGivenNone() {
        try (CoreHarness harness = core(config -> config)) {
            harness.add("a", prompt(1, LENGTH), 3);
            harness.run();
            assertThat(connector.saved).isEmpty();
        }
    }
}
